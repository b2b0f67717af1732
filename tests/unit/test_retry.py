"""From an error to what becomes of the attempt, as a table."""

from __future__ import annotations

from datetime import timedelta

import pytest

from common.errors import SettingsError
from common.job import Cause
from common.settings import Settings
from common.store import Failed, Lease, Released
from tests.requests import request
from worker.backends.base import BrokenStream, Refused, Unreachable
from worker.retry import (
    LONGEST_MESSAGE,
    LONGEST_RETRY_AFTER,
    Backoff,
    LeaseStale,
    ResultTooLarge,
    settle_error,
)

SECOND = timedelta(seconds=1)

#: Without its jitter, so that delays are known: 1 s, 2 s, 4 s, then 5 s.
BACKOFF = Backoff(base=SECOND, cap=5 * SECOND, jitter=lambda: 1.0)

#: No second try, and a try that is not counted.
NEVER, UNCOUNTED = None, "released"


def lease(attempt: int = 1) -> Lease:
    return Lease(job_id="job", token="token", attempt=attempt, request=request(), receipt="1-0")


TABLE = [
    *((Refused(status, "no"), Cause.PERMANENT, NEVER) for status in (400, 401, 403, 404, 413, 422)),
    *((Refused(status, "no"), Cause.ERROR, SECOND) for status in (408, 409, 429, 500, 502, 504, 599)),
    # Nobody knows what these mean here; the budget bounds them.
    *((Refused(status, "no"), Cause.ERROR, SECOND) for status in (302, 418, 451)),
    (Refused(429, "no", retry_after=7 * SECOND), Cause.ERROR, 8 * SECOND),
    (Refused(500, "no", retry_after=7 * SECOND), Cause.ERROR, 8 * SECOND),
    (Refused(429, "no", retry_after=timedelta(days=9)), Cause.ERROR, LONGEST_RETRY_AFTER + SECOND),
    (Refused(400, "no", retry_after=7 * SECOND), Cause.PERMANENT, NEVER),
    (Unreachable(), UNCOUNTED, None),
    (Refused(503, "no"), UNCOUNTED, None),
    (Refused(503, "no", retry_after=7 * SECOND), UNCOUNTED, None),
    # The model had the request by then, and the request may be what broke it.
    (Refused(503, "no", mid_stream=True), Cause.ERROR, SECOND),
    (Refused(400, "no", mid_stream=True), Cause.PERMANENT, NEVER),
    (BrokenStream(), Cause.ERROR, SECOND),
    (ConnectionResetError(), Cause.ERROR, SECOND),
    (ZeroDivisionError("a bug in a backend"), Cause.ERROR, SECOND),
    (LeaseStale(), Cause.ERROR, SECOND),
    (TimeoutError("too long"), Cause.TIMEOUT, SECOND),
    (ResultTooLarge(), Cause.RESULT_TOO_LARGE, NEVER),
]


@pytest.mark.parametrize(("error", "cause", "retry_in"), TABLE, ids=lambda value: str(value)[:40])
def test_an_error_decides_what_becomes_of_the_attempt(
    error: Exception, cause: str, retry_in: timedelta | None
) -> None:
    outcome = settle_error(lease(), error, BACKOFF)
    if cause == UNCOUNTED:
        assert outcome == Released(lease=lease())
    else:
        assert isinstance(outcome, Failed)
        assert (outcome.error.cause, outcome.retry_in) == (cause, retry_in)


@pytest.mark.parametrize(("attempt", "seconds"), [(0, 1), (1, 1), (2, 2), (3, 4), (4, 5), (99, 5), (5000, 5)])
def test_delays_double_up_to_the_cap(attempt: int, seconds: int) -> None:
    assert BACKOFF.delay(attempt) == timedelta(seconds=seconds)


def test_the_jitter_is_full() -> None:
    backoff = Backoff.of(Settings(retry_backoff_ms=1000, retry_backoff_max_ms=1000))
    delays = [backoff.delay(1) for _ in range(2000)]
    assert timedelta(0) <= min(delays) < 0.05 * SECOND
    assert 0.95 * SECOND < max(delays) < SECOND


def test_no_backoff_is_at_once() -> None:
    backoff = Backoff.of(Settings(retry_backoff_ms=0, retry_backoff_max_ms=0))
    assert backoff.delay(7) == timedelta(0)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (Refused(400, "the context is 4096 tokens"), "HTTP 400: the context is 4096 tokens"),
        (ConnectionResetError(), "ConnectionResetError"),
        (ValueError("bad"), "ValueError: bad"),
        (TimeoutError(), "TimeoutError"),
        (SettingsError("told as it is"), "told as it is"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_the_message_says_what_happened(error: Exception, message: str) -> None:
    outcome = settle_error(lease(), error, BACKOFF)
    assert isinstance(outcome, Failed)
    assert outcome.error.message == message


def test_a_long_message_is_cut() -> None:
    outcome = settle_error(lease(), Refused(400, "x" * 100_000), BACKOFF)
    assert isinstance(outcome, Failed)
    assert len(outcome.error.message) == LONGEST_MESSAGE
