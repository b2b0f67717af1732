"""Whether the backend would answer: asked before anything is read, and again while it would not."""

from __future__ import annotations

import logging

from worker.admission import Admission
from worker.backends.base import Backend
from worker.patience import Bell

log = logging.getLogger(__name__)

#: Cheap enough for the engine, and soon enough for the first job after it is up.
PROBE_PERIOD_S = 1.0


class Readiness:
    def __init__(self, backend: Backend, admission: Admission) -> None:
        self.bell = Bell()
        self._backend = backend
        self._admission = admission
        self._told: bool | None = None

    def lost(self) -> None:
        """A call found nobody there. Waiting for the next probe, we would claim and release in a circle."""
        self._say(False)

    async def keep(self) -> None:
        ready = await self._probe()
        while True:
            self._say(ready)
            if not await self.bell.rest(PROBE_PERIOD_S):
                return
            ready = await self._probe()

    async def _probe(self) -> bool:
        try:
            return await self._backend.ready()
        except Exception as error:
            log.warning("readiness probe failed", extra={"error": repr(error)})
            return False

    def _say(self, ready: bool) -> None:
        if ready is not self._told:
            log.log(logging.INFO if ready else logging.WARNING, "backend is %sready", "" if ready else "not ")
        self._told = self._admission.ready = ready
