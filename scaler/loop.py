"""Reads the backlog, decides, publishes: one leader does, the others stand by. All keep time."""

from __future__ import annotations

import asyncio
import logging
import time
from datetime import timedelta
from secrets import token_hex

from common.errors import StoreError, TermOver
from common.settings import Settings
from common.store import Backlog, Decision, FleetStore, ScaleView
from scaler.gauges import Gauges
from scaler.outage import Outage, pause
from scaler.policy import Limits, Memory, Observation, decide

log = logging.getLogger(__name__)

#: Rounds a leader may miss before another takes over, and the least a lease may last.
LEASE_ROUNDS = 3
SHORTEST_LEASE = timedelta(seconds=1)

#: Longest and shortest time between two rounds of time keeping.
TEND_EVERY = timedelta(seconds=1)
TEND_REST = timedelta(milliseconds=5)


class Scaler:
    """One scaler process. It starts and stops no workers: it publishes how many there should be."""

    def __init__(self, store: FleetStore, settings: Settings, gauges: Gauges) -> None:
        self._store = store
        self._gauges = gauges
        # Its own for each process: two scalers of one instance must not share a term.
        self._candidate = f"{settings.instance}-{token_hex(3)}"
        self._limits = Limits.of(settings)
        self._interval = timedelta(milliseconds=settings.scale_interval_ms)
        self._lease = max(self._interval * LEASE_ROUNDS, SHORTEST_LEASE)
        self._term: int | None = None
        self._memory = Memory()

    async def run(self, stop: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._scale(stop))
            tasks.create_task(keep_time(self._store, self._gauges, stop))

    async def _scale(self, stop: asyncio.Event) -> None:
        outage = Outage("scaling")
        while not stop.is_set():
            try:
                await self._round()
            except StoreError as error:
                self._blind()
                await pause(stop, max(outage.failed(error), self._interval))
            else:
                outage.over()
                await pause(stop, self._interval)

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


async def keep_time(store: FleetStore, gauges: Gauges, stop: asyncio.Event) -> None:
    """Delayed retries, deadlines and vanished entries: when the next is due, and at least every second."""
    outage = Outage("time keeping")
    while not stop.is_set():
        try:
            tended = await store.tend()
        except StoreError as error:
            await pause(stop, outage.failed(error))
            continue
        outage.over()
        gauges.tended(tended)
        due = TEND_EVERY if tended.next_in is None else tended.next_in
        await pause(stop, max(TEND_REST, min(due, TEND_EVERY)))
