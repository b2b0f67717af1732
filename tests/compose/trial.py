"""What every step has at hand: the stack, its API, and the account of its jobs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from lab.client import Api
from lab.exits import ApiRefused, ApiUnreachable
from lab.records import JobRecord, Stats
from tests.compose.prometheus import Prometheus
from tests.compose.stack import Stack
from tests.waiting import wait_until


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    stack: Stack
    api: Api
    prometheus: Prometheus
    began: float = field(default_factory=time.time)

    async def submit(self, count: int, latency_ms: int, **mock: object) -> list[str]:
        """Ids of accepted jobs."""
        body = {"prompt": "What survives?", "params": {"mock": {"latency_ms": latency_ms, **mock}}}
        replies = await asyncio.gather(*(self.api.submit(body) for _ in range(count)))
        return [reply.value.job_id for reply in replies]

    async def succeeded(self, ids: list[str]) -> list[JobRecord]:
        """The jobs, once all have ended. Every one must have succeeded."""
        jobs = [reply.value for reply in await asyncio.gather(*map(self.api.ended, ids))]
        assert all(job.succeeded for job in jobs), [job for job in jobs if not job.succeeded]
        return jobs

    async def stats(self) -> Stats:
        stats = (await self.api.stats()).value
        assert stats.unaccounted == 0, f"jobs are unaccounted for: {stats}"
        return stats

    async def until(self, condition: Callable[[Stats], bool], timeout: float = 60) -> None:
        """Waits for counts; the store may be away meanwhile."""

        async def so() -> bool:
            try:
                return condition(await self.stats())
            except (ApiRefused, ApiUnreachable):
                return False

        await wait_until(so, timeout, every=0.05)

    async def until_live(self, workers: int) -> None:
        async def so() -> bool:
            return (await self.api.scale()).value.live == workers

        await wait_until(so, 30, every=0.1)

    async def settled(self) -> Stats:
        """The account once nothing is under way: what was accepted has ended, each job once."""
        await self.until(lambda stats: not stats.queued + stats.running + stats.retrying)
        stats = await self.stats()
        ended = stats.succeeded + stats.failed + stats.cancelled + stats.expired
        assert stats.submitted == ended, f"accepted and ended differ: {stats}"
        return stats


#: Does its checks and says what it saw.
Step = Callable[[Trial], Awaitable[str]]
