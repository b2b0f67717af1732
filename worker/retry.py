"""From an error to what becomes of the attempt: again later, never again, or not counted. Pure."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from common.errors import LabError
from common.job import Cause, JobError
from common.settings import Settings
from common.store import Failed, Lease, Released, Settlement
from worker.backends.base import Refused, Unreachable

#: The request itself is at fault; the same request would be refused again.
PERMANENT = frozenset({400, 401, 403, 404, 413, 422})

#: The gateway tells its clients no longer wait either.
LONGEST_RETRY_AFTER = timedelta(seconds=300)

#: An engine may repeat the whole prompt in its message; the ledger keeps each attempt's.
LONGEST_MESSAGE = 1000


class ResultTooLarge(LabError):
    """The result is larger than IWL_MAX_RESULT_BYTES allows."""


class LeaseStale(LabError):
    """The lease could not be renewed for as long as it lasts."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential, with full jitter: between nothing and base * 2^(attempt - 1), capped."""

    base: timedelta
    cap: timedelta
    #: Uniform in [0, 1).
    jitter: Callable[[], float] = random.random

    @classmethod
    def of(cls, settings: Settings) -> Backoff:
        return cls(
            settings.retry_backoff,
            timedelta(milliseconds=settings.retry_backoff_max_ms),
        )

    def delay(self, attempt: int) -> timedelta:
        # Past 2^63 times the base any cap has long been reached, and timedelta would overflow.
        steps = min(max(attempt - 1, 0), 63)
        longest = min(self.cap.total_seconds(), self.base.total_seconds() * 2**steps)
        return timedelta(seconds=longest * self.jitter())


def settle_error(lease: Lease, error: Exception, backoff: Backoff) -> Settlement:
    """What to tell the store about an attempt that ended with this error."""
    match error:
        case Unreachable():
            return Released(lease=lease)
        case Refused(status=503, mid_stream=False):
            return Released(lease=lease)
        case Refused(status=int(status)) if status in PERMANENT:
            return _failed(lease, Cause.PERMANENT, error, None)
        case Refused(retry_after=timedelta() as after):
            # A delay below nothing would mean never.
            delay = max(timedelta(0), min(after, LONGEST_RETRY_AFTER)) + backoff.delay(lease.attempt)
            return _failed(lease, Cause.ERROR, error, delay)
        case ResultTooLarge():
            return _failed(lease, Cause.RESULT_TOO_LARGE, error, None)
        case TimeoutError():
            return _failed(lease, Cause.TIMEOUT, error, backoff.delay(lease.attempt))
        case _:
            return _failed(lease, Cause.ERROR, error, backoff.delay(lease.attempt))


def _failed(lease: Lease, cause: Cause, error: Exception, retry_in: timedelta | None) -> Failed:
    return Failed(lease=lease, error=JobError(cause=cause, message=_message(error)), retry_in=retry_in)


def _message(error: Exception) -> str:
    """Foreign exceptions are named, since many of them say nothing else."""
    try:
        text = str(error)
    except Exception:
        text = "its own text cannot be read"
    if not isinstance(error, LabError | TimeoutError) or not text:
        text = f"{type(error).__name__}: {text}".removesuffix(": ")
    # A lone surrogate, as file names and broken JSON bring them, cannot be stored.
    text = text.encode(errors="backslashreplace").decode()
    return text if len(text) <= LONGEST_MESSAGE else text[: LONGEST_MESSAGE - 1] + "…"
