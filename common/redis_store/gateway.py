"""The gateway's part of the port."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any, cast
from urllib.parse import quote

from common.errors import (
    IdempotencyConflict,
    JobEnded,
    JobExpired,
    JobNotFound,
    OwnerFull,
    QueueFull,
    StoreCorrupt,
    StoreUnavailable,
)
from common.job import Job, JobStatus, Submission, long_gone
from common.redis_store import records
from common.redis_store.calls import Calls
from common.redis_store.dead import DeadLetterPart
from common.redis_store.keys import Keys
from common.redis_store.scripts import Scripts
from common.redis_store.translate import readable, reading
from common.redis_store.waiters import Changed, Waiters
from common.redis_store.wire import PATIENCE_S
from common.settings import Settings
from common.store import EventKind, JobEvent, Submitted

PAGE = 100
#: Jobs read at once for a list, and the longest result that it shows, in bytes of JSON.
LIST_PAGE = 20
LISTED_RESULT = 16_384
#: Calls that read whole results at once: each may be megabytes, in several copies.
READS_AT_ONCE = 16
#: After this a read has waited long enough for its turn: those before it get no answer either.
TURN_WITHIN_S = PATIENCE_S
#: A watch is woken long before, by what it waits for or by the recheck.
FOR_EVER_S = 3600.0

Events = AsyncGenerator[JobEvent, None]


class GatewayPart(DeadLetterPart):
    _settings: Settings
    _keys: Keys
    _calls: Calls
    _scripts: Scripts
    #: On its own connection when a submit has to wait for the disk or a replica.
    _durable: Scripts
    _waiters: Waiters
    _reading: asyncio.Semaphore

    async def submit(self, submission: Submission, *, max_depth: int = 0, max_open: int = 0) -> Submitted:
        word, values = await self._submit(submission, max_depth, max_open)
        match word:
            case "accepted":
                created, position = int(values[0]), int(values[1])
                return Submitted(job=_accepted(submission, created), replayed=False, position=position)
            case "replayed":
                job = (await self._read([str(values[0])]))[0]
                # Its result ran out just now, and with it the key: the next try is the first.
                if job is None:
                    return await self.submit(submission, max_depth=max_depth, max_open=max_open)
                return Submitted(job=job, replayed=True)
            case "conflict":
                raise IdempotencyConflict
            case "owner_full":
                raise OwnerFull(int(values[0]), max_open)
            case _:
                raise QueueFull(int(values[0]), max_depth)

    async def _submit(
        self, submission: Submission, max_depth: int, max_open: int
    ) -> tuple[str, list[str | int]]:
        request, key = submission.request, submission.idempotency_key
        body, shown = records.encode_request(request)
        return await self._durable.submit(
            job_id=submission.job_id,
            request=body,
            shown=shown,
            owner=records.encode_text(submission.owner) if submission.owner else b"",
            # The owner is quoted: "a" + "b:c" and "a:b" + "c" are two keys.
            idem=f"{quote(submission.owner, safe='')}:{key}" if key else "",
            fingerprint=request.fingerprint() if key else "",
            expires_in=records.milliseconds(request.expires_in_s),
            stream=request.stream,
            recent_max=self._settings.recent_max,
            max_depth=max_depth,
            max_open=max_open if submission.owner else 0,
        )

    async def get(self, job_id: str, *, owner: str | None = None) -> Job:
        job = (await self._read([job_id]))[0]
        if job is None or owner not in (None, job.owner):
            raise self._missing(job_id)
        return job

    async def wait(self, job_id: str, timeout: timedelta, *, owner: str | None = None) -> Job:
        job = await self.get(job_id, owner=owner)
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout.total_seconds()
        if job.status.terminal or timeout <= timedelta(0):
            return job
        async with self._waiters.watch(job_id) as changed:
            while True:
                job = await self.get(job_id)
                left = until - loop.time()
                # Once the time is up nobody asks: chunks that keep coming would be news for ever.
                if job.status.terminal or left <= 0 or not await changed(left):
                    return job

    async def cancel(self, job_id: str, *, owner: str | None = None) -> Job:
        if owner is not None:
            # An owner never changes: what holds now holds when the script runs.
            await self.get(job_id, owner=owner)
        answer = await self._scripts.cancel(job_id=job_id)
        match answer:
            case ["cancelled"]:
                return await self.get(job_id)
            case ["ended", status]:
                raise JobEnded(status)
            case _:
                raise self._missing(job_id)

    async def events(self, job_id: str, after: str | None = None, *, owner: str | None = None) -> Events:
        async with self._waiters.watch(job_id) as changed:
            job = await self.get(job_id, owner=owner)
            stream = self._logged_events if await self._has_log(job_id) else self._plain_events
            async for event in stream(job, after, changed):
                yield event

    async def list_jobs(
        self,
        *,
        status: JobStatus | None = None,
        limit: int = 50,
        before: str | None = None,
        owner: str | None = None,
    ) -> list[Job]:
        rank = 0 if before is None else await self._rank_after(before, owner)
        if rank is None:
            return []
        jobs: list[Job] = []
        while len(jobs) < limit:
            page = await self._calls.start("ZREVRANGE", self._keys.recent, rank, rank + LIST_PAGE - 1)
            ids = [raw.decode(errors="replace") for raw in cast(list[bytes], page)]
            jobs += [
                job
                for job in await self._read_light(ids)
                if status in (None, job.status) and owner in (None, job.owner)
            ]
            if len(ids) < LIST_PAGE:
                break
            rank += LIST_PAGE
        return jobs[:limit]

    async def _rank_after(self, job_id: str, owner: str | None) -> int | None:
        """Where a list goes on; None after a job that is not there, or not this owner's."""
        rank = await self._calls.start("ZREVRANK", self._keys.recent, job_id)
        if owner is not None:
            job = (await self._read([job_id]))[0]
            rank = rank if job and job.owner == owner else None
        return None if rank is None else cast(int, rank) + 1

    async def _read(self, job_ids: Sequence[str]) -> list[Job | None]:
        if not job_ids:
            return []
        async with self._turn_to_read():
            replies = await self._scripts.read(job_ids=job_ids)
        return [_job(job_id, reply) for job_id, reply in zip(job_ids, replies, strict=True)]

    @asynccontextmanager
    async def _turn_to_read(self) -> AsyncGenerator[None]:
        try:
            async with asyncio.timeout(TURN_WITHIN_S):
                await self._reading.acquire()
        except TimeoutError:
            raise StoreUnavailable("No turn to read in time.") from None
        try:
            yield
        finally:
            self._reading.release()

    async def _read_light(self, job_ids: Sequence[str]) -> list[Job]:
        """Those that are there; a record that somebody broke does not hide the others."""
        jobs: list[Job] = []
        replies = await self._scripts.read(job_ids=job_ids, longest_result=LISTED_RESULT)
        for job_id, reply in zip(job_ids, replies, strict=True):
            with suppress(StoreCorrupt):
                jobs += [job] if (job := _job(job_id, reply)) else []
        return jobs

    def _missing(self, job_id: str) -> JobNotFound | JobExpired:
        ttl = timedelta(seconds=self._settings.result_ttl_s)
        return JobExpired() if long_gone(job_id, ttl, datetime.now(UTC)) else JobNotFound()

    async def _has_log(self, job_id: str) -> bool:
        return await self._calls.start("EXISTS", self._keys.tokens(job_id)) == 1

    async def _had_event(self, job_id: str, event_id: str) -> bool:
        """Whoever has seen one that is not there, or not there any more, gets all of them."""
        return bool(await self._calls.start("XRANGE", self._keys.tokens(job_id), event_id, event_id))

    async def _logged_events(
        self, job: Job, after: str | None, changed: Changed
    ) -> AsyncGenerator[JobEvent, None]:
        last = after if after and await self._had_event(job.job_id, after) else "0-0"
        while True:
            reply = await self._calls.start(
                "XRANGE", self._keys.tokens(job.job_id), f"({last}", "+", "COUNT", PAGE
            )
            for event in readable(_event, cast(list[Any], reply)):
                yield event
                if event.status is not None and event.status.terminal:
                    return
            if reply:
                last = reply[-1][0].decode()
            else:
                if job.status.terminal:
                    return
                job = await self.get(job.job_id)
                if not job.status.terminal:
                    await changed(FOR_EVER_S)

    async def _plain_events(
        self, job: Job, after: str | None, changed: Changed
    ) -> AsyncGenerator[JobEvent, None]:
        shown = None
        while True:
            if job.status is not shown:
                shown = job.status
                yield JobEvent(id="", kind=EventKind.STATE, attempt=job.attempt, status=job.status)
            if job.status.terminal:
                return
            await changed(FOR_EVER_S)
            job = await self.get(job.job_id)


def _accepted(submission: Submission, created: int) -> Job:
    request = submission.request
    expires_in = records.milliseconds(request.expires_in_s)
    return Job(
        job_id=submission.job_id,
        status=JobStatus.QUEUED,
        created_at=records.instant(created),
        deadline_at=None if expires_in is None else records.instant(created + expires_in),
        model=request.model,
        metadata=request.metadata,
        owner=submission.owner,
    )


def _job(job_id: str, reply: Sequence[bytes]) -> Job | None:
    with reading(f"The record of job {job_id}"):
        match reply[0]:
            case b"ended":
                return records.decode_ended(job_id, reply[1])
            case b"live":
                return records.decode_live(job_id, reply[1], records.pairs(reply[2:]))
            case b"gone":
                return None
            case _:
                raise ValueError("somebody put something else in its place")


def _event(entry: Any) -> JobEvent:
    fields = records.pairs(entry[1])
    status = fields.get("status")
    return JobEvent(
        id=entry[0].decode(),
        kind=EventKind(fields["kind"].decode()),
        attempt=int(fields["attempt"]),
        status=JobStatus(status.decode()) if status else None,
        text=fields["text"].decode() if "text" in fields else None,
    )
