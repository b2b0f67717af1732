"""The scaler's loop against a fleet that lives in memory: who leads, what is published, what is shown."""

from __future__ import annotations

import asyncio
import logging
import math
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import pytest
from prometheus_client import CollectorRegistry

from common.errors import StoreError, StoreUnavailable, TermOver
from common.fleet import Backlog, Decision, Presence, Reason, ScaleView, Seat, Tended
from common.pulse import BEAT_S
from common.settings import Settings, child_environment
from scaler.gauges import Gauges
from scaler.loop import Scaler
from tests.waiting import hold_up_the_loop, wait_until

SETTINGS = Settings(instance="me", scale_interval_ms=10, scale_down_window_ms=60_000)

IDLE = Backlog(
    at=datetime(2030, 1, 1, tzinfo=UTC),
    submitted=0,
    awaiting_upload=0,
    queued=0,
    running=0,
    retrying=0,
    succeeded=0,
    failed=0,
    cancelled=0,
    expired=0,
    dead_letters=0,
    lag=0,
    pending=0,
)
BUSY = replace(IDLE, submitted=20, queued=20, lag=20)


@dataclass
class Fleet:
    """A fleet store in memory. Its public fields are what the test says is so."""

    backlog: Backlog = IDLE
    term: int | None = 1
    current_term: int = 1
    broken: StoreError | None = None
    decision: Decision | None = None
    age: timedelta | None = None
    next_in: timedelta | None = None
    published: list[Decision] = field(default_factory=list[Decision])
    tends: int = 0
    rounds: int = 0

    def _check(self) -> None:
        if self.broken:
            raise self.broken

    async def announce(self, presence: Presence) -> Seat:
        raise NotImplementedError

    async def retire(self) -> None:
        raise NotImplementedError

    async def depth(self) -> Backlog:
        self._check()
        return self.backlog

    async def tend(self) -> Tended:
        self._check()
        self.tends += 1
        return Tended(next_in=self.next_in)

    async def lead(self, candidate: str, ttl: timedelta) -> int | None:
        self.rounds += 1
        self._check()
        assert candidate.startswith("me-")
        assert ttl >= timedelta(seconds=1)
        return self.term

    async def publish_scale(self, decision: Decision, term: int) -> None:
        self._check()
        if term != self.current_term:
            raise TermOver
        self.decision = decision
        self.published.append(decision)

    async def scale(self) -> ScaleView:
        self._check()
        return ScaleView(
            decision=self.decision,
            updated_at=None,
            age=self.age,
            stale=False,
            leader=None,
            workers=(),
            history=(),
        )

    async def rounds_pass(self, count: int = 3) -> None:
        """Returns after `count` whole rounds more."""
        target = self.rounds + count + 1
        await wait_until(lambda: self.rounds >= target)


def published(desired: int, reason: Reason = Reason.BACKLOG_UP) -> Decision:
    return Decision(desired=desired, reason=reason, lag=0, pending=0, retrying=0, min=1, max=8)


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def gauge(registry: CollectorRegistry) -> Callable[..., float]:
    def read(name: str, **labels: str) -> float:
        value = registry.get_sample_value(name, labels)
        assert value is not None, name
        return value

    return read


@asynccontextmanager
async def scaling(fleet: Fleet, registry: CollectorRegistry) -> AsyncGenerator[None]:
    """A scaler that runs meanwhile, and then stops when told to."""
    stop = asyncio.Event()
    task = asyncio.create_task(Scaler(fleet, SETTINGS, Gauges(registry)).run(stop))
    try:
        yield
    finally:
        stop.set()
        await asyncio.wait_for(task, 1)


async def test_the_leader_publishes_what_the_backlog_asks_for(registry: CollectorRegistry) -> None:
    fleet = Fleet(backlog=BUSY)
    async with scaling(fleet, registry):
        await wait_until(lambda: fleet.published)
    assert (fleet.published[0].desired, fleet.published[0].reason) == (5, Reason.START)


async def test_a_standby_publishes_nothing(registry: CollectorRegistry, gauge: Callable[..., float]) -> None:
    fleet = Fleet(backlog=BUSY, term=None, decision=published(3))
    async with scaling(fleet, registry):
        await fleet.rounds_pass()
        assert gauge("iwl_scaler_leader") == 0
        assert gauge("iwl_workers_desired") == 3
        assert gauge("iwl_queue_lag") == 20
    assert not fleet.published


async def test_a_new_leader_goes_on_from_the_published_count(registry: CollectorRegistry) -> None:
    fleet = Fleet(decision=published(6))
    async with scaling(fleet, registry):
        await wait_until(lambda: len(fleet.published) >= 3)
    assert {(decision.desired, decision.reason) for decision in fleet.published} == {(6, Reason.HOLD_WINDOW)}


async def test_a_standby_takes_over_with_the_count_of_that_moment(registry: CollectorRegistry) -> None:
    fleet = Fleet(term=None, decision=published(2))
    async with scaling(fleet, registry):
        await fleet.rounds_pass()
        fleet.decision, fleet.term, fleet.current_term = published(7), 2, 2
        await wait_until(lambda: fleet.published)
    assert fleet.published[0].desired == 7


