"""`iwl up`: what is killed comes back, what is stopped leaves nothing, and no job is lost meanwhile."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from common.job import Outcome
from lab.ports import free_port
from lab.resp import command
from lab.server import HOST
from tests.e2e.labs import RunningLab, alive, all_gone, children_of, entries, running, start
from tests.servers import ServerProcess
from tests.waiting import wait_until

pytestmark = pytest.mark.server

StartLab = Callable[..., RunningLab]


async def test_the_announced_processes_are_all_there_are(start_lab: StartLab) -> None:
    lab = start_lab("--workers", "3")
    assert set(lab.pids) == {"redis", "api", "scaler", "worker-1", "worker-2", "worker-3"}
    assert set(lab.pids.values()) == children_of(lab.process.pid)


async def test_a_killed_worker_comes_back_and_its_job_ends_once(start_lab: StartLab) -> None:
    lab = start_lab(claim_idle_ms="30000")
    async with lab.client() as api:
        job = await running(api, prompt="hello", params={"mock": {"latency_ms": 1000}})
        assert job.worker
        lab.kill(job.worker)
        ended = (await api.ended(job.job_id)).value
        assert [attempt.outcome for attempt in ended.attempts] == [Outcome.CRASH, Outcome.SUCCEEDED]
        stats = (await api.stats()).value
        assert (stats.submitted, stats.succeeded, stats.unaccounted) == (1, 1, 0)
        # Long before its lease would have run out: the slot was taken back by the same instance.
        assert ended.queue_to_done_ms is not None
        assert ended.queue_to_done_ms < 15_000


async def test_names_in_job_records_are_the_names_of_the_processes(start_lab: StartLab) -> None:
    lab = start_lab("--workers", "2", worker_concurrency="1", min_workers="2")
    async with lab.client() as api:
        slow = {"mock": {"latency_ms": 1500}}
        jobs = await asyncio.gather(*(running(api, prompt=text, params=slow) for text in ("a", "b")))
        assert {job.worker for job in jobs} == {"worker-1", "worker-2"}
        lab.kill("worker-2")
        ended = {job.worker: (await api.ended(job.job_id)).value for job in jobs}
    assert not ended["worker-1"].reclaimed
    assert ended["worker-2"].reclaimed


async def test_jobs_survive_a_killed_server(start_lab: StartLab) -> None:
    lab = start_lab(min_workers="2")
    async with lab.client() as api:
        body = {"prompt": "hello", "params": {"mock": {"latency_ms": 300}}}
        ids = [(await api.submit(body)).value.job_id for _ in range(20)]
        lab.kill("redis")
        assert all([(await api.ended(job_id)).value.succeeded for job_id in ids])
        stats = (await api.stats()).value
        assert (stats.submitted, stats.succeeded, stats.unaccounted) == (20, 20, 0)


async def test_a_killed_gateway_and_a_killed_scaler_come_back(start_lab: StartLab) -> None:
    lab = start_lab("--workers", "1")
    lab.kill("api")
    lab.kill("scaler")
    async with lab.client() as api:
        await wait_until(api.ready, timeout=10)
        await api.submit({"prompt": "hello"})
        await wait_until(lambda: len(children_of(lab.process.pid) - set(lab.pids.values())) == 2, 15)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
async def test_a_stop_leaves_no_process_and_no_file(
    start_lab: StartLab, tmp_path: Path, signum: signal.Signals
) -> None:
    lab = start_lab("--workers", "1")
    async with lab.client() as api:
        await running(api, prompt="hello", params={"mock": {"latency_ms": 500}})
    assert entries(tmp_path)
    began = time.monotonic()
    assert lab.stop(signum) == 0
    assert time.monotonic() - began < 10
    assert not [name for name, pid in lab.pids.items() if alive(pid)]
    assert not entries(tmp_path)


async def test_a_stop_in_the_middle_of_the_start_leaves_nothing_either(tmp_path: Path) -> None:
    process = start("up", "--json", "--port", "0", temporary=tmp_path)
    await wait_until(lambda: list(tmp_path.glob("*/scaler.log")), timeout=10)
    process.terminate()
    output, _ = process.communicate(timeout=20)
    assert (process.returncode, output) == (0, "")
    assert not entries(tmp_path)


async def test_a_stream_goes_on_over_a_killed_gateway(start_lab: StartLab) -> None:
    lab = start_lab("--workers", "1")
    async with lab.client() as api:
        params = {"mock": {"latency_ms": 1500, "tokens": 30}}
        job_id = (await api.submit({"prompt": "a", "stream": True, "params": params})).value.job_id
        chunks: list[str] = []
        async for event in api.events(job_id):
            if event.kind == "chunk":
                chunks.append(event.data.text or "")
            if len(chunks) == 3:
                lab.kill("api")
        job = (await api.ended(job_id)).value
    assert job.result
    assert "".join(chunks) == job.result.text


async def test_a_stop_ends_a_job_that_hangs_within_the_drain_time(start_lab: StartLab) -> None:
    lab = start_lab("--workers", "1", drain_ms="500")
    async with lab.client() as api:
        await running(api, prompt="hello", params={"mock": {"fail": "hang"}})
    began = time.monotonic()
    assert lab.stop() == 0
    assert time.monotonic() - began < 10.5


async def test_a_killed_lab_leaves_no_process_and_its_folder_holds_the_jobs(
    start_lab: StartLab, tmp_path: Path
) -> None:
    lab = start_lab("--workers", "1", "--data", str(tmp_path / "data"))
    async with lab.client() as api:
        job = await running(api, prompt="hello", params={"mock": {"latency_ms": 2000}})
    os.kill(lab.process.pid, signal.SIGKILL)
    await all_gone(lab.pids.values())
    again = start_lab("--workers", "1", "--data", str(tmp_path / "data"))
    async with again.client() as api:
        ended = (await api.ended(job.job_id)).value
    assert [attempt.outcome for attempt in ended.attempts] == [Outcome.CRASH, Outcome.SUCCEEDED]


async def test_a_folder_serves_one_lab_at_a_time(start_lab: StartLab, tmp_path: Path) -> None:
    start_lab("--data", str(tmp_path / "data"), "--workers", "1")
    second = start("up", "--port", "0", "--data", str(tmp_path / "data"), temporary=tmp_path)
    _, errors = second.communicate(timeout=20)
    assert (second.returncode, errors) == (2, f"iwl: --data: another lab is using {tmp_path / 'data'}\n")


async def test_a_server_of_the_users_own_is_used_and_left_alone(
    start_lab: StartLab, private_server: ServerProcess
) -> None:
    lab = start_lab("--redis-url", private_server.url, "--workers", "1")
    assert set(lab.pids) == {"api", "scaler", "worker-1"}
    async with lab.client() as api:
        job_id = (await api.submit({"prompt": "hello"})).value.job_id
        assert (await api.ended(job_id)).value.succeeded
    assert lab.stop() == 0
    assert alive(private_server.pid)


def test_a_busy_port_is_said_before_anything_starts(shared_lab: RunningLab, tmp_path: Path) -> None:
    port = shared_lab.ready.api.rpartition(":")[2]
    process = start("up", "--port", port, temporary=tmp_path)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 2
    assert errors == f"iwl: Port {port} is in use: choose another with --port (0 picks a free one).\n"
    assert not entries(tmp_path)


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"min_workers": "9"}, "IWL_MIN_WORKERS: must be at most IWL_MAX_WORKERS"),
        ({"durability": "replica"}, "IWL_DURABILITY=replica: the embedded server has none"),
        ({"host": "192.0.2.1"}, "IWL_HOST: 192.0.2.1 is not an address of this machine"),
        ({"backend": "no.such:Backend"}, "IWL_BACKEND"),
    ],
    ids=["seen by the lab", "of the embedded server", "of another machine", "seen by a child"],
)
def test_settings_that_cannot_work_stop_everything(
    tmp_path: Path, settings: dict[str, str], line: str
) -> None:
    process = start("up", "--json", "--port", "0", temporary=tmp_path, **settings)
    output, errors = process.communicate(timeout=30)
    assert (process.returncode, output) == (2, "")
    assert line in errors.splitlines()[-1]
    assert not entries(tmp_path)


def test_settings_that_the_lab_makes_itself_are_told(tmp_path: Path) -> None:
    process = start("up", "--json", "--port", "0", temporary=tmp_path, max_workers="5", metrics_port="9")
    lab = RunningLab(process)
    process.terminate()
    _, errors = process.communicate(timeout=30)
    assert lab.process.returncode == 0
    assert errors.splitlines()[0] == (
        "iwl: not used by `iwl up`, which sets it itself: IWL_MAX_WORKERS, IWL_METRICS_PORT"
    )


async def test_a_lab_whose_jobs_must_be_on_disk_has_a_server_that_syncs_each_write(
    start_lab: StartLab,
) -> None:
    lab = start_lab("--workers", "1", durability="aof")
    assert await command(HOST, urlsplit(lab.ready.redis).port or 0, "CONFIG", "GET", "appendfsync") == [
        "appendfsync",
        "always",
    ]
    async with lab.client() as api:
        accepted = (await api.submit({"prompt": "safe?"})).value
        assert (await api.ended(accepted.job_id)).value.succeeded


def test_port_and_server_come_from_the_environment_too(tmp_path: Path, private_server: ServerProcess) -> None:
    port = str(free_port())
    process = start("up", "--json", temporary=tmp_path, port=port, redis_url=private_server.url)
    lab = RunningLab(process)
    assert lab.stop() == 0
    assert lab.ready.api == f"http://127.0.0.1:{port}"
    assert "redis" not in lab.pids


async def test_a_stop_says_what_it_waits_for_and_a_second_one_restarts_nothing(
    start_lab: StartLab,
) -> None:
    lab = start_lab("--workers", "1", drain_ms="15000")
    async with lab.client() as api:
        await running(api, prompt="hello", params={"mock": {"fail": "hang"}})
    told = lab.process.stderr
    assert told
    lab.process.send_signal(signal.SIGINT)
    assert told.readline() == "stopping; once more to kill\n"
    assert told.readline() == "draining 1 job, up to 15 s\n"
    lab.process.send_signal(signal.SIGINT)
    _, rest = lab.process.communicate(timeout=10)
    assert (lab.process.returncode, rest) == (0, "stopped\n")


def test_a_new_pid_is_told_without_a_terminal(start_lab: StartLab) -> None:
    lab = start_lab("--workers", "1")
    lab.kill("worker-1")
    told = lab.process.stderr
    assert told
    assert told.readline() == "worker-1 was killed (SIGKILL); restarting it\n"
    again = told.readline()
    assert again.startswith("worker-1 runs again, pid ")
    assert int(again.split()[-1]) in children_of(lab.process.pid)
