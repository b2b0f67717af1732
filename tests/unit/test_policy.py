"""The scaling policy: a table of single decisions, then what holds over any run of them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.fleet import Decision, Reason
from common.settings import Settings
from scaler.policy import Limits, Memory, Observation, decide

WINDOW = timedelta(seconds=10)
LIMITS = Limits(min=1, max=8, concurrency=4, up_lag=1, down_lag=0, window=WINDOW)
TO_ZERO = Limits(min=0, max=8, concurrency=4, up_lag=5, down_lag=2, window=WINDOW)
UNKNOWN = Observation(lag=None, pending=None, retrying=None)


def seen(lag: int | None = 0, pending: int | None = 0, retrying: int | None = 0) -> Observation:
    return Observation(lag=lag, pending=pending, retrying=retrying)


def seconds(count: float) -> timedelta:
    return timedelta(seconds=count)


@pytest.mark.parametrize(
    ("limits", "last", "observation", "desired", "reason"),
    [
        pytest.param(LIMITS, None, seen(), 1, Reason.START, id="first decision of an idle fleet is min"),
        pytest.param(LIMITS, None, seen(lag=9), 3, Reason.START, id="first decision follows the backlog"),
        pytest.param(TO_ZERO, None, seen(), 0, Reason.START, id="a fleet may start at zero"),
        pytest.param(LIMITS, 1, seen(lag=5), 2, Reason.BACKLOG_UP, id="lag alone scales up"),
        pytest.param(LIMITS, 1, seen(pending=5), 2, Reason.BACKLOG_UP, id="pending alone scales up"),
        pytest.param(LIMITS, 1, seen(lag=1, pending=3), 1, Reason.STEADY, id="work that fits is no reason"),
        pytest.param(LIMITS, 1, seen(lag=900), 8, Reason.BACKLOG_UP, id="max is the limit"),
        pytest.param(LIMITS, 1, seen(lag=1, retrying=8), 3, Reason.BACKLOG_UP, id="retries count with lag"),
        pytest.param(LIMITS, 1, seen(retrying=8), 1, Reason.STEADY, id="waiting retries need nobody yet"),
        pytest.param(TO_ZERO, 1, seen(lag=4, pending=4), 1, Reason.STEADY, id="lag below the threshold"),
        pytest.param(TO_ZERO, 1, seen(lag=5), 2, Reason.BACKLOG_UP, id="lag at the threshold"),
        pytest.param(TO_ZERO, 0, seen(lag=1), 1, Reason.WAKE, id="one job wakes a fleet at zero"),
        pytest.param(TO_ZERO, 0, seen(retrying=1), 1, Reason.WAKE, id="a waiting retry wakes it too"),
        pytest.param(TO_ZERO, 0, seen(pending=1), 1, Reason.WAKE, id="work stranded in flight wakes it too"),
        pytest.param(TO_ZERO, 0, seen(pending=9), 3, Reason.WAKE, id="as much of it as there is"),
        pytest.param(TO_ZERO, 0, seen(lag=20), 5, Reason.WAKE, id="waking meets the whole backlog"),
        pytest.param(TO_ZERO, 0, seen(), 0, Reason.STEADY, id="zero stays zero without work"),
        pytest.param(LIMITS, 4, seen(pending=1), 4, Reason.HOLD_BUSY, id="one job in flight holds all"),
        pytest.param(LIMITS, 4, seen(lag=1), 4, Reason.HOLD_BUSY, id="lag above the threshold holds all"),
        pytest.param(TO_ZERO, 4, seen(lag=2), 4, Reason.HOLD_WINDOW, id="lag at the threshold is quiet"),
        pytest.param(LIMITS, 4, seen(), 4, Reason.HOLD_WINDOW, id="quiet must last"),
        pytest.param(LIMITS, 9, seen(), 8, Reason.CLAMPED, id="a lower max applies at once"),
        pytest.param(LIMITS, 0, seen(), 1, Reason.CLAMPED, id="a higher min applies at once"),
        pytest.param(LIMITS, 3, UNKNOWN, 3, Reason.UNKNOWN_INPUT, id="unknown holds"),
        pytest.param(LIMITS, 3, seen(lag=None), 3, Reason.UNKNOWN_INPUT, id="unknown lag holds"),
        pytest.param(LIMITS, 3, seen(90, None), 3, Reason.UNKNOWN_INPUT, id="unknown pending holds"),
        pytest.param(LIMITS, 9, UNKNOWN, 8, Reason.UNKNOWN_INPUT, id="limits hold for the unknown too"),
        pytest.param(LIMITS, None, UNKNOWN, 8, Reason.UNKNOWN_INPUT, id="nothing ever known runs in full"),
    ],
)
def test_one_decision(
    limits: Limits, last: int | None, observation: Observation, desired: int, reason: Reason
) -> None:
    decision, _ = decide(observation, limits, Memory(desired=last), seconds(0))
    assert (decision.desired, decision.reason) == (desired, reason)
    assert (decision.lag, decision.pending, decision.retrying) == (
        observation.lag,
        observation.pending,
        observation.retrying,
    )
    assert (decision.min, decision.max) == (limits.min, limits.max)


def run(
    steps: Sequence[tuple[float, Observation]], limits: Limits = LIMITS, last: int | None = 4
) -> list[Decision]:
    """The decisions for observations at the given seconds."""
    memory, decisions = Memory(desired=last), list[Decision]()
    for at, observation in steps:
        decision, memory = decide(observation, limits, memory, seconds(at))
        decisions.append(decision)
    return decisions


def reasons(steps: Sequence[tuple[float, Observation]], limits: Limits = LIMITS) -> list[Reason]:
    return [decision.reason for decision in run(steps, limits)]


def test_down_comes_after_exactly_one_quiet_window() -> None:
    decisions = run([(0, seen()), (9.9, seen()), (10, seen()), (11, seen())])
    assert [decision.desired for decision in decisions] == [4, 4, 1, 1]
    assert decisions[2].reason is Reason.SCALE_DOWN


def test_work_in_the_window_restarts_it() -> None:
    steps = [(0, seen()), (9, seen(pending=1)), (10, seen()), (19, seen()), (20, seen())]
    assert reasons(steps) == [
        Reason.HOLD_WINDOW,
        Reason.HOLD_BUSY,
        Reason.HOLD_WINDOW,
        Reason.HOLD_WINDOW,
        Reason.SCALE_DOWN,
    ]


def test_an_unknown_input_restarts_the_window() -> None:
    steps = [(0, seen()), (9, UNKNOWN), (10, seen()), (19.9, seen()), (20, seen())]
    assert reasons(steps) == [
        Reason.HOLD_WINDOW,
        Reason.UNKNOWN_INPUT,
        Reason.HOLD_WINDOW,
        Reason.HOLD_WINDOW,
        Reason.SCALE_DOWN,
    ]


def test_an_unknown_input_is_marked_as_not_observed() -> None:
    assert [decision.observed for decision in run([(0, seen()), (1, UNKNOWN)])] == [True, False]


def test_the_first_known_input_after_nothing_but_unknowns_is_a_start() -> None:
    decisions = run([(0, UNKNOWN), (1, seen(lag=5))], last=None)
    assert [(decision.desired, decision.reason) for decision in decisions] == [
        (8, Reason.UNKNOWN_INPUT),
        (2, Reason.START),
    ]


def test_a_waiting_retry_keeps_the_fleet_from_zero() -> None:
    decisions = run([(0, seen(retrying=1)), (10, seen(retrying=1)), (40, seen(retrying=1))], TO_ZERO)
    assert [decision.desired for decision in decisions] == [4, 1, 1]


def test_a_quiet_fleet_goes_to_zero() -> None:
    assert [decision.desired for decision in run([(0, seen()), (10, seen())], TO_ZERO)] == [4, 0]


def test_lag_below_the_down_threshold_keeps_the_fleet_from_zero() -> None:
    assert [decision.desired for decision in run([(0, seen(lag=1)), (10, seen(lag=1))], TO_ZERO)] == [4, 1]


def test_limits_come_from_the_settings() -> None:
    assert Limits.of(Settings(scale_down_window_ms=1500, scale_up_lag=3, min_workers=0)) == Limits(
        min=0, max=8, concurrency=4, up_lag=3, down_lag=0, window=timedelta(milliseconds=1500)
    )


# ---------------------------------------------------------------- over any run of observations

counts = st.integers(0, 60)
maybe = st.one_of(st.none(), counts)
observations = st.builds(Observation, lag=maybe, pending=maybe, retrying=maybe)
known = st.builds(Observation, lag=counts, pending=counts, retrying=counts)
steps = st.lists(st.tuples(st.floats(0, 8), observations), min_size=1, max_size=30)


@st.composite
def limits(draw: st.DrawFn) -> Limits:
    low = draw(st.integers(0, 6))
    return Limits(
        min=low,
        max=draw(st.integers(max(low, 1), 12)),
        concurrency=draw(st.integers(1, 8)),
        up_lag=draw(st.integers(1, 10)),
        down_lag=draw(st.integers(0, 10)),
        window=WINDOW,
    )


def accumulate(deltas: Sequence[tuple[float, Observation]]) -> list[tuple[float, Observation]]:
    at, out = 0.0, list[tuple[float, Observation]]()
    for delta, observation in deltas:
        at += delta
        out.append((at, observation))
    return out


@given(deltas=steps, limits=limits(), last=st.one_of(st.none(), st.integers(0, 20)))
def test_desired_is_always_within_the_limits(
    deltas: Sequence[tuple[float, Observation]], limits: Limits, last: int | None
) -> None:
    assert all(limits.min <= d.desired <= limits.max for d in run(accumulate(deltas), limits, last))


@given(deltas=steps, limits=limits())
def test_it_shrinks_only_after_a_whole_window_of_known_quiet(
    deltas: Sequence[tuple[float, Observation]], limits: Limits
) -> None:
    timeline = accumulate(deltas)
    decisions = run(timeline, limits, limits.max)
    last = limits.max
    for index, decision in enumerate(decisions):
        if decision.desired < last:
            now = timeline[index][0]
            recent = [seen for at, seen in timeline[: index + 1] if at > now - WINDOW.total_seconds()]
            assert now - timeline[0][0] >= WINDOW.total_seconds()
            assert all(o.pending == 0 and o.lag is not None and o.lag <= limits.down_lag for o in recent)
        last = decision.desired


@given(deltas=steps, limits=limits())
def test_it_never_sleeps_on_work(deltas: Sequence[tuple[float, Observation]], limits: Limits) -> None:
    for decision in run(accumulate(deltas), limits, 0):
        if decision.observed and (decision.lag or decision.pending or decision.retrying):
            assert decision.desired >= 1


@given(first=known, second=known, limits=limits(), last=st.one_of(st.none(), st.integers(0, 12)))
def test_more_work_never_means_fewer_workers(
    first: Observation, second: Observation, limits: Limits, last: int | None
) -> None:
    def both(a: int | None, b: int | None) -> int:
        return (a or 0) + (b or 0)

    more = Observation(
        lag=both(first.lag, second.lag),
        pending=both(first.pending, second.pending),
        retrying=both(first.retrying, second.retrying),
    )
    memory = Memory(desired=last)
    fewer_jobs, _ = decide(first, limits, memory, seconds(0))
    more_jobs, _ = decide(more, limits, memory, seconds(0))
    assert more_jobs.desired >= fewer_jobs.desired


@given(deltas=steps, limits=limits())
def test_an_unknown_input_changes_nothing(
    deltas: Sequence[tuple[float, Observation]], limits: Limits
) -> None:
    last = limits.max
    for decision in run(accumulate(deltas), limits, last):
        if not decision.observed:
            assert decision.desired == last
        last = decision.desired
