"""Claiming: finding deliveries and beginning their attempts.

A claim looks in this order: this seat's own unfinished deliveries (after a start, a reconnect, or a suspect's
end), deliveries idle for too long (one sweeping worker at a time, and one that is idle), then new ones.
Everything found goes through one variadic `begin`, which hands back what may not start now.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from redis.exceptions import RedisError

from common.errors import SeatLost
from common.job import Cause
from common.redis_store import records
from common.redis_store.calls import Calls
from common.redis_store.deliveries import Delivery, lease_of, parse
from common.redis_store.keys import GROUP, Keys
from common.redis_store.reader import Reader
from common.redis_store.scripts import KEEP_MS, Begun, Scripts
from common.redis_store.translate import translate
from common.redis_store.wire import Connect
from common.settings import Settings
from common.store import Claimed, Lease

log = logging.getLogger(__name__)

#: Time between two sweeps by the worker that holds the sweep lock.
SWEEP_EVERY_S = 0.25
#: How long a killed sweeper keeps the others from sweeping.
SWEEP_LOCK_MS = 1000
#: Entries looked at per read of old deliveries.
PAGE = 64
#: Answers of `begin` that an operator wants to find by job id.
NOTED = {
    "dead": "job ended: its worker was lost during the last attempt",
    "expired": "job ended: its deadline had passed",
    "gone": "delivery without a job, removed",
    "broken": "delivery of a broken job",
}


@dataclass(frozen=True, slots=True)
class Place:
    """Where this process sits: set by `announce`, cleared when the seat is lost."""

    worker: str
    instance: str
    epoch: int


class Claims:
    def __init__(
        self,
        connect: Connect,
        keys: Keys,
        calls: Calls,
        scripts: Scripts,
        settings: Settings,
        process: str,
    ) -> None:
        self._reader = Reader(connect, keys, calls)
        self._keys = keys
        self._calls = calls
        self._scripts = scripts
        self._settings = settings
        self._process = process
        self._place: Place | None = None
        #: Name of the seat held now or last.
        self.worker = ""
        self._serial = itertools.count(1)
        #: Leases handed out and not settled, by receipt.
        self._held: dict[str, Lease] = {}
        #: Tokens of begins whose answer has not come: a begin sent again must bring the same one (P4).
        self._tokens: dict[str, str] = {}
        #: Entries read under a seat that turned out to be lost: taken along to the next seat.
        self._orphans: list[str] = []
        #: Seats left for another, and of how many the consumer is gone: a read under way makes it anew.
        self._moves = self._moves_over = 0
        #: The last look at idle deliveries met a suspect that must run alone, and we were not alone: no new
        #: jobs until we are, or somebody else sweeps or has taken it.
        self._making_room = False
        #: Where to go on reading this seat's own deliveries; None when there is nothing more to recover.
        self._recover_from: str | None = None
        self._sweep_cursor = "0-0"
        self._sweep_at = 0.0
        self._room = asyncio.Event()

    @property
    def seated(self) -> bool:
        return self._place is not None

    @property
    def busy(self) -> int:
        return len(self._held)

    @property
    def open(self) -> bool:
        """Whether new jobs would be read here, for all that claiming knows."""
        return not self._making_room and not any(lease.alone for lease in self._held.values())

    def sit_down(self, place: Place) -> None:
        if place != self._place:
            self._moves += self.worker not in ("", place.worker)
            self._place = place
            self.worker = place.worker
            self._recover_from = "0-0"

    def stand_up(self) -> None:
        self._place = None

    def let_go(self, leases: Iterable[Lease]) -> None:
        for lease in leases:
            held = self._held.get(lease.receipt)
            if held is not None and held.token == lease.token:
                del self._held[lease.receipt]
                if lease.alone:
                    # What was handed back beside it may start now.
                    self._recover_from = "0-0"
        self._room.set()

    async def claim(self, limit: int, wait: timedelta, *, fresh: bool) -> Claimed:
        if self._place is None:
            raise SeatLost
        self._room.clear()
        if any(lease.alone for lease in self._held.values()):
            await self._pause(wait.total_seconds())
            return Claimed()
        try:
            for source in (self._recover, self._sweep):
                claimed = await source(limit)
                if claimed != Claimed():
                    return claimed
            return await self._read_new(limit, wait.total_seconds(), fresh and not self._making_room)
        except BaseException as error:
            # What was delivered and not begun is in this seat's own deliveries.
            self._recover_from = "0-0"
            if isinstance(error, (RedisError, OSError)):
                raise translate(error) from error
            raise

    async def interrupt(self) -> None:
        """Ends a blocked read without losing what it may just have been given."""
        self._room.set()
        await self._reader.interrupt()

    async def leave_former_seat(self) -> None:
        """Its consumer goes, once nothing is read there any more."""
        moves = self._moves
        if moves > self._moves_over:
            await self._scripts.prune(keep=KEEP_MS)
            self._moves_over = moves

    async def aclose(self) -> None:
        await self._reader.aclose()

    # ---- the three sources

    async def _recover(self, limit: int) -> Claimed:
        """This seat's own deliveries that nobody here holds."""
        if self._orphans:
            await self._take_over(self._orphans)
            self._orphans.clear()
        await self.leave_former_seat()
        while (after := self._recover_from) is not None:
            # Whoever sets it meanwhile (a new seat) wants all of it read again.
            self._recover_from = None
            entries = await self._reader.read(self.worker, after, max(limit, PAGE))
            mine = [entry for entry in entries if entry[0].decode() not in self._held]
            claimed, _ = await self._begin(mine[:limit])
            if entries and self._recover_from is None:
                last = mine[limit - 1] if len(mine) > limit else entries[-1]
                self._recover_from = last[0].decode()
            if claimed != Claimed():
                return claimed
        return Claimed()

    async def _sweep(self, limit: int) -> Claimed:
        """Deliveries whose worker has been silent too long."""
        loop = asyncio.get_running_loop()
        if loop.time() < self._sweep_at:
            return Claimed()
        if not await self._may_sweep():
            self._sweep_at = loop.time() + SWEEP_LOCK_MS / 1000
            # Whoever sweeps now meets the suspects, and makes room for them.
            self._making_room = False
            return Claimed()
        self._sweep_at = loop.time() + SWEEP_EVERY_S
        suspects = 0
        while True:
            self._sweep_cursor, entries = await self._reader.reclaim(
                self.worker, self._settings.claim_idle_ms, self._sweep_cursor, limit
            )
            claimed, later = await self._begin(
                [entry for entry in entries if entry[0].decode() not in self._held]
            )
            suspects += later
            if claimed != Claimed():
                self._sweep_at = 0.0
                return claimed
            if self._sweep_cursor == "0-0":
                self._making_room = suspects > 0
                return Claimed()

    async def _may_sweep(self) -> bool:
        """One worker at a time, so that the cost does not grow with the fleet. And one more that holds
        nothing: a suspect must not wait for the jobs of the first."""
        for name in ("sweep",) if self._held else ("sweep", "idle sweep"):
            if await self._scripts.lock(name=name, holder=self._process, ttl=SWEEP_LOCK_MS):
                return True
        return False

    async def _read_new(self, limit: int, wait: float, fresh: bool) -> Claimed:
        # Bounded by the next sweep, which this same task does.
        wait = min(wait, max(0.0, self._sweep_at - asyncio.get_running_loop().time()))
        if not fresh:
            await self._pause(wait)
            return Claimed()
        claimed, _ = await self._begin(await self._reader.read(self.worker, ">", limit, wait))
        return claimed

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._room.wait()

    async def _take_over(self, entries: Iterable[str]) -> None:
        # JUSTID: a plain XCLAIM would raise the delivery count.
        await self._calls.start("XCLAIM", self._keys.jobs, GROUP, self.worker, 0, *entries, "JUSTID")

    # ---- begin

    async def _begin(self, entries: Sequence[Any]) -> tuple[Claimed, int]:
        """What may start, and how many had to be put off for a suspect's sake."""
        if not entries or self._place is None:
            return Claimed(), 0
        deliveries, broken = parse(entries)
        if broken:
            log.warning("removed entries that are no jobs", extra={"entries": broken})
            await self._scripts.drop(entries=broken)
        for delivery in deliveries:
            self._tokens.setdefault(delivery.entry, f"{self._process}-{next(self._serial):x}")
        begun = await self._scripts.begin(
            idle=self._settings.claim_idle_ms,
            max_attempts=self._settings.max_attempts,
            worker=self._place.worker,
            instance=self._place.instance,
            epoch=self._place.epoch,
            busy=len(self._held),
            deliveries=[(d.entry, d.job_id, self._tokens[d.entry]) for d in deliveries],
        )
        words = [answer.word for answer in begun]
        if "usurped" in words:
            self._place = None
            self._orphans += [delivery.entry for delivery in deliveries]
            raise SeatLost
        leases = await self._take(deliveries, begun)
        claimed = Claimed(
            leases=tuple(leases),
            short_circuits=words.count("done"),
            discarded=len(broken) + sum(words.count(word) for word in ("stale", "gone", "broken")),
            crashed_out=words.count("dead"),
            expired=words.count("expired"),
        )
        return claimed, words.count("later")

    async def _take(self, deliveries: Sequence[Delivery], begun: Sequence[Begun]) -> list[Lease]:
        answers = list(zip(deliveries, begun, strict=True))
        unreadable = [each for each, answer in answers if answer.word == "run" and each.request is None]
        if unreadable:
            # Before anything is held: should it fail, all of these are begun again with the same tokens.
            await self._give_up(unreadable)
        leases: list[Lease] = []
        for delivery, answer in answers:
            token = self._tokens.pop(delivery.entry)
            if answer.word in NOTED:
                log.warning(NOTED[answer.word], extra={"job_id": delivery.job_id, "worker": self.worker})
            if answer.word == "run" and delivery.request is not None:
                leases.append(lease_of(delivery, delivery.request, token, answer))
        self._held |= {lease.receipt: lease for lease in leases}
        return leases

    async def _give_up(self, deliveries: Sequence[Delivery]) -> None:
        """Jobs whose request this version cannot read end where everybody sees it."""
        log.error("requests cannot be read", extra={"job_ids": [delivery.job_id for delivery in deliveries]})
        message = records.encode_text("The request cannot be read by this worker.")
        leases = [(d.job_id, self._tokens[d.entry], -1, Cause.PERMANENT.value, message) for d in deliveries]
        await self._scripts.fail(max_attempts=self._settings.max_attempts, leases=leases)
