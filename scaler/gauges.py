"""What a scaler shows of itself and of the backlog. Unknown is NaN, which no alert reads as "fine"."""

from __future__ import annotations

import math
import time

from prometheus_client import CollectorRegistry

from common.fleet import Backlog, Decision, ScaleView, Tended
from common.telemetry import ScalerMetrics

UNKNOWN = math.nan


class Gauges:
    def __init__(self, registry: CollectorRegistry) -> None:
        self._metrics = ScalerMetrics(registry)
        self.loop_lag = self._metrics.loop_lag
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
        self._metrics.backlog.show(backlog)

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
        self._metrics.backlog.show_unknown()
        for gauge in (self._metrics.live, self._metrics.busy):
            gauge.set(UNKNOWN)

    def tended(self, tended: Tended) -> None:
        self._metrics.tended(tended)

    def _age(self) -> float:
        # Once: this is the scrape's thread, and the loop may write meanwhile.
        observed_at = self._observed_at
        return UNKNOWN if observed_at is None else time.monotonic() - observed_at
