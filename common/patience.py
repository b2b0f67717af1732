"""Waiting: a rest that can be cut short, and the pause between tries while the store is away."""

from __future__ import annotations

import asyncio
import logging
import random

log = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 1.0


class Bell:
    """Where a background task rests. Ringing wakes it early; stopping ends it between two calls.

    Ending it by cancellation could leave a half-read reply on a connection."""

    def __init__(self) -> None:
        self._rung = asyncio.Event()
        self.stopped = False

    def ring(self) -> None:
        self._rung.set()

    def stop(self) -> None:
        self.stopped = True
        self._rung.set()

    async def rest(self, seconds: float) -> bool:
        """False once stopped."""
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await self._rung.wait()
        except TimeoutError:
            pass
        if not self.stopped:
            self._rung.clear()
        return not self.stopped


class Patience:
    """Longer and longer pauses while something fails; one log line when it starts and one when it ends."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._failures = 0

    def failed(self, error: Exception) -> float:
        """Seconds to wait before the next try."""
        if self._failures == 0:
            log.warning("%s failed, trying on", self._what, extra={"error": str(error)})
        self._failures += 1
        longest = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(self._failures - 1, 10))
        return longest * (0.5 + random.random() / 2)

    def succeeded(self) -> None:
        if self._failures:
            log.info("%s works again", self._what, extra={"tries": self._failures})
            self._failures = 0
