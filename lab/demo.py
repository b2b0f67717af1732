"""`iwl demo`: 80 jobs, one worker killed in the middle of them, and an account of every job."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from common.errors import LabError
from lab.client import Api
from lab.conservation import Conservation
from lab.exits import ApiRefused, Exit
from lab.figures import ms, percentile, queue_to_done_ms
from lab.records import JobRecord, Stats
from lab.run import run_lab
from lab.show import ledger_line
from lab.system import Plan, Ready, System

JOBS = 80
WORKERS = 2
#: One job takes this long, so that the kill finds a job in flight; the others take MODEL_MS.
SLOW_MS = 1_000
SLOW_INDEX = 20
MODEL_MS = 5
SUBMITTERS = 8
LOOK_EVERY_S = 0.01
#: A job that has not ended by then counts as lost.
GIVE_UP = timedelta(seconds=60)

#: All that the run depends on, so that nobody's environment changes what it shows. Four slots in all.
SETTINGS = {
    "namespace": "inference",
    "durability": "server",
    "api_keys_file": "",
    "backend": "mock",
    "mock_faults": "1",
    "mock_latency_ms": str(MODEL_MS),
    "worker_concurrency": "2",
    "min_workers": str(WORKERS),
    "claim_idle_ms": "1000",
    "heartbeat_ms": "200",
    "max_attempts": "3",
    "max_queue_depth": "0",
    "result_ttl_s": "3600",
    "idempotency_ttl_s": "3600",
    "job_timeout_ms": "60000",
    "drain_ms": "5000",
}


class Report(msgspec.Struct, frozen=True, kw_only=True):
    accepted: int
    succeeded: int
    failed: int
    #: Accepted, and without an end.
    lost: int
    #: Jobs that a worker was lost with.
    reclaimed: int
    #: Starts of attempts, over all jobs.
    model_calls: int
    p50_ms: float | None
    p95_ms: float | None

    @classmethod
    def of(cls, accepted: int, jobs: list[JobRecord]) -> Report:
        ended = [job for job in jobs if job.ended]
        times = queue_to_done_ms(ended)
        succeeded = sum(job.succeeded for job in ended)
        return cls(
            accepted=accepted,
            succeeded=succeeded,
            failed=len(ended) - succeeded,
            lost=accepted - len(ended),
            reclaimed=sum(job.reclaimed for job in jobs),
            model_calls=sum(len(job.attempts) for job in jobs),
            p50_ms=percentile(times, 50),
            p95_ms=percentile(times, 95),
        )


async def demo(*, as_json: bool) -> Exit:
    """Prints a story, or with `as_json` one object. FAILED when a job was lost or failed."""
    console = Console(quiet=as_json, highlight=False, soft_wrap=True)

    async def show(system: System, ready: Ready) -> Exit:
        console.print(f"One server, one gateway, one scaler, {WORKERS} workers: [bold]{ready.api}[/]")
        async with Api(ready.api) as api:
            report = await _run(console, system, api)
            stats = (await api.stats()).value
        _print_report(console, report, stats)
        if as_json:
            print(msgspec.json.encode(report).decode(), flush=True)
        return Exit.OK if report.succeeded == report.accepted else Exit.FAILED

    def tell(line: str) -> None:
        console.print(f"  {line}", style="dim")

    plan = Plan(port=0, workers=WORKERS, settings=SETTINGS)
    return await run_lab(plan, tell, show, interrupted=Exit.FAILED)


async def _run(console: Console, system: System, api: Api) -> Report:
    columns = (TextColumn("  {task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        done = progress.add_task("jobs done", total=JOBS)
        console.print(f"{JOBS} jobs of {MODEL_MS} ms, one of them of {SLOW_MS} ms, four at a time.")
        slow = asyncio.get_running_loop().create_future()
        kill = asyncio.create_task(_kill_mid_run(console, system, api, slow))
        try:
            ids = await _submit_all(api, slow)
            await kill
        finally:
            kill.cancel()
        jobs = await _wait_all(api, ids, lambda: progress.advance(done))
    for job in jobs:
        if job.reclaimed:
            console.print(f"  job {job.job_id}  {ledger_line(job)}", style="dim")
    return Report.of(len(ids), jobs)


async def _submit_all(api: Api, slow: asyncio.Future[str]) -> list[str]:
    """Ids of the accepted jobs, SUBMITTERS at a time. `slow` becomes the id of the slow one."""
    ids: list[str] = []
    numbers = iter(range(JOBS))

    async def submit_some() -> None:
        for number in numbers:
            params = {"mock": {"latency_ms": SLOW_MS}} if number == SLOW_INDEX else {}
            accepted = await api.submit({"prompt": f"question {number}", "params": params})
            ids.append(accepted.value.job_id)
            if number == SLOW_INDEX:
                slow.set_result(accepted.value.job_id)

    await asyncio.gather(*(submit_some() for _ in range(SUBMITTERS)))
    return ids


async def _kill_mid_run(console: Console, system: System, api: Api, slow: asyncio.Future[str]) -> None:
    """SIGKILL to the worker that is seen running the slow job."""
    job_id = await slow
    while not (job := (await api.job(job_id)).value).ended:
        pid = (await system.pids()).get(job.worker) if job.worker else None
        if job.worker and pid:
            console.print(f"[red]kill -9 {pid}[/]: {job.worker}, in the middle of a job.")
            os.kill(pid, signal.SIGKILL)
            return
        await asyncio.sleep(LOOK_EVERY_S)
    raise LabError(
        "The machine is too slow for the demo: the job in which to kill a worker was over too soon."
    )


async def _wait_all(api: Api, ids: list[str], advance: Callable[[], None]) -> list[JobRecord]:
    """The records of all jobs once they have ended; of what has not ended in time, as it stands."""
    jobs: list[JobRecord] = []

    async def wait(job_id: str) -> None:
        # A job that the API no longer knows is missing from the list, which makes it a lost one.
        with suppress(ApiRefused):
            jobs.append((await api.job(job_id, GIVE_UP)).value)
            advance()

    await asyncio.gather(*(wait(job_id) for job_id in ids))
    return jobs


def _print_report(console: Console, report: Report, stats: Stats) -> None:
    table = Table(show_header=False, box=None, padding=(0, 2))
    for name, value, meaning in (
        ("accepted", report.accepted, "answered with 202"),
        ("succeeded", report.succeeded, "ended with a result, each exactly once"),
        ("failed", report.failed, ""),
        ("lost", report.lost, "accepted, but without an end"),
        ("reclaimed", report.reclaimed, "in the killed worker's hands, run again"),
        ("model calls", report.model_calls, "one per job, and one more per reclaim"),
        ("queue to done p50", ms(report.p50_ms), "acceptance to result"),
        ("queue to done p95", ms(report.p95_ms), "95 of 100 jobs had their result by then"),
    ):
        table.add_row(name, f"[bold]{value}[/]", f"[dim]{meaning}[/]")
    console.print(table)
    console.print(Conservation.of(stats).line)
