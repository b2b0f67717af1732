"""Keeps leases alive, and closes the model calls of those that are not ours any more."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from common.errors import StoreError, StoreUnavailable
from common.patience import Bell, Patience
from common.pulse import beats
from common.settings import Settings
from common.store import LeaseState, WorkerStore
from common.telemetry import WorkerMetrics
from worker.hold import Hold, Holdings, Stop
from worker.tally import Tally

log = logging.getLogger(__name__)

STOPS = {
    LeaseState.CANCELLED: Stop.CANCELLED,
    LeaseState.EXPIRED: Stop.EXPIRED,
    LeaseState.TAKEN: Stop.TAKEN,
}


#: How long a model call may take to end once it is closed.
OVERDUE_S = 10.0


class LeaseKeeper:
    """One call per heartbeat renews every lease held, the uncommitted ones too."""

    def __init__(
        self, settings: Settings, store: WorkerStore, holdings: Holdings, tally: Tally, metrics: WorkerMetrics
    ) -> None:
        self.bell = Bell()
        self._store = store
        self._holdings = holdings
        self._tally = tally
        self._loop_lag = metrics.loop_lag
        self._heartbeat_s = settings.heartbeat.total_seconds()
        self._idle_s = settings.claim_idle.total_seconds()
        self._patience = Patience("Renewing leases")

    async def renew(self) -> None:
        due = time.monotonic() + self._heartbeat_s
        while await self.bell.rest(due - time.monotonic()):
            due = max(due, time.monotonic()) + self._heartbeat_s
            self._insist()
            if holds := [hold for hold in self._holdings.all if hold.closing_for < OVERDUE_S]:
                await self._extend(holds)

    def _insist(self) -> None:
        """A call that does not end must not keep its job: others may have it once its lease has run out."""
        for hold in self._holdings.running:
            if hold.closing_for >= OVERDUE_S:
                log.error("a closed model call does not end", extra={"job_id": hold.lease.job_id})
                hold.insist()

    async def watch(self) -> None:
        """Apart from `renew`, which may itself be stuck in a call to the store."""
        async for late in beats(self._loop_lag, self.bell, self._heartbeat_s):
            # A process that was paused and has just woken lets the store say what it still holds.
            if late < self._heartbeat_s:
                self._close_stale()

    async def _extend(self, holds: Sequence[Hold]) -> None:
        sent = time.monotonic()
        try:
            states = await self._store.extend([hold.lease for hold in holds])
        except StoreUnavailable as error:
            self._patience.failed(error)
        except StoreError as error:
            await self._singly(holds, error)
        else:
            self._patience.succeeded()
            for hold, state in zip(holds, states, strict=True):
                self._heard(hold, state, sent)

    async def _singly(self, holds: Sequence[Hold], error: StoreError) -> None:
        """One damaged record must not let the other leases run out."""
        if len(holds) > 1:
            for hold in holds:
                await self._extend([hold])
        else:
            log.error("lease not renewed", extra={"job_id": holds[0].lease.job_id, "error": str(error)})

    def _heard(self, hold: Hold, state: LeaseState, sent: float) -> None:
        if state is LeaseState.HELD:
            hold.renewed = sent
        elif self._holdings.runs(hold) and hold.stop is None:
            # An outcome on its way gets its own answer from the store.
            hold.close(STOPS[state])
            self._tally.lost(hold.lease, state)

    def _close_stale(self) -> None:
        oldest = time.monotonic() - self._idle_s
        for hold in self._holdings.running:
            if hold.renewed <= oldest:
                hold.close(Stop.STALE)
