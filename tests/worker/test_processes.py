"""Worker processes that are killed, paused, told to leave and set up wrongly."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from urllib.request import urlopen

import pytest

from common.job import Cause, JobStatus, Outcome
from common.settings import Settings
from common.store import Store
from tests.processes import Processes
from tests.requests import submit
from tests.servers import ServerProcess
from tests.waiting import wait_until
from tests.worker.children import Child
from tests.worker.running import ended

pytestmark = [
    pytest.mark.real_server,
    pytest.mark.settings(claim_idle_ms=1_000, retry_backoff_ms=0, retry_backoff_max_ms=0),
]

Spawn = Callable[..., Child]

SLOW = {"mock": {"latency_ms": 60_000}}


def mock(**orders: object) -> dict[str, object]:
    return {"mock": orders}


async def running_at(gateway: Store, job_id: str, worker: str | None = None) -> None:
    async def is_running() -> bool:
        job = await gateway.get(job_id)
        return job.status is JobStatus.RUNNING and worker in (None, job.worker)

    await wait_until(is_running, timeout=10)


async def test_told_to_leave_it_finishes_what_runs(spawn: Spawn, gateway: Store) -> None:
    child = spawn()
    await child.seated(gateway)
    jobs = [await submit(gateway, params=mock(latency_ms=1_500)) for _ in range(4)]

    async def all_begun() -> bool:
        # As it says itself: a claim that crosses the order to leave is given back.
        return [worker.busy for worker in (await gateway.scale()).workers] == [4]

    await wait_until(all_begun)
    child.ask_to_leave()
    assert await child.exit_code() == 0
    for job in jobs:
        record = await gateway.get(job.job_id)
        assert (record.status, len(record.attempts)) == (JobStatus.SUCCEEDED, 1)
    assert (await gateway.scale()).workers == ()


async def test_told_to_leave_it_gives_back_what_it_cannot_finish(spawn: Spawn, gateway: Store) -> None:
    child = spawn(drain_ms=200)
    await child.seated(gateway)
    job = await submit(gateway, params=SLOW)
    await running_at(gateway, job.job_id)
    child.ask_to_leave()
    assert await child.exit_code() == 0
    record = await gateway.get(job.job_id)
    assert record.status is JobStatus.QUEUED
    assert [attempt.outcome for attempt in record.attempts] == [Outcome.RELEASED]


async def test_told_twice_it_leaves_at_once(spawn: Spawn, gateway: Store) -> None:
    child = spawn(drain_ms=60_000)
    await child.seated(gateway)
    job = await submit(gateway, params=SLOW)
    await running_at(gateway, job.job_id)
    child.ask_to_leave()
    await wait_until(lambda: any(line["message"] == "draining" for line in child.lines))
    child.ask_to_leave()
    assert await child.exit_code(timeout=5) == 0
    assert (await gateway.get(job.job_id)).status is JobStatus.QUEUED


async def test_killed_its_jobs_are_taken_over_once(spawn: Spawn, gateway: Store) -> None:
    first = spawn()
    name = await first.seated(gateway)
    jobs = [await submit(gateway, params=mock(fail="hang", fail_attempts=1)) for _ in range(4)]
    for job in jobs:
        await running_at(gateway, job.job_id, name)
    second = spawn()
    await second.seated(gateway)
    first.kill()
    for job in jobs:
        record = await ended(gateway, job.job_id)
        outcomes = [attempt.outcome for attempt in record.attempts]
        assert outcomes == [Outcome.CRASH, Outcome.SUCCEEDED]
    assert (await gateway.depth()).succeeded == 4


async def test_the_same_instance_restarted_goes_on_at_once(
    spawn: Spawn, gateway: Store, processes: Processes
) -> None:
    first = spawn(instance="pod", claim_idle_ms=30_000)
    name = await first.seated(gateway)
    job = await submit(gateway, params=mock(latency_ms=2_000, fail="hang", fail_attempts=1))
    await running_at(gateway, job.job_id, name)
    first.kill()
    spawn(instance="pod", claim_idle_ms=30_000)
    record = await ended(gateway, job.job_id)
    assert (record.status, record.worker) == (JobStatus.SUCCEEDED, name)


async def test_paused_and_overtaken_it_does_not_overwrite(spawn: Spawn, gateway: Store) -> None:
    paused = spawn()
    name = await paused.seated(gateway)
    job = await submit(gateway, params=mock(latency_ms=1_500))
    await running_at(gateway, job.job_id, name)
    paused.pause()
    other = spawn()
    record = await ended(gateway, job.job_id)
    assert [attempt.outcome for attempt in record.attempts] == [Outcome.CRASH, Outcome.SUCCEEDED]
    paused.resume()

    def refused() -> bool:
        return any(
            line["message"] in ("outcome refused, the lease was lost", "lease lost") for line in paused.lines
        )

    await wait_until(refused)
    assert await gateway.get(job.job_id) == record
    later = [await submit(gateway, f"later {n}") for n in range(10)]
    for late in later:
        assert (await ended(gateway, late.job_id)).status is JobStatus.SUCCEEDED
    assert paused.process.poll() is None
    assert other.process.poll() is None


async def test_a_job_that_kills_its_worker_is_bounded(spawn: Spawn, gateway: Store) -> None:
    job = await submit(gateway, "poison", params=mock(fail="exit", latency_ms=0))
    for victim in range(2):
        child = spawn(max_attempts=2, instance=f"victim-{victim}")
        assert await child.exit_code() == 137
    # The third finds the budget spent.
    spawn(max_attempts=2)
    record = await ended(gateway, job.job_id)
    assert record.error
    assert record.error.cause is Cause.CRASH
    assert [attempt.outcome for attempt in record.attempts] == [Outcome.CRASH, Outcome.CRASH]


async def test_an_id_is_held_by_one_worker(spawn: Spawn, gateway: Store) -> None:
    first = spawn(worker_id="worker-7")
    assert await first.seated(gateway) == "worker-7"
    second = spawn(worker_id="worker-7")
    assert await second.exit_code() == 2
    last = second.log.splitlines()[-1]
    assert re.fullmatch(r"worker: .*worker-7.*", last)
    assert first.process.poll() is None


async def test_the_successor_of_a_killed_worker_waits_for_its_id(spawn: Spawn, gateway: Store) -> None:
    first = spawn(worker_id="worker-7")
    await first.seated(gateway)
    first.kill()
    assert await spawn(worker_id="worker-7").seated(gateway) == "worker-7"


async def test_a_failed_attempt_leaves_a_log_line(spawn: Spawn, gateway: Store) -> None:
    child = spawn(max_attempts=1)
    name = await child.seated(gateway)
    job = await submit(gateway, params=mock(fail="error", latency_ms=0))
    await ended(gateway, job.job_id)
    await wait_until(lambda: any(line["message"] == "attempt failed" for line in child.lines))
    (line,) = [line for line in child.lines if line["message"] == "attempt failed"]
    about = {key: line[key] for key in ("job_id", "attempt", "worker", "cause", "then")}
    assert about == {"job_id": job.job_id, "attempt": 1, "worker": name, "cause": "error", "then": "failed"}


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("backend", "no-such"),
        ("backend", "no.such.module:Class"),
        ("backend", "tests.worker.backends:NoBackend"),
        ("claim_idle_ms", "soon"),
        ("redis_url", "http://127.0.0.1"),
        ("vllm_url", "ftp://127.0.0.1"),
        ("vllm_url", "http://ann:pass/word@127.0.0.1"),
    ],
)
async def test_a_wrong_setting_is_one_clear_line(spawn: Spawn, variable: str, value: str) -> None:
    child = spawn(**({"backend": "vllm"} | {variable: value}))
    assert await child.exit_code() == 2
    assert child.log.splitlines()[-1].startswith(f"worker: IWL_{variable.upper()}: ")
    assert "Traceback" not in child.log


async def test_a_store_that_would_lose_jobs_is_refused(
    start_server: Callable[..., ServerProcess], children: Spawn
) -> None:
    server = start_server(maxmemory_policy="allkeys-lru")
    child = children(Settings(redis_url=server.url))
    assert await child.exit_code() == 2
    assert "maxmemory-policy" in child.log.splitlines()[-1]


async def test_a_store_that_is_not_there_yet_is_waited_for(
    private_server: ServerProcess, private: Processes, children: Spawn
) -> None:
    private_server.kill()
    child = children(private.settings())
    await wait_until(lambda: any("trying on" in line["message"] for line in child.lines))
    private_server.start()
    gateway = await private.open()
    job = await submit(gateway)
    assert (await ended(gateway, job.job_id)).status is JobStatus.SUCCEEDED


async def test_told_to_leave_before_the_store_is_there_it_leaves(
    private_server: ServerProcess, private: Processes, children: Spawn
) -> None:
    private_server.kill()
    child = children(private.settings())
    await wait_until(lambda: any("trying on" in line["message"] for line in child.lines))
    child.ask_to_leave()
    assert await child.exit_code(timeout=5) == 0


async def test_a_store_that_restarts_costs_nothing(
    private_server: ServerProcess, private: Processes, children: Spawn
) -> None:
    gateway = await private.open()
    child = children(private.settings())
    await child.seated(gateway)
    job = await submit(gateway, params=mock(latency_ms=2_500))
    await running_at(gateway, job.job_id)
    await asyncio.sleep(1.5)  # The append-only file is flushed once a second.
    private_server.restart()
    record = await ended(gateway, job.job_id)
    assert [attempt.outcome for attempt in record.attempts] == [Outcome.SUCCEEDED]
    again = await submit(gateway, "again")
    assert (await ended(gateway, again.job_id)).status is JobStatus.SUCCEEDED


async def test_a_store_that_hangs_does_not_keep_a_worker_from_leaving(
    private_server: ServerProcess, private: Processes, children: Spawn
) -> None:
    gateway = await private.open()
    child = children(private.settings(), drain_ms=200)
    await child.seated(gateway)
    job = await submit(gateway, params=SLOW)
    await running_at(gateway, job.job_id)
    private_server.pause()
    child.ask_to_leave()
    assert await child.exit_code(timeout=10.2) == 0
    private_server.resume()


async def test_metrics_are_served(spawn: Spawn, gateway: Store, unused_port: int) -> None:
    child = spawn(metrics_port=unused_port)
    await child.seated(gateway)
    await ended(gateway, (await submit(gateway)).job_id)

    def scraped() -> str:
        with urlopen(f"http://127.0.0.1:{unused_port}/metrics") as answer:
            return answer.read().decode()

    async def counted() -> bool:
        return 'iwl_jobs_ended_total{status="succeeded"} 1.0' in await asyncio.to_thread(scraped)

    await wait_until(counted)
    second = spawn(metrics_port=unused_port)
    assert await second.exit_code() == 2
    assert "IWL_METRICS_PORT" in second.log
