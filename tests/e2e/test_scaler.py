"""`python -m scaler` as a process: leading, standing by, waiting for its store, refusing, leaving."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from common.fleet import Reason, ScaleView
from common.job import JobRequest, Submission, new_job_id
from common.settings import Settings, child_environment
from common.store import Store
from common.stores import open_store
from tests.servers import ServerProcess
from tests.waiting import wait_until

pytestmark = pytest.mark.server

StartScaler = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start_scaler() -> Iterator[StartScaler]:
    processes: list[subprocess.Popen[str]] = []

    def start(url: str, instance: str = "first", **settings: str) -> subprocess.Popen[str]:
        quick = {"scale_interval_ms": "50", "metrics_port": "0", "worker_concurrency": "1"}
        environment = child_environment(redis_url=url, instance=instance, **quick | settings)
        command = [sys.executable, "-m", "scaler"]
        processes.append(subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.communicate()


@pytest.fixture
async def store(private_server: ServerProcess) -> AsyncIterator[Store]:
    opened = open_store(Settings(redis_url=private_server.url))
    await opened.start()
    yield opened
    await opened.aclose()


async def led_by(store: Store, leader: str) -> ScaleView:
    """The published view once this scaler leads and has decided."""

    async def leads() -> bool:
        view = await store.scale()
        return (view.leader or "").startswith(f"{leader}-") and view.decision is not None

    await wait_until(leads, timeout=10)
    return await store.scale()


async def test_a_killed_leader_is_replaced_and_the_count_stands(
    store: Store, private_server: ServerProcess, start_scaler: StartScaler
) -> None:
    for _ in range(5):
        await store.submit(Submission(job_id=new_job_id(), request=JobRequest(prompt="x")))
    first = start_scaler(private_server.url, "first")
    before = await led_by(store, "first")
    start_scaler(private_server.url, "second")
    first.kill()
    after = await led_by(store, "second")
    assert before.decision
    assert after.decision
    assert before.decision.desired == after.decision.desired == 5


async def test_a_restarted_scaler_goes_on_from_the_published_count(
    store: Store, private_server: ServerProcess, start_scaler: StartScaler
) -> None:
    first = start_scaler(private_server.url, min_workers="4")
    await led_by(store, "first")
    first.kill()
    start_scaler(private_server.url, min_workers="1")

    async def decided_again() -> bool:
        decision = (await store.scale()).decision
        return decision is not None and decision.min == 1

    await wait_until(decided_again, timeout=10)
    decision = (await store.scale()).decision
    assert decision
    assert (decision.desired, decision.reason) == (4, Reason.HOLD_WINDOW)


async def test_a_scaler_starts_before_its_store(
    store: Store, private_server: ServerProcess, start_scaler: StartScaler
) -> None:
    private_server.kill()
    process = start_scaler(private_server.url)
    assert "Opening the store failed" in next_line(process)
    private_server.start()
    await led_by(store, "first")


def test_a_scaler_without_a_store_leaves_when_told_to(start_scaler: StartScaler) -> None:
    process = start_scaler("redis://127.0.0.1:9/0")
    assert "Opening the store failed" in next_line(process)
    process.terminate()
    assert process.wait(3) == 0


def test_a_paused_store_does_not_delay_the_exit(
    private_server: ServerProcess, start_scaler: StartScaler
) -> None:
    process = start_scaler(private_server.url)
    while "leading" not in next_line(process):
        pass
    private_server.pause()
    process.terminate()
    assert process.wait(5) == 0
    private_server.resume()


def test_a_store_that_would_lose_jobs_is_refused_in_one_line(
    start_server: Callable[..., ServerProcess], start_scaler: StartScaler
) -> None:
    process = start_scaler(start_server(maxmemory_policy="allkeys-lru").url)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 2
    assert len(errors.splitlines()) == 1
    assert errors.startswith("scaler: ")


def next_line(process: subprocess.Popen[str]) -> str:
    """The next line that it logs."""
    assert process.stderr
    line = process.stderr.readline()
    assert line, "it ended"
    return line
