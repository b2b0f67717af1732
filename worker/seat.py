"""This worker's seat in the fleet: taken at the start, kept by heartbeats, taken again when lost."""

from __future__ import annotations

import time

from common.errors import SlotTaken, StoreError
from common.fleet import FleetStore, Presence
from common.patience import Bell, Patience
from common.settings import Settings
from worker.admission import Admission

#: A slot's lease lasts three heartbeats; a killed predecessor's must run out before we may sit down.
PATIENT_HEARTBEATS = 4


class SeatKeeper:
    def __init__(self, settings: Settings, store: FleetStore, admission: Admission) -> None:
        self.bell = Bell()
        self._store = store
        self._admission = admission
        self._instance = settings.instance
        self._worker_id = settings.worker_id
        self._heartbeat_s = settings.heartbeat.total_seconds()
        self._patience = Patience("Announcing")
        self._taken_since: float | None = None

    def lost(self) -> None:
        """The store says that we have no seat: announce at once."""
        self._admission.seat = None
        self.bell.ring()

    async def keep(self) -> None:
        """Raises SlotTaken when another holds our explicit id for longer than a dead one could."""
        while not self.bell.stopped:
            await self.bell.rest(await self._announce())

    async def _announce(self) -> float:
        """Seconds until the next announcement."""
        try:
            self._admission.seat = await self._store.announce(self._presence())
        except SlotTaken as taken:
            return self._give_way(taken)
        except StoreError as error:
            return min(self._heartbeat_s, self._patience.failed(error))
        self._taken_since = None
        self._patience.succeeded()
        return self._heartbeat_s

    def _give_way(self, taken: SlotTaken) -> float:
        now = time.monotonic()
        self._admission.seat = None
        self._taken_since = self._taken_since or now
        if now - self._taken_since > PATIENT_HEARTBEATS * self._heartbeat_s:
            raise taken
        return self._heartbeat_s / 4

    def _presence(self) -> Presence:
        return Presence(
            instance=self._instance,
            worker_id=self._worker_id,
            concurrency=self._admission.holdings.concurrency,
            busy=len(self._admission.holdings),
            ready=self._admission.able,
        )
