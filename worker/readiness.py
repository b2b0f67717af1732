"""Whether the backend would answer: asked before anything is read, and again while it would not."""

from __future__ import annotations

import asyncio
import logging
import time

from common.patience import Bell
from worker.admission import Admission
from worker.backends.base import Backend

log = logging.getLogger(__name__)

#: Cheap enough for the engine, and soon enough for the first job after it is up.
PROBE_PERIOD_S = 1.0
#: A probe that takes longer is answered by nobody: until it ends, nothing is read.
PROBE_LIMIT_S = 10.0
#: Longest pause after calls that found nobody although the probe had said yes.
LONGEST_PAUSE_S = 30.0


class Readiness:
    def __init__(self, backend: Backend, admission: Admission) -> None:
        self.bell = Bell()
        self._backend = backend
        self._admission = admission
        self._told: bool | None = None
        self._pause_s = PROBE_PERIOD_S
        self._not_before = 0.0
        self._doubted = False

    def lost(self) -> None:
        """A call found nobody there. An engine that answers its probe and refuses its work would use up the
        refunds of every job within seconds: each time the pause is longer, until a call has been answered."""
        if self._told:
            self._not_before = time.monotonic() + self._pause_s
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        self._say(False)

    def answered(self) -> None:
        """A call got through to the model."""
        self._pause_s = PROBE_PERIOD_S

    def doubt(self) -> None:
        """An attempt failed, perhaps because the engine dies or hangs. It is asked before anything more is
        read: within the second until the next probe, every retry would meet the same end."""
        self._doubted = True
        self._admission.ready = False
        self.bell.ring()

    async def keep(self) -> None:
        while True:
            self._doubted = False
            ready = await self._probe()
            # A probe that set out before the doubt proves nothing.
            if not self._doubted:
                self._say(ready and time.monotonic() >= self._not_before)
            if not await self.bell.rest(PROBE_PERIOD_S):
                return

    async def _probe(self) -> bool:
        try:
            async with asyncio.timeout(PROBE_LIMIT_S):
                return bool(await self._backend.ready())
        except (Exception, asyncio.CancelledError) as error:
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and (task is None or task.cancelling()):
                raise
            log.warning("readiness probe failed", extra={"error": repr(error)})
            return False

    def _say(self, ready: bool) -> None:
        if ready is not self._told:
            log.log(logging.INFO if ready else logging.WARNING, "backend is %sready", "" if ready else "not ")
        self._told = self._admission.ready = ready
