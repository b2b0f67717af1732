"""Figures of a run, all taken from job records."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lab.records import JobRecord


def percentile(values: Sequence[float], percent: float) -> float | None:
    """Nearest rank; None of nothing."""
    if not values:
        return None
    rank = max(1, math.ceil(len(values) * percent / 100))
    return round(sorted(values)[rank - 1], 1)


def queue_to_done_ms(jobs: Sequence[JobRecord]) -> list[float]:
    """Acceptance to end of every job that has ended."""
    return [ms for job in jobs if (ms := job.queue_to_done_ms) is not None]


def ms(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f} ms"
