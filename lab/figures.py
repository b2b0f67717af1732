"""Figures of a run, all taken from job records."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lab.records import JobRecord


def nearest_rank(values: Sequence[float], percent: int) -> float:
    """The smallest value that so many percent of them do not exceed. Raises IndexError of nothing."""
    return sorted(values)[max(1, math.ceil(len(values) * percent / 100)) - 1]


def percentile(values: Sequence[float], percent: int) -> float | None:
    """Nearest rank, one decimal; None of nothing."""
    return round(nearest_rank(values, percent), 1) if values else None


def queue_to_done_ms(jobs: Sequence[JobRecord]) -> list[float]:
    """Acceptance to end of every job that has ended."""
    return [ms for job in jobs if (ms := job.queue_to_done_ms) is not None]


def ms(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f} ms"