async def test_a_leader_whose_term_is_over_stands_by(
    registry: CollectorRegistry, gauge: Callable[..., float]
) -> None:
    fleet = Fleet(backlog=BUSY, current_term=2)
    async with scaling(fleet, registry):
        await fleet.rounds_pass()
        fleet.term = None
        await fleet.rounds_pass()
        assert gauge("iwl_scaler_leader") == 0
    assert not fleet.published


async def test_unknown_lag_holds_the_count_and_is_not_shown_as_zero(
    registry: CollectorRegistry, gauge: Callable[..., float]
) -> None:
    fleet = Fleet(backlog=replace(BUSY, lag=None), decision=published(4))
    async with scaling(fleet, registry):
        await wait_until(lambda: fleet.published)
        assert math.isnan(gauge("iwl_queue_lag"))
        assert gauge("iwl_queue_pending") == 0
    decision = fleet.published[0]
    assert (decision.desired, decision.observed, decision.lag) == (4, False, None)


async def test_an_outage_is_logged_once_and_survived(
    registry: CollectorRegistry, gauge: Callable[..., float], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    fleet = Fleet(backlog=BUSY)
    async with scaling(fleet, registry):
        await wait_until(lambda: fleet.published)
        fleet.broken = StoreUnavailable()
        await fleet.rounds_pass(1)
        assert math.isnan(gauge("iwl_queue_lag"))
        assert math.isnan(gauge("iwl_jobs_unaccounted"))
        assert gauge("iwl_scaler_leader") == 0
        assert gauge("iwl_workers_desired") == 5
        fleet.broken, before = None, len(fleet.published)
        await wait_until(lambda: len(fleet.published) > before and gauge("iwl_scaler_leader") == 1)
    assert [r.getMessage() for r in caplog.records if "Scaling" in r.getMessage()] == [
        "Scaling failed, trying on",
        "Scaling works again",
    ]


async def test_the_age_grows_while_nothing_is_observed(
    registry: CollectorRegistry, gauge: Callable[..., float]
) -> None:
    fleet = Fleet(backlog=replace(IDLE, lag=None), decision=published(1), age=timedelta(seconds=90))
    async with scaling(fleet, registry):
        await wait_until(lambda: fleet.published)
        fleet.broken = StoreUnavailable()
        before = gauge("iwl_scale_age_seconds")
        await wait_until(lambda: gauge("iwl_scale_age_seconds") > before >= 90)


async def test_decisions_are_counted_by_reason(
    registry: CollectorRegistry, gauge: Callable[..., float]
) -> None:
    async with scaling(fleet := Fleet(), registry):
        await wait_until(lambda: len(fleet.published) >= 3)
        assert gauge("iwl_scale_decisions_total", reason="start") == 1
        assert gauge("iwl_scale_decisions_total", reason="steady") >= 1
        assert gauge("iwl_scale_decisions_total", reason="unknown_input") == 0


async def test_missing_jobs_are_shown(registry: CollectorRegistry, gauge: Callable[..., float]) -> None:
    fleet = Fleet(backlog=replace(IDLE, submitted=9, succeeded=7))
    async with scaling(fleet, registry):
        await wait_until(lambda: fleet.published)
        assert gauge("iwl_jobs_unaccounted") == 2
        assert gauge("iwl_jobs", state="succeeded") == 7


@pytest.mark.parametrize("term", [1, None], ids=["leader", "standby"])
async def test_time_is_kept_at_the_next_due_moment(registry: CollectorRegistry, term: int | None) -> None:
    fleet = Fleet(term=term, next_in=timedelta(milliseconds=20))
    async with scaling(fleet, registry):
        await wait_until(lambda: fleet.tends >= 5, timeout=0.9)


async def test_time_is_kept_every_second_when_nothing_is_due(registry: CollectorRegistry) -> None:
    fleet = Fleet(next_in=None)
    async with scaling(fleet, registry):
        await wait_until(lambda: fleet.tends == 2, timeout=1.5)


async def test_time_keeping_survives_an_outage(registry: CollectorRegistry) -> None:
    fleet = Fleet(broken=StoreUnavailable())
    async with scaling(fleet, registry):
        await fleet.rounds_pass(1)
        fleet.broken = None
        await wait_until(lambda: fleet.tends > 0)


def test_a_setting_that_cannot_work_ends_with_one_line_and_exit_code_2() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "scaler"],
        env=child_environment(min_workers="9", max_workers="8"),
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "scaler: IWL_MIN_WORKERS: must be at most IWL_MAX_WORKERS\n"


async def test_a_held_up_loop_shows(registry: CollectorRegistry, gauge: Callable[..., float]) -> None:
    fleet = Fleet()
    async with scaling(fleet, registry):
        await fleet.rounds_pass()
        hold_up_the_loop(BEAT_S + 0.2)
        await wait_until(lambda: gauge("iwl_loop_lag_seconds") >= 0.15)
