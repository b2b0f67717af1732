"""`iwl load`: many jobs from many clients at once, and what that took."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from lab.client import Api
from lab.exits import ApiRefused, ApiUnreachable, Exit
from lab.figures import ms, percentile, queue_to_done_ms
from lab.records import JobRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    jobs: int
    #: Clients at once; each submits, waits for the end, and goes on.
    concurrency: int
    prompt: str
    #: The mock model's latency; None leaves it as it is.
    latency_ms: int | None = None

    def body(self) -> dict[str, object]:
        params = {} if self.latency_ms is None else {"mock": {"latency_ms": self.latency_ms}}
        return {"prompt": self.prompt, "params": params}


class LoadReport(msgspec.Struct, frozen=True, kw_only=True):
    jobs: int
    succeeded: int
    failed: int
    seconds: float
    jobs_per_s: float
    #: Acceptance to end, from the job records.
    p50_ms: float | None
    p95_ms: float | None

    @classmethod
    def of(cls, jobs: list[JobRecord], seconds: float) -> LoadReport:
        times = queue_to_done_ms(jobs)
        succeeded = sum(job.succeeded for job in jobs)
        return cls(
            jobs=len(jobs),
            succeeded=succeeded,
            failed=len(jobs) - succeeded,
            seconds=round(seconds, 3),
            jobs_per_s=round(len(jobs) / seconds, 1),
            p50_ms=percentile(times, 50),
            p95_ms=percentile(times, 95),
        )


async def load(api: Api, plan: Load, *, as_json: bool) -> Exit:
    """FAILED when a job did not succeed."""
    console = Console(quiet=as_json, highlight=False)
    with Progress(console=console) as progress:
        task = progress.add_task("jobs done", total=plan.jobs)
        began = time.monotonic()
        jobs = await _run(api, plan, lambda: progress.advance(task))
        report = LoadReport.of(jobs, time.monotonic() - began)
    if as_json:
        print(msgspec.json.encode(report).decode())
    console.print(_table(report))
    return Exit.OK if report.succeeded == plan.jobs else Exit.FAILED


async def _run(api: Api, plan: Load, advance: Callable[[], None]) -> list[JobRecord]:
    jobs: list[JobRecord] = []
    numbers = iter(range(plan.jobs))

    async def client() -> None:
        for _ in numbers:
            accepted = await _submit(api, plan)
            jobs.append((await api.ended(accepted)).value)
            advance()

    await asyncio.gather(*(client() for _ in range(min(plan.concurrency, plan.jobs))))
    return jobs


async def _submit(api: Api, plan: Load) -> str:
    """The job's id, once there was room for it."""
    patience = api.patience()
    while True:
        try:
            return (await api.submit(plan.body())).value.job_id
        except (ApiUnreachable, ApiRefused) as error:
            await patience.after(error)


def _table(report: LoadReport) -> Table:
    table = Table(show_header=False, box=None, padding=(0, 2))
    for name, value in (
        ("jobs", f"{report.jobs} in {report.seconds:.1f} s"),
        ("throughput", f"{report.jobs_per_s:,.1f} jobs/s"),
        ("succeeded", str(report.succeeded)),
        ("failed", str(report.failed)),
        ("queue to done p50", ms(report.p50_ms)),
        ("queue to done p95", ms(report.p95_ms)),
    ):
        table.add_row(name, f"[bold]{value}[/]")
    return table
