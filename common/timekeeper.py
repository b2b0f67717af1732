"""Does what is due by the clock: delayed retries, deadlines, entries that others removed.

Every worker, idle or not, and every scaler runs one: whoever is alive keeps the time for all."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

from common.errors import StoreError
from common.fleet import FleetStore, Tended
from common.patience import Bell, Patience

#: What somebody else queued meanwhile is found no later than this.
LONGEST_REST_S = 1.0

#: A store full of short backoffs must not be asked in a tight loop.
SHORTEST_REST_S = 0.005


class TimeKeeper:
    def __init__(self, store: FleetStore, on_tended: Callable[[Tended], None]) -> None:
        self.bell = Bell()
        self._store = store
        self._on_tended = on_tended
        self._patience = Patience("Time keeping")
        self._due = 0.0

    def poke(self, due_in: timedelta) -> None:
        """A retry is due by then, perhaps before the next round would be."""
        due = time.monotonic() + due_in.total_seconds()
        if due < self._due:
            self._due = due
            self.bell.ring()

    async def keep(self) -> None:
        while not self.bell.stopped:
            # Set before the call: a poke during it may ask for less.
            self._due = time.monotonic() + LONGEST_REST_S
            rest = await self._round()
            self._due = min(self._due, time.monotonic() + rest)
            await self._rest()

    async def _rest(self) -> None:
        await self.bell.rest(SHORTEST_REST_S)
        while not self.bell.stopped and (left := self._due - time.monotonic()) > 0:
            await self.bell.rest(left)

    async def _round(self) -> float:
        """Seconds until the next."""
        try:
            tended = await self._store.tend()
        except StoreError as error:
            return self._patience.failed(error)
        self._patience.succeeded()
        self._on_tended(tended)
        return LONGEST_REST_S if tended.next_in is None else tended.next_in.total_seconds()
