"""A run of faults as a person reads it: a table of many, or the story of one."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.spinner import Spinner
from rich.table import Table

from lab.faults.fault import Fault, Observation
from lab.faults.report import Report, Row
from lab.faults.run import Audience, run_faults
from lab.records import AttemptRecord, JobRecord

#: Where the output goes to no terminal: every fault on one line.
WIDTH = 120
TEXT_WIDTH = 100
JOBS_SHOWN = 3


async def show_table(console: Console, faults: Sequence[Fault]) -> Report | None:
    """One line a fault, as they end."""
    table = Table(box=None, padding=(0, 1), pad_edge=False, header_style="dim")
    for name in ("", "fault", "expected", "observed"):
        table.add_column(name)
    for name in ("recovery", "lost", "twice"):
        table.add_column(name, justify="right")
    spinner = Spinner("dots", "starting")
    wrong: list[tuple[Row, Observation]] = []
    with Live(Group(table, spinner), console=console, transient=True):

        def ended(_: Fault, observation: Observation, row: Row) -> None:
            table.add_row(*_cells(row))
            if not row.good:
                wrong.append((row, observation))

        report = await run_faults(
            faults, Audience(begins=lambda fault: spinner.update(text=fault.title), step=_ignore, ended=ended)
        )
    console.print(table)
    for row, observation in wrong:
        console.print(f"[red]{row.fault}[/] {row.title}")
        for job in observation.jobs:
            _print_ledger(console, job)
    if report:
        console.print(_ending(report))
    return report


async def show_story(console: Console, fault: Fault) -> Report | None:
    """Step by step: what is done, what was promised, what the ledgers say."""
    console.print(f"[bold]{fault.name}[/]: {fault.title}\n")

    def step(line: str) -> None:
        console.print(f"  {escape(line)}")

    def ended(_: Fault, observation: Observation, row: Row) -> None:
        console.print()
        for name, text in (
            ("promise", fault.promise),
            ("expected", fault.expected),
            ("observed", f"{row.observed} ({'as expected' if row.as_expected else 'NOT as expected'})"),
            ("recovery", _seconds(row.recovery_s)),
            ("accepted", f"{row.jobs} jobs: {row.lost} lost, {row.duplicates} with an effect twice"),
        ):
            _print_field(console, name, text)
        for job in observation.jobs[:JOBS_SHOWN]:
            _print_ledger(console, job)
        console.print()

    report = await run_faults([fault], Audience(begins=_ignore, step=step, ended=ended))
    if report:
        console.print(_ending(report))
    return report


async def show_nothing(faults: Sequence[Fault]) -> Report | None:
    return await run_faults(faults, Audience(begins=_ignore, step=_ignore, ended=_ignore))


def list_lines(faults: Iterable[Fault]) -> list[str]:
    return [f"{fault.name:<22}{fault.title}" for fault in faults]


def _ignore(*_: object) -> None:
    pass


def _cells(row: Row) -> tuple[str, ...]:
    return (
        "[green]ok[/]" if row.good else "[red]NO[/]",
        f"[bold]{row.fault}[/]",
        escape(row.expected),
        escape(row.observed),
        _seconds(row.recovery_s),
        str(row.lost),
        str(row.duplicates),
    )


def _seconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.2f} s"


def _ending(report: Report) -> str:
    good = sum(row.good for row in report.faults)
    promised = f"{good} of {len(report.faults)} as promised, in {report.seconds:.0f} s"
    return f"{promised}\n{report.conservation.line}"


def _print_field(console: Console, name: str, text: str) -> None:
    first, *rest = textwrap.wrap(text, TEXT_WIDTH - 12)
    console.print(f"  [dim]{name:<10}[/]{escape(first)}")
    for line in rest:
        console.print(f"  {'':<10}{escape(line)}")


def _print_ledger(console: Console, job: JobRecord) -> None:
    end = f"{job.status}, cause {job.error.cause}" if job.error else str(job.status)
    console.print(f"  [dim]{'ledger':<10}[/]job {job.job_id}: {end}")
    for attempt in job.attempts:
        console.print(f"  {'':<10}{_attempt_line(attempt)}")


def _attempt_line(attempt: AttemptRecord) -> str:
    begun = f"{attempt.started_at:%H:%M:%S.%f}"[:-3]
    took = (
        f"{(attempt.ended_at - attempt.started_at).total_seconds():.2f} s" if attempt.ended_at else "running"
    )
    why = f": {escape(attempt.error)}" if attempt.error else ""
    return f"attempt {attempt.n}  {begun}  {took:>7}  {attempt.worker}  {attempt.outcome or 'running'}{why}"
