"""The gateway's part of the port."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, cast
from urllib.parse import quote

import msgspec

from common.errors import (
    IdempotencyConflict,
    JobEnded,
    JobExpired,
    JobNotFound,
    QueueFull,
    StoreCorrupt,
)
from common.job import Cause, Job, JobRequest, JobStatus, Submission, long_gone, new_job_id
from common.redis_store import records
from common.redis_store.calls import Calls
from common.redis_store.keys import Keys
from common.redis_store.scripts import Scripts
from common.redis_store.waiters import Changed, Waiters
from common.settings import Settings
from common.store import DeadLetter, EventKind, JobEvent, Redriven, Submitted

PAGE = 100
#: Seconds; a watch is woken long before, by what it waits for or by the recheck.
FOR_EVER = 3600.0


class GatewayPart:
    _settings: Settings
    _keys: Keys
    _calls: Calls
    _scripts: Scripts
    #: On its own connection when a submit has to wait for the disk or a replica.
    _durable: Scripts
    _waiters: Waiters

    async def submit(self, submission: Submission, *, max_depth: int = 0) -> Submitted:
        request = submission.request
        body, shown = records.encode_request(request)
        key = submission.idempotency_key
        word, values = await self._durable.submit(
            job_id=submission.job_id,
            request=body,
            shown=shown,
            owner=records.encode_text(submission.owner) if submission.owner else b"",
            # The owner is quoted: "a" + "b:c" and "a:b" + "c" are two keys.
            idem=f"{quote(submission.owner, safe='')}:{key}" if key else "",
            fingerprint=request.fingerprint() if key else "",
            expires_in=_ms(request.expires_in_s),
            stream=request.stream,
            recent_max=self._settings.recent_max,
            max_depth=max_depth,
        )
        match word:
            case "accepted":
                created, position = int(values[0]), int(values[1])
                return Submitted(job=_accepted(submission, created), replayed=False, position=position)
            case "replayed":
                job = await self.get(cast(bytes, values[0]).decode())
                return Submitted(job=job, replayed=True)
            case "conflict":
                raise IdempotencyConflict
            case _:
                raise QueueFull(int(values[0]), max_depth)

    async def get(self, job_id: str) -> Job:
        job = (await self._read([job_id]))[0]
        if job is None:
            raise self._missing(job_id)
        return job

    async def wait(self, job_id: str, timeout: timedelta) -> Job:
        job = await self.get(job_id)
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout.total_seconds()
        if job.status.terminal or timeout <= timedelta(0):
            return job
        async with self._waiters.watch(job_id) as changed:
            while True:
                job = await self.get(job_id)
                if job.status.terminal or not await changed(max(0.0, until - loop.time())):
                    return job

    async def cancel(self, job_id: str) -> Job:
        answer = await self._scripts.cancel(job_id=job_id)
        match answer:
            case ["cancelled"]:
                return await self.get(job_id)
            case ["ended", status]:
                raise JobEnded(status)
            case _:
                raise self._missing(job_id)

    async def events(self, job_id: str, after: str | None = None) -> AsyncGenerator[JobEvent, None]:
        async with self._waiters.watch(job_id) as changed:
            job = await self.get(job_id)
            stream = self._logged_events if await self._has_log(job_id) else self._plain_events
            async for event in stream(job, after, changed):
                yield event

    async def list_jobs(
        self, *, status: JobStatus | None = None, limit: int = 50, before: str | None = None
    ) -> list[Job]:
        rank = 0
        if before is not None:
            found = await self._calls.start("ZREVRANK", self._keys.recent, before)
            if found is None:
                return []
            rank = cast(int, found) + 1
        jobs: list[Job] = []
        while len(jobs) < limit:
            page = await self._calls.start("ZREVRANGE", self._keys.recent, rank, rank + PAGE - 1)
            ids = [raw.decode() for raw in cast(list[bytes], page)]
            jobs += [job for job in await self._read(ids) if job and (status is None or status is job.status)]
            if len(ids) < PAGE:
                break
            rank += PAGE
        return jobs[:limit]

    async def list_dead(self, *, limit: int = 50, before: str | None = None) -> list[DeadLetter]:
        top = f"({before}" if before else "+"
        reply = await self._calls.start("XREVRANGE", self._keys.dlq, top, "-", "COUNT", limit)
        return [_dead_letter(entry) for entry in cast(list[Any], reply)]

    async def redrive(
        self,
        *,
        ids: Sequence[str] | None = None,
        cause: Cause | None = None,
        limit: int = 100,
        dry_run: bool = False,
    ) -> Redriven:
        wanted = None if ids is None else frozenset(ids)
        chosen: list[DeadLetter] = []
        unusable: list[str] = []
        async for letter in self._dead_from_oldest():
            if len(chosen) >= limit:
                break
            if (wanted is not None and letter.job_id not in wanted) or cause not in (None, letter.cause):
                continue
            if letter.request is None:
                unusable.append(letter.job_id)
            else:
                chosen.append(letter)
        pairs = [(letter.job_id, "") for letter in chosen] if dry_run else await self._revive(chosen)
        return Redriven(jobs=tuple(pairs), unusable=tuple(unusable))

    async def _revive(self, letters: Sequence[DeadLetter]) -> list[tuple[str, str]]:
        new = [new_job_id() for _ in letters]
        items = [
            (letter.cursor, job_id, _ms(request.expires_in_s), request.stream)
            for letter, job_id in zip(letters, new, strict=True)
            if (request := letter.request)
        ]
        words = await self._durable.redrive(recent_max=self._settings.recent_max, letters=items)
        revived = zip(letters, new, words, strict=True)
        return [(letter.job_id, job_id) for letter, job_id, word in revived if word == "queued"]

    async def _dead_from_oldest(self) -> AsyncGenerator[DeadLetter, None]:
        start = "-"
        while True:
            reply = await self._calls.start("XRANGE", self._keys.dlq, start, "+", "COUNT", PAGE)
            page = [_dead_letter(entry) for entry in cast(list[Any], reply)]
            for letter in page:
                yield letter
            if len(page) < PAGE:
                return
            start = f"({page[-1].cursor}"

    async def _read(self, job_ids: Sequence[str]) -> list[Job | None]:
        if not job_ids:
            return []
        replies = await self._scripts.read(job_ids=job_ids)
        return [_job(job_id, reply) for job_id, reply in zip(job_ids, replies, strict=True)]

    def _missing(self, job_id: str) -> JobNotFound | JobExpired:
        ttl = timedelta(seconds=self._settings.result_ttl_s)
        return JobExpired() if long_gone(job_id, ttl, datetime.now(UTC)) else JobNotFound()

    async def _has_log(self, job_id: str) -> bool:
        return await self._calls.start("EXISTS", self._keys.tokens(job_id)) == 1

    async def _logged_events(self, job: Job, after: str | None, changed: Changed) -> AsyncGenerator[JobEvent, None]:
        last = after or "0-0"
        while True:
            reply = await self._calls.start(
                "XRANGE", self._keys.tokens(job.job_id), f"({last}", "+", "COUNT", PAGE
            )
            for entry in cast(list[Any], reply):
                event = _event(entry)
                last = event.id
                yield event
                if event.status is not None and event.status.terminal:
                    return
            if not reply:
                if job.status.terminal:
                    return
                job = await self.get(job.job_id)
                if not job.status.terminal:
                    await changed(FOR_EVER)

    async def _plain_events(self, job: Job, after: str | None, changed: Changed) -> AsyncGenerator[JobEvent, None]:
        shown = None
        while True:
            if job.status is not shown:
                shown = job.status
                yield JobEvent(id="", kind=EventKind.STATE, attempt=job.attempt, status=job.status)
            if job.status.terminal:
                return
            await changed(FOR_EVER)
            job = await self.get(job.job_id)


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else max(1, round(seconds * 1000))


def _accepted(submission: Submission, created: int) -> Job:
    request = submission.request
    expires_in = _ms(request.expires_in_s)
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
    try:
        match reply[0]:
            case b"ended":
                return records.decode_ended(job_id, reply[1])
            case b"live":
                return records.decode_live(job_id, reply[1], records.pairs(reply[2:]))
            case _:
                return None
    except (msgspec.DecodeError, KeyError, ValueError) as error:
        raise StoreCorrupt(f"The record of job {job_id} is broken: {error}") from error


def _dead_letter(entry: Any) -> DeadLetter:
    cursor, fields = entry[0].decode(), records.pairs(entry[1])
    request = fields.get("request")
    return DeadLetter(
        cursor=cursor,
        job_id=fields["job_id"].decode(),
        owner=records.decode_text(fields["owner"]),
        cause=Cause(fields["cause"].decode()),
        error=records.decode_text(fields["error"]),
        attempts=int(fields["attempts"]),
        died_at=records.instant(int(cursor.split("-")[0])),
        request=_request(request, fields.get("shown")) if request else None,
    )


def _request(request: bytes, shown: bytes | None) -> JobRequest | None:
    try:
        return records.decode_request(request, shown)
    except msgspec.DecodeError:
        return None


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
