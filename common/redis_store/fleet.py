"""The fleet's part of the port: seats, counts, time keeping and the published scale."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

from common.errors import SlotTaken, TermOver
from common.fleet import (
    Backlog,
    Decision,
    Presence,
    Reason,
    ScaleChange,
    ScaleView,
    Seat,
    Tended,
    WorkerView,
    reads,
)
from common.job import job_id_time
from common.redis_store import records
from common.redis_store.calls import Calls
from common.redis_store.claims import Claims, Place
from common.redis_store.keys import Keys
from common.redis_store.scripts import KEEP_MS, Scripts
from common.redis_store.translate import readable, reading
from common.settings import Settings

#: Jobs that one round of time keeping takes at most.
DUE_AT_ONCE = 256
#: Keys that one round of the reconciler looks at: in no hurry, unless jobs are unaccounted for.
SCAN_COUNT = 250
SCAN_COUNT_BROKEN = 5000
RECONCILE_EVERY_S = 1.0
RECONCILE_LOCK_MS = 2000
PRUNE_EVERY_S = 60.0
#: Changes of the desired count that are kept, and shown.
HISTORY_KEPT = 500
HISTORY_SHOWN = 20


def backlog_of(reply: Sequence[Any]) -> Backlog:
    """The answer of depth.lua."""
    with reading("The counts"):
        now, entries, pending, retrying, dead_letters, *flat = reply
        counts = {name: int(value) for name, value in records.pairs(flat).items()}
    running = counts.get("running", 0)
    # Less than nothing is not zero: somebody removed entries that are still pending.
    lag = entries - pending if entries >= pending else None
    return Backlog(
        at=records.instant(now),
        submitted=counts.get("submitted", 0),
        awaiting_upload=0,
        queued=entries - running,
        running=running,
        retrying=retrying,
        succeeded=counts.get("succeeded", 0),
        failed=counts.get("failed", 0),
        cancelled=counts.get("cancelled", 0),
        expired=counts.get("expired", 0),
        dead_letters=dead_letters,
        lag=lag,
        pending=pending,
    )


class Reconciler:
    """Walks over the live records, a bounded number at a time, in one process at a time."""

    def __init__(self, keys: Keys, calls: Calls, scripts: Scripts, settings: Settings, process: str) -> None:
        self._keys = keys
        self._calls = calls
        self._scripts = scripts
        self._idle = settings.claim_idle_ms
        self._process = process
        self._cursor = 0
        self._step_at = 0.0
        self._prune_at = 0.0

    async def step(self) -> tuple[int, int]:
        """Jobs queued again, jobs ended as lost."""
        now = asyncio.get_running_loop().time()
        if now < self._step_at:
            return 0, 0
        self._step_at = now + RECONCILE_EVERY_S
        if not await self._scripts.lock(name="reconcile", holder=self._process, ttl=RECONCILE_LOCK_MS):
            return 0, 0
        await self._prune(now)
        count = SCAN_COUNT_BROKEN if backlog_of(await self._scripts.depth()).unaccounted else SCAN_COUNT
        prefix = self._keys.record("")
        reply = await self._calls.start("SCAN", self._cursor, "MATCH", f"{prefix}*", "COUNT", count)
        cursor, found = cast(tuple[int, list[bytes]], reply)
        self._cursor = int(cursor)
        names = [key.decode(errors="replace").removeprefix(prefix) for key in found]
        job_ids = [name for name in names if job_id_time(name)]
        words = await self._scripts.reconcile(idle=self._idle, job_ids=job_ids) if job_ids else []
        return words.count("requeued"), words.count("lost")

    async def _prune(self, now: float) -> None:
        if now >= self._prune_at:
            self._prune_at = now + PRUNE_EVERY_S
            await self._scripts.prune(keep=KEEP_MS)


class FleetPart:
    _settings: Settings
    _scripts: Scripts
    _claims: Claims
    _reconciler: Reconciler
    _process: str
    _seat: Seat | None = None
    #: Sticky: a process that once lost its seat does not take it back from its successor.
    _lost_seat: bool = False

    async def announce(self, presence: Presence) -> Seat:
        before = self._seat
        self._lost_seat = self._lost_seat or (before is not None and not self._claims.seated)
        movable = before is not None and not before.active and not presence.busy and not self._claims.busy
        answer = await self._scripts.announce(
            instance=presence.instance,
            process=self._process,
            worker_id=presence.worker_id or "",
            held=before.worker if before else "",
            lost=self._lost_seat,
            movable=movable,
            ttl=round(self._settings.heartbeat.total_seconds() * 3000),
            keep=KEEP_MS,
            concurrency=presence.concurrency,
            busy=presence.busy,
            ready=presence.ready and self._claims.open,
        )
        if answer is None:
            raise SlotTaken(f"Another live worker holds the id {presence.worker_id}.")
        worker, epoch, desired, age, unable = answer
        self._lost_seat |= before is not None and before.worker != worker and not movable
        fresh = desired >= 0 and 0 <= age <= self._settings.scale_stale_ms
        active = reads(worker, desired, unable) if fresh else True
        self._seat = Seat(worker=worker, epoch=epoch, active=active)
        self._claims.sit_down(Place(worker, presence.instance, epoch))
        return self._seat

    async def retire(self) -> None:
        if self._seat is not None:
            await self._scripts.retire(worker=self._seat.worker, process=self._process)
            await self._claims.leave_former_seat()
            self._seat = None
            self._claims.stand_up()

    async def depth(self) -> Backlog:
        return backlog_of(await self._scripts.depth())

    async def tend(self) -> Tended:
        # Deadlines first: a retry that is due after its job's deadline does not go back to the queue.
        (expired, next_deadline), (promoted, next_retry), (requeued, lost) = await asyncio.gather(
            self._scripts.expire(limit=DUE_AT_ONCE),
            self._scripts.promote(limit=DUE_AT_ONCE),
            self._reconciler.step(),
        )
        due = [ms for ms in (next_retry, next_deadline) if ms >= 0]
        next_in = timedelta(milliseconds=min(due)) if due else None
        return Tended(next_in=next_in, promoted=promoted, expired=expired, requeued=requeued, lost=lost)

    async def lead(self, candidate: str, ttl: timedelta) -> int | None:
        return await self._scripts.lead(candidate=candidate, ttl=round(ttl.total_seconds() * 1000))

    async def publish_scale(self, decision: Decision, term: int) -> None:
        word = await self._scripts.publish_scale(
            term=term,
            desired=decision.desired,
            reason=decision.reason,
            lag=decision.lag,
            pending=decision.pending,
            retrying=decision.retrying,
            minimum=decision.min,
            maximum=decision.max,
            observed=decision.observed,
            history=HISTORY_KEPT,
        )
        if word == "over":
            raise TermOver

    async def scale(self) -> ScaleView:
        reply = await self._scripts.scale(history=HISTORY_SHOWN)
        with reading("The published scale"):
            return self._view(reply)

    def _view(self, reply: Sequence[Any]) -> ScaleView:
        now, flat, history, workers = reply
        fields = _Scale(records.pairs(flat), now, self._settings.scale_stale_ms)
        return ScaleView(
            decision=fields.decision,
            updated_at=None if fields.updated is None else records.instant(fields.updated),
            age=None if fields.updated is None else timedelta(milliseconds=now - fields.updated),
            stale=fields.stale,
            leader=fields.leader,
            workers=tuple(readable(_worker, workers)),
            history=tuple(readable(_change, history)),
        )


@dataclass(frozen=True, slots=True)
class _Scale:
    """The scale hash, read. What somebody broke counts as absent: the scaler's next round writes it anew."""

    fields: dict[str, bytes]
    now: int
    stale_ms: int

    @property
    def updated(self) -> int | None:
        return self._number("updated")

    @property
    def stale(self) -> bool:
        return self.updated is None or self.now - self.updated > self.stale_ms

    @property
    def leader(self) -> str | None:
        until = self._number("leads_until")
        leads = until is not None and until > self.now
        return self.fields["leader"].decode(errors="replace") if leads and "leader" in self.fields else None

    @property
    def decision(self) -> Decision | None:
        desired, reason = self._number("desired"), self.fields.get("reason", b"").decode(errors="replace")
        if desired is None or reason not in set(Reason):
            return None
        return Decision(
            desired=desired,
            reason=Reason(reason),
            lag=self._number("lag"),
            pending=self._number("pending"),
            retrying=self._number("retrying"),
            min=self._number("min") or 0,
            max=self._number("max") or 0,
            observed=self.fields.get("observed") == b"1",
        )

    def _number(self, name: str) -> int | None:
        raw = self.fields.get(name, b"")
        return int(raw) if raw.isdigit() and len(raw) < 15 else None


def _worker(slot: Sequence[Any]) -> WorkerView:
    name, row = slot[0], records.pairs(slot[1])
    return WorkerView(
        worker=name.decode(),
        instance=row["instance"].decode(),
        concurrency=int(row["concurrency"]),
        busy=int(row["busy"]),
        ready=row["ready"] == b"1",
        seen_at=records.instant(int(row["seen"])),
    )


def _change(entry: Sequence[Any]) -> ScaleChange:
    fields = records.pairs(entry[1])
    ms = int(entry[0].decode().split("-")[0])
    return ScaleChange(
        at=records.instant(ms), desired=int(fields["desired"]), reason=Reason(fields["reason"].decode())
    )
