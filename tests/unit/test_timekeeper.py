"""The time keeper's rest: as long as nothing is due, and no longer, whenever it is told so."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import cast

from common.fleet import FleetStore, Tended
from common.timekeeper import LONGEST_REST_S, TimeKeeper
from tests.waiting import wait_until

SOON = timedelta(milliseconds=50)


class Rounds:
    """A store that counts rounds of time keeping, each of which waits for `answer`."""

    def __init__(self) -> None:
        self.asked = 0
        self.answer = asyncio.Event()

    async def tend(self) -> Tended:
        self.asked += 1
        await self.answer.wait()
        return Tended(next_in=None)


async def test_a_retry_that_is_told_of_during_a_round_is_not_forgotten() -> None:
    """The round may have looked before the retry was there."""
    store = Rounds()
    keeper = TimeKeeper(cast(FleetStore, store), lambda _: None)
    keeping = asyncio.create_task(keeper.keep())
    await wait_until(lambda: store.asked == 1)
    keeper.poke(SOON)
    told = time.monotonic()
    store.answer.set()
    await wait_until(lambda: store.asked == 2)
    assert time.monotonic() - told < LONGEST_REST_S / 2
    keeper.bell.stop()
    await keeping
