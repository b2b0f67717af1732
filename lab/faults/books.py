"""The books of one fault: which jobs were accepted, how each ended, and whether it ended once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from common.job import Outcome
from lab.client import Api, Reply
from lab.exits import ApiRefused, ApiUnreachable
from lab.records import JobRecord, Stats

#: A job that has not ended by then counts as lost.
GIVE_UP_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What became of every job of one fault."""

    jobs: int
    #: Accepted, and without an end that a client can see.
    lost: int
    #: Accepted twice, succeeded twice, or changed after the end.
    duplicates: int
    #: None when nobody could be asked.
    stats: Stats | None


class Books:
    def __init__(self, api: Api, before: Stats) -> None:
        self._api = api
        self._before = before
        #: Accepted jobs, with their records at their end as they came.
        self._records: dict[str, str | None] = {}

    def accepted(self, ids: Iterable[str]) -> None:
        for job_id in ids:
            self._records.setdefault(job_id, None)

    async def ends(self, ids: Sequence[str]) -> list[JobRecord]:
        """The jobs once they have ended; those that do not end are left out."""
        replies = await asyncio.gather(*map(self._end, ids))
        for reply in replies:
            if reply is not None:
                self._records[reply.value.job_id] = reply.raw
        return [reply.value for reply in replies if reply is not None]

    async def account(self) -> Account:
        """Reads every job again, and compares with what was read before."""
        first = dict(self._records)
        jobs = await self.ends(list(first))
        changed = {job_id for job_id, raw in first.items() if raw and raw != self._records[job_id]}
        twice = {job.job_id for job in jobs if _successes(job) > 1}
        stats = await self._stats()
        # More jobs than any client knows of: an answer was lost, and the second try made another job.
        strangers = stats.submitted - self._before.submitted - len(first) if stats else 0
        return Account(
            jobs=len(first),
            lost=len(first) - len(jobs),
            duplicates=len(changed | twice) + max(0, strangers),
            stats=stats,
        )

    async def _end(self, job_id: str) -> Reply[JobRecord] | None:
        with suppress(ApiRefused, ApiUnreachable, TimeoutError):
            async with asyncio.timeout(GIVE_UP_S):
                return await self._api.ended(job_id)
        return None

    async def _stats(self) -> Stats | None:
        with suppress(ApiRefused, ApiUnreachable):
            return (await self._api.stats()).value
        return None


def _successes(job: JobRecord) -> int:
    return sum(attempt.outcome is Outcome.SUCCEEDED for attempt in job.attempts)
