"""API records as a person reads them."""

from __future__ import annotations

from collections.abc import Iterable

from rich.markup import escape
from rich.table import Table

from lab.figures import ms
from lab.records import DeadPage, JobPage, JobRecord, RedriveReport, Scale, Stats


def _pairs(rows: Iterable[tuple[str, object]]) -> Table:
    table = Table(show_header=False, box=None, padding=(0, 2))
    for name, value in rows:
        if value is not None:
            table.add_row(f"[dim]{name}[/]", escape(str(value)))
    return table


def job_table(job: JobRecord) -> Table:
    rows: list[tuple[str, object]] = [
        ("job", job.job_id),
        ("status", job.status),
        ("worker", job.worker),
        ("created", f"{job.created_at:%Y-%m-%d %H:%M:%S} UTC"),
    ]
    if job.queue_to_done_ms is not None:
        rows.append(("took", ms(job.queue_to_done_ms)))
    for attempt in job.attempts:
        outcome = attempt.outcome or "running"
        why = f": {attempt.error}" if attempt.error else ""
        rows.append((f"attempt {attempt.n}", f"{outcome} on {attempt.worker}{why}"))
    if job.error:
        rows.append(("error", failure_line(job)))
    if job.result:
        rows.append(("result", job.result.text))
    return _pairs(rows)


def job_lines(page: JobPage) -> list[str]:
    """One job a line, its id first."""
    return [_job_line(job) for job in page.jobs]


def _job_line(job: JobRecord) -> str:
    words = [job.job_id, f"{job.created_at:%Y-%m-%d %H:%M:%S}", f"{job.status:<9}"]
    if job.queue_to_done_ms is not None:
        words.append(ms(job.queue_to_done_ms))
    words += [job.worker] if job.worker else []
    return "  ".join(words).rstrip() + (f"  {job.error.cause}: {job.error.message}" if job.error else "")


def ledger_line(job: JobRecord) -> str:
    """Who ran it, and how that ended."""
    return ", then ".join(f"{attempt.worker}: {attempt.outcome or 'running'}" for attempt in job.attempts)


def failure_line(job: JobRecord) -> str:
    """Why the job has no result."""
    return f"{job.status}: {job.error.cause}: {job.error.message}" if job.error else str(job.status)


def scale_table(scale: Scale) -> Table:
    age = None if scale.age_s is None else f"{scale.age_s:.1f} s"
    rows: list[tuple[str, object]] = [
        ("desired", scale.desired),
        ("live", f"{scale.live}, {scale.active} active, {scale.busy} busy"),
        ("because", scale.reason),
        ("lag", "unknown" if scale.lag is None else scale.lag),
        ("pending", "unknown" if scale.pending is None else scale.pending),
        ("retrying", "unknown" if scale.retrying is None else scale.retrying),
        ("limits", None if scale.min is None else f"{scale.min} to {scale.max}"),
        ("age", f"{age}, stale: all workers are active" if scale.stale else age),
        ("leader", scale.leader),
    ]
    rows += [(f"{change.at:%H:%M:%S}", f"{change.desired} ({change.reason})") for change in scale.history]
    return _pairs(rows)


def stats_table(stats: Stats) -> Table:
    return _pairs((name, getattr(stats, name)) for name in Stats.__slots__)


def dead_lines(page: DeadPage) -> list[str]:
    """One dead job a line, its id first."""
    return [
        f"{job.job_id}  {job.died_at:%Y-%m-%d %H:%M:%S}  {job.cause} after {job.attempts}: {job.error}"
        for job in page.jobs
    ]


def redrive_lines(report: RedriveReport, left: Iterable[str]) -> list[str]:
    """One dead job a line, then the id of the job that repeats it. `left` were named and stay as they are."""
    lines = [f"{job.job_id} -> {job.new_job_id or 'would be queued again'}" for job in report.jobs]
    lines += [f"{job_id}    not queued: its request is gone" for job_id in report.unusable]
    return lines + [f"{job_id}    not queued: no dead job, over the limit, or no room" for job_id in left]
