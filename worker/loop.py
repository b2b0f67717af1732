"""The worker: claim, run, settle, until told to leave.

One reader claims as many jobs as there are free slots, N long-lived runners run them, one flusher stores
the outcomes. Beside them keepers renew the leases, hold the seat, probe the backend and watch the clock.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta

from common.errors import LabError, SeatLost, SlotTaken, StoreError, StoreUnavailable
from common.job import Cause
from common.patience import Bell, Patience
from common.settings import Settings
from common.store import Claimed, Failed, Released, Settlement, Store
from common.telemetry import WorkerMetrics
from common.timekeeper import TimeKeeper
from worker.admission import Admission
from worker.backends.base import Backend
from worker.flush import Flusher
from worker.hold import Hold, Stop
from worker.lease import LeaseKeeper
from worker.readiness import Readiness
from worker.run import Attempts
from worker.seat import SeatKeeper
from worker.tally import Tally

log = logging.getLogger(__name__)

#: How long one claim may wait: what a change that could not interrupt it costs at most.
CLAIM_WAIT = timedelta(seconds=1)
INTERRUPT_EVERY_S = 0.05

#: Failures that may be the backend's; the others are the request's.
DOUBTFUL = frozenset({Cause.ERROR, Cause.TIMEOUT})

#: Steps of leaving that need the store, which may be away. With the drain time they stay well below the ten
#: seconds that a supervisor grants on top of it.
READER_LEAVES_S = 1.5
FLUSH_S = 3.0
HURRIED_FLUSH_S = 1.0
KEEPERS_LEAVE_S = 1.0
RETIRE_S = 1.0
CLOSE_S = 1.0


class Worker:
    def __init__(self, settings: Settings, store: Store, backend: Backend, metrics: WorkerMetrics) -> None:
        self._store = store
        self._backend = backend
        self._drain_s = settings.drain.total_seconds()
        self._admission = Admission(settings.worker_concurrency)
        self._holdings = self._admission.holdings
        self._tally = Tally(metrics, lambda: self._admission.worker)
        self._attempts = Attempts(settings, store, backend, self._tally)
        self._timekeeper = TimeKeeper(store, self._tally.tended)
        self._flusher = Flusher(store, self._admission, self._tally, self._timekeeper.poke)
        self._leases = LeaseKeeper(settings, store, self._holdings, self._tally, metrics)
        self._seat = SeatKeeper(settings, store, self._admission)
        self._readiness = Readiness(backend, self._admission)
        self._inbox: asyncio.Queue[Hold] = asyncio.Queue()
        self._reader_bell = Bell()
        self._leaving = asyncio.Event()
        self._hurried_at = math.inf
        self._evicted: LabError | None = None
        self._show(metrics)

    async def run(self) -> None:
        """Returns after a drain. Raises StoreRefused, and SlotTaken when another holds our worker id."""
        try:
            if await self._store_started():
                await self._work()
        finally:
            await self._close_backend()
            await _within(CLOSE_S, self._store.aclose())
        if self._evicted:
            raise self._evicted

    def drain(self) -> None:
        """Finish what runs, within the drain time, and leave. A second call waits for nothing."""
        if self._admission.draining:
            self._hurried_at = min(self._hurried_at, time.monotonic())
            self._admission.changed.set()
            return
        log.info("draining", extra={"worker": self._admission.worker, "held": len(self._holdings)})
        self._admission.drain()
        self._reader_bell.stop()
        self._leaving.set()

    async def _store_started(self) -> bool:
        """False when told to leave before the store was there."""
        patience = Patience("Opening the store")
        while not self._admission.draining:
            try:
                await self._store.start()
            except StoreUnavailable as error:
                await self._reader_bell.rest(patience.failed(error))
            else:
                patience.succeeded()
                return True
        return False

    async def _work(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            keepers = [
                tasks.create_task(self._keep_seat()),
                tasks.create_task(self._readiness.keep()),
                tasks.create_task(self._timekeeper.keep()),
                tasks.create_task(self._leases.renew()),
                tasks.create_task(self._leases.watch()),
            ]
            hands = [tasks.create_task(self._runner()) for _ in range(self._holdings.concurrency)]
            hands.append(tasks.create_task(self._flusher.run()))
            reader = tasks.create_task(self._read())
            interrupter = tasks.create_task(self._interrupt(reader))
            await self._leaving.wait()
            await self._settle_down(reader)
            await self._give_up_seat(keepers)
            for task in (reader, interrupter, *hands, *keepers):
                task.cancel()

    # ------------------------------------------------------------ the run path

    async def _read(self) -> None:
        patience = Patience("Claiming")
        while room := await self._admission.room():
            try:
                claimed = await self._store.claim(room, CLAIM_WAIT, fresh=self._admission.fresh)
            except SeatLost:
                self._seat.lost()
            except StoreError as error:
                self._admission.reads(False)
                await self._reader_bell.rest(patience.failed(error))
            else:
                self._admission.reads(True)
                patience.succeeded()
                self._begin(claimed)

    def _begin(self, claimed: Claimed) -> None:
        self._tally.claimed(claimed)
        for lease in claimed.leases:
            hold = self._attempts.hold(lease)
            self._holdings.take(hold)
            # The claim crossed the order to drain: nobody has been asked yet, so give it back.
            if self._admission.draining:
                self._flusher.hand_over(hold, Released(lease=lease))
            else:
                self._inbox.put_nowait(hold)

    async def _runner(self) -> None:
        while True:
            hold = await self._inbox.get()
            settlement = await self._attempts.run(hold)
            if settlement is None:
                self._holdings.drop(hold)
                continue
            self._learn(hold, settlement)
            self._flusher.hand_over(hold, settlement)

    def _learn(self, hold: Hold, settlement: Settlement) -> None:
        """What an attempt says about the backend."""
        if isinstance(settlement, Released) and hold.stop is None:
            self._readiness.lost()
            return
        self._readiness.answered()
        if isinstance(settlement, Failed) and settlement.error.cause in DOUBTFUL:
            self._readiness.doubt()

    # ------------------------------------------------------------ beside it

    async def _interrupt(self, reader: asyncio.Task[None]) -> None:
        """Ends a claim that waits under rules which have changed."""
        while not reader.done():
            await self._admission.outdated.wait()
            # Once draining, again and again: the first may come just before the last claim.
            if not self._admission.draining:
                self._admission.outdated.clear()
            with suppress(StoreError):
                await self._store.interrupt()
            await asyncio.sleep(INTERRUPT_EVERY_S)

    async def _keep_seat(self) -> None:
        try:
            await self._seat.keep()
        except SlotTaken as taken:
            self._evicted = taken
            self.drain()

    def _show(self, metrics: WorkerMetrics) -> None:
        metrics.slots.set(self._holdings.concurrency)
        metrics.busy.set_function(lambda: len(self._holdings.running))
        metrics.ready.set_function(lambda: self._admission.able)
        metrics.active.set_function(lambda: self._admission.fresh)

    # ------------------------------------------------------------ leaving

    async def _settle_down(self, reader: asyncio.Task[None]) -> None:
        """Returns when nothing is held, or nothing more can be done about it."""
        started = time.monotonic()
        await asyncio.wait([reader], timeout=READER_LEAVES_S)
        left = started + self._drain_s - time.monotonic()
        await self._until(lambda: not self._holdings.running, left, hurried_s=0)
        for hold in self._holdings.running:
            hold.close(Stop.DRAIN)
        await self._until(lambda: not len(self._holdings), FLUSH_S, hurried_s=HURRIED_FLUSH_S)
        if held := len(self._holdings):
            log.warning("left with leases held", extra={"worker": self._admission.worker, "held": held})

    async def _until(self, condition: Callable[[], bool], seconds: float, *, hurried_s: float) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            left = min(deadline, self._hurried_at + hurried_s) - time.monotonic()
            if left <= 0:
                return
            self._admission.changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._admission.changed.wait()

    async def _give_up_seat(self, keepers: list[asyncio.Task[None]]) -> None:
        for bell in (self._seat.bell, self._readiness.bell, self._timekeeper.bell, self._leases.bell):
            bell.stop()
        await asyncio.wait(keepers, timeout=KEEPERS_LEAVE_S)
        await _within(RETIRE_S, self._store.retire())

    async def _close_backend(self) -> None:
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._backend.aclose()
        except Exception as error:
            # Somebody's own: whatever it does, nothing is held any more.
            log.warning("the backend did not close", extra={"error": repr(error)})


async def _within(seconds: float, farewell: Awaitable[None]) -> None:
    """Leaving does not wait for a store that is away."""
    with suppress(StoreError, TimeoutError):
        async with asyncio.timeout(seconds):
            await farewell
