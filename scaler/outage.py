"""One log line when the store goes away, one when it is back, and a growing pause in between."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from datetime import timedelta

from common.errors import StoreError

log = logging.getLogger(__name__)

FIRST_PAUSE = timedelta(milliseconds=100)
LONGEST_PAUSE = timedelta(seconds=2)


class Outage:
    """One caller's view of a store that comes and goes."""

    def __init__(self, doing: str) -> None:
        self._doing = doing
        self._pause: timedelta | None = None

    def failed(self, error: StoreError) -> timedelta:
        """Note one more failure; how long to wait before the next try."""
        if self._pause is None:
            log.warning("%s stopped: %s", self._doing, error)
            self._pause = FIRST_PAUSE
        else:
            self._pause = min(self._pause * 2, LONGEST_PAUSE)
        return self._pause

    def over(self) -> None:
        if self._pause is not None:
            log.info("%s goes on: the store is back", self._doing)
        self._pause = None


async def pause(stop: asyncio.Event, length: timedelta) -> None:
    """Sleep, but no longer than until `stop` is set."""
    with suppress(TimeoutError):
        async with asyncio.timeout(length.total_seconds()):
            await stop.wait()
