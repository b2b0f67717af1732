from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.drain import WINDOW, DrainRate, rough
from common.fleet import Backlog

START = datetime(2026, 1, 1, tzinfo=UTC)


def backlog(second: float, *, ended: int, queued: int = 1) -> Backlog:
    return Backlog(
        at=START + timedelta(seconds=second),
        submitted=ended + queued,
        awaiting_upload=0,
        queued=queued,
        running=0,
        retrying=0,
        succeeded=ended,
        failed=0,
        cancelled=0,
        expired=0,
        dead_letters=0,
        lag=queued,
        pending=0,
    )


def rate_of(*samples: Backlog) -> DrainRate:
    rate = DrainRate()
    for sample in samples:
        rate.sample(sample)
    return rate


def test_nothing_is_known_before_the_first_sample() -> None:
    assert DrainRate().per_second is None


def test_jobs_ended_per_second() -> None:
    rate = rate_of(backlog(0, ended=10), backlog(1, ended=30), backlog(2, ended=50))
    assert rate.per_second == pytest.approx(20)


def test_idle_time_does_not_slow_the_rate() -> None:
    idle = [backlog(second, ended=0, queued=0) for second in range(50)]
    rate = rate_of(*idle, backlog(50, ended=0, queued=100), backlog(51, ended=40), backlog(52, ended=80))
    assert rate.per_second == pytest.approx(40)


def test_a_queue_that_stands_still_has_no_rate() -> None:
    rate = rate_of(*(backlog(second, ended=5) for second in range(70)))
    assert rate.per_second == 0
    assert rate.eta_s(0) is None
    assert rate.retry_after_s(1) == 30


def test_what_is_older_than_the_window_is_forgotten() -> None:
    rate = rate_of(backlog(0, ended=0), backlog(1, ended=1000))
    late = 1 + WINDOW.total_seconds()
    rate.sample(backlog(late, ended=1000))
    rate.sample(backlog(late + 1, ended=1000))
    assert rate.per_second == 0


@pytest.mark.parametrize(
    "restart", [backlog(2, ended=0), backlog(0.5, ended=60)], ids=["flushed", "another clock"]
)
def test_a_store_that_starts_over_starts_the_rate_over(restart: Backlog) -> None:
    rate = rate_of(backlog(0, ended=0), backlog(1, ended=50), restart)
    assert rate.per_second == 0


def test_the_last_in_line_waits_for_all_before_it() -> None:
    rate = rate_of(backlog(0, ended=0), backlog(1, ended=4))
    assert rate.eta_s(0) == pytest.approx(0.25)
    assert rate.eta_s(7) == pytest.approx(2)
    assert rate.eta_s(None) is None


def test_retry_after_is_the_time_the_excess_takes() -> None:
    rate = rate_of(backlog(0, ended=0), backlog(1, ended=2))
    assert [rate.retry_after_s(excess) for excess in (1, 2, 21, 10_000)] == [1, 1, 11, 300]


@pytest.mark.parametrize(("value", "shown"), [(12.3456, 12.3), (0.000123456, 0.000123), (98765.4, 98800)])
def test_an_estimate_has_three_digits(value: float, shown: float) -> None:
    assert rough(value) == shown


@given(st.lists(st.tuples(st.floats(-5, 90), st.integers(0, 10**9), st.integers(0, 10)), max_size=30))
def test_whatever_the_store_says_retry_after_stays_in_bounds(samples: list[tuple[float, int, int]]) -> None:
    rate = rate_of(*(backlog(at, ended=ended, queued=queued) for at, ended, queued in samples))
    assert 1 <= rate.retry_after_s(1) <= 300
    assert (rate.per_second or 0) >= 0
