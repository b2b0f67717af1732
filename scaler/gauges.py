"""What a scaler shows of itself and of the backlog. Unknown is NaN, which no alert reads as "fine"."""

from __future__ import annotations

import math
import time

from prometheus_client import CollectorRegistry, Gauge

from common.store import Backlog, Decision, ScaleView
from common.telemetry import BacklogGauges, ScalerMetrics

UNKNOWN = math.nan


class Gauges:
    def __init__(self, registry: CollectorRegistry) -> None:
        self._metrics = ScalerMetrics(registry)
        self._observed_at: float | None = None
        # Read at scrape time: the age must grow while nothing is observed.
        self._metrics.age.set_function(self._age)
        self.blind()

    def saw(self, view: ScaleView, backlog: Backlog) -> None:
        age = view.age
        self._observed_at = None if age is None else time.monotonic() - age.total_seconds()
        self._metrics.live.set(view.live)
        self._metrics.busy.set(view.busy)
        if view.decision is not None:
            self._metrics.desired.set(view.decision.desired)
        _show(self._metrics.backlog, backlog)

    def leads(self, leader: bool) -> None:
        self._metrics.leader.set(leader)

    def decided(self, decision: Decision) -> None:
        self._metrics.decisions.labels(decision.reason).inc()
        self._metrics.desired.set(decision.desired)
        if decision.observed:
            self._observed_at = time.monotonic()

    def blind(self) -> None:
        """The store cannot be read: what it knows is unknown. The desired count stands."""
        self.leads(False)
        backlog = self._metrics.backlog
        fleet = (self._metrics.live, self._metrics.busy)
        for gauge in (*fleet, backlog.lag, backlog.pending, backlog.retrying, backlog.unaccounted):
            gauge.set(UNKNOWN)

    def _age(self) -> float:
        return UNKNOWN if self._observed_at is None else time.monotonic() - self._observed_at


def _show(gauges: BacklogGauges, backlog: Backlog) -> None:
    _set(gauges.lag, backlog.lag)
    _set(gauges.pending, backlog.pending)
    gauges.retrying.set(backlog.retrying)
    gauges.dead_letters.set(backlog.dead_letters)
    gauges.unaccounted.set(backlog.unaccounted)
    for state, count in (
        ("queued", backlog.queued),
        ("running", backlog.running),
        ("retrying", backlog.retrying),
        ("succeeded", backlog.succeeded),
        ("failed", backlog.failed),
        ("cancelled", backlog.cancelled),
        ("expired", backlog.expired),
    ):
        gauges.jobs.labels(state).set(count)


def _set(gauge: Gauge, count: int | None) -> None:
    gauge.set(UNKNOWN if count is None else count)
