"""How fast the queue drains, from samples of the store's counts and clock. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import ceil

from common.fleet import Backlog

WINDOW = timedelta(seconds=60)
#: What a refused client is told while nothing drains.
RETRY_AFTER_UNKNOWN_S = 30
RETRY_AFTER_MIN_S = 1
RETRY_AFTER_MAX_S = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class _Span:
    """The time between two samples in which there was work, and the jobs that ended in it."""

    until: datetime
    seconds: float
    ended: int


def rough(value: float) -> float:
    """Three digits: what follows them in an estimate is noise."""
    return float(f"{value:.3g}")


class DrainRate:
    """Jobs ended per second of the time in which there was work, over the last minute."""

    def __init__(self, window: timedelta = WINDOW) -> None:
        self._window = window
        self._last: Backlog | None = None
        self._spans: deque[_Span] = deque()

    def sample(self, now: Backlog) -> None:
        last, self._last = self._last, now
        if last is None:
            return
        if now.at <= last.at or now.ended < last.ended:
            # Flushed, or failed over to a server with another clock or an older state.
            self._spans.clear()
            return
        ended = now.ended - last.ended
        if ended or last.unfinished:
            seconds = (now.at - last.at).total_seconds()
            self._spans.append(_Span(until=now.at, seconds=seconds, ended=ended))
        while self._spans and self._spans[0].until <= now.at - self._window:
            self._spans.popleft()

    @property
    def per_second(self) -> float | None:
        """None before there were two samples; 0 when nothing ended in the window."""
        if not self._spans:
            return None if self._last is None else 0.0
        return sum(span.ended for span in self._spans) / sum(span.seconds for span in self._spans)

    def eta_s(self, position: int | None) -> float | None:
        """Seconds until a job with `position` others ahead of it has ended, or None when nobody can say."""
        rate = self.per_second
        if position is None or not rate:
            return None
        return rough((position + 1) / rate)

    def retry_after_s(self, excess: int) -> int:
        """Seconds until `excess` jobs have ended."""
        rate = self.per_second
        if not rate:
            return RETRY_AFTER_UNKNOWN_S
        return min(max(ceil(excess / rate), RETRY_AFTER_MIN_S), RETRY_AFTER_MAX_S)
