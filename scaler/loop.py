"""Reads the backlog, decides, publishes: one leader does, the others stand by. All keep time."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from datetime import timedelta
from secrets import token_hex

from common.errors import StoreError, TermOver
from common.fleet import Backlog, Decision, FleetStore, ScaleView
from common.patience import Bell, Patience
from common.pulse import watch_loop
from common.settings import Settings
from common.timekeeper import TimeKeeper
from scaler.gauges import Gauges
from scaler.policy import Limits, Memory, Observation, decide

log = logging.getLogger(__name__)

#: Rounds a leader may miss before another takes over, and the least a lease may last.
LEASE_ROUNDS = 3
SHORTEST_LEASE = timedelta(seconds=1)


class Scaler:
    """One scaler process. It starts and stops no workers: it publishes how many there should be."""

    def __init__(self, store: FleetStore, settings: Settings, gauges: Gauges) -> None:
        self._store = store
        self._gauges = gauges
        # Its own for each process: two scalers of one instance must not share a term.
        self._candidate = f"{settings.instance}-{token_hex(3)}"
        self._limits = Limits.of(settings)
        self._interval = timedelta(milliseconds=settings.scale_interval_ms)
        self._interval_s = self._interval.total_seconds()
        self._timekeeper = TimeKeeper(store, gauges.tended)
        self._lease = max(self._interval * LEASE_ROUNDS, SHORTEST_LEASE)
        self._term: int | None = None
        self._memory = Memory()

    async def run(self, stop: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._scale(stop))
            tasks.create_task(self._timekeeper.keep())
            tasks.create_task(watch_loop(self._gauges.loop_lag, pulse := Bell()))
            await stop.wait()
            pulse.stop()
            self._timekeeper.bell.stop()

    async def _scale(self, stop: asyncio.Event) -> None:
        patience = Patience("Scaling")
        while not stop.is_set():
            try:
                await self._round()
            except StoreError as error:
                self._blind()
                await pause(stop, max(patience.failed(error), self._interval_s))
            else:
                patience.succeeded()
                await pause(stop, self._interval_s)

    async def _round(self) -> None:
        term = await self._store.lead(self._candidate, self._lease)
        view = await self._store.scale()
        backlog = await self._store.depth()
        self._gauges.saw(view, backlog)
        self._enter(term, view)
        if term is not None:
            await self._decide(backlog, term)

    def _enter(self, term: int | None, view: ScaleView) -> None:
        """Take over what the last leader decided, so that a change of leader changes nothing else."""
        if term != self._term:
            log.info("standing by" if term is None else "leading", extra={"term": term})
            self._memory = Memory(desired=view.decision.desired if view.decision else None)
        self._term = term
        self._gauges.leads(term is not None)

    async def _decide(self, backlog: Backlog, term: int) -> None:
        now = timedelta(seconds=time.monotonic())
        last = self._memory.desired
        decision, memory = decide(Observation.of(backlog), self._limits, self._memory, now)
        try:
            await self._store.publish_scale(decision, term)
        except TermOver:
            self._stand_by()
            return
        self._memory = memory
        self._gauges.decided(decision)
        if decision.desired != last:
            _report(decision, last)

    def _stand_by(self) -> None:
        log.info("standing by: another scaler leads")
        self._term = None
        self._gauges.leads(False)

    def _blind(self) -> None:
        # A round that failed half-way may have published or not: the next one starts from what is published.
        self._term = None
        self._gauges.blind()


def _report(decision: Decision, last: int | None) -> None:
    log.info(
        "desired workers: %s -> %d (%s)",
        last,
        decision.desired,
        decision.reason,
        extra={"lag": decision.lag, "pending": decision.pending, "retrying": decision.retrying},
    )


async def pause(stop: asyncio.Event, seconds: float) -> None:
    """Sleep, but no longer than until `stop` is set."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stop.wait()
