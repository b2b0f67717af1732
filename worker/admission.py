"""Whether this worker may claim just now, and how much."""

from __future__ import annotations

import asyncio

from common.fleet import Seat
from worker.hold import Holdings


class Admission:
    """Gathers every reason not to claim: no seat, backend not ready, outcomes stuck, slots full, draining."""

    def __init__(self, concurrency: int) -> None:
        #: Something happened that may let the reader go on.
        self.changed = asyncio.Event()
        #: A waiting claim is no longer the right one.
        self.outdated = asyncio.Event()
        self.holdings = Holdings(concurrency, self.changed)
        self._seat: Seat | None = None
        self._ready = False
        self._reading = True
        self._committing = True
        self._draining = False

    @property
    def seat(self) -> Seat | None:
        return self._seat

    @seat.setter
    def seat(self, seat: Seat | None) -> None:
        if seat != self._seat:
            self._seat = seat
            self._turn()

    @property
    def ready(self) -> bool:
        """Whether the backend is."""
        return self._ready

    @ready.setter
    def ready(self, ready: bool) -> None:
        if ready != self._ready:
            self._ready = ready
            self._turn()

    @property
    def able(self) -> bool:
        """What the fleet is told as `ready`: the backend is, the last claim and the last flush worked, and it
        is not draining."""
        return self._ready and self._reading and self._committing and not self._draining

    @property
    def draining(self) -> bool:
        return self._draining

    @property
    def fresh(self) -> bool:
        """Whether new jobs may be read, or only unfinished ones taken over."""
        return self._seat is not None and self._seat.active

    @property
    def worker(self) -> str | None:
        return self._seat.worker if self._seat else None

    def reads(self, working: bool) -> None:
        self._reading = working

    def commits(self, working: bool) -> None:
        """No claims while the last flush has failed: their outcomes could not be stored either."""
        if working != self._committing:
            self._committing = working
            self.changed.set()

    def drain(self) -> None:
        self._draining = True
        self._turn()

    async def room(self) -> int:
        """How many jobs to claim, once that is more than none; 0 when draining."""
        while not self._draining:
            if self._seat and self._ready and self._committing and self.holdings.free > 0:
                return self.holdings.free
            self.changed.clear()
            await self.changed.wait()
        return 0

    def _turn(self) -> None:
        self.changed.set()
        self.outdated.set()
