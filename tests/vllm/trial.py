"""A lab whose workers call the real engine, and the account of its jobs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from common.job import Outcome
from common.settings import Settings
from common.store import Store
from common.stores import open_store
from lab.client import Api
from lab.records import JobRecord, Stats
from tests.e2e.labs import RunningLab
from tests.vllm.engine import Engine
from tests.waiting import wait_until

WORKERS = 2
CONCURRENCY = 2
SLOTS = WORKERS * CONCURRENCY

#: Renewed leases tell of cancels once a second, as they do in production.
SETTINGS = {
    "backend": "vllm",
    "worker_concurrency": str(CONCURRENCY),
    "min_workers": str(WORKERS),
    "claim_idle_ms": "30000",
    "drain_ms": "500",
}


def settings_for(engine: Engine) -> dict[str, str]:
    return SETTINGS | {"vllm_url": engine.url, "vllm_model": engine.model}


def tokens(count: int, **params: object) -> dict[str, object]:
    """Parameters under which the engine writes exactly so many."""
    return {"max_tokens": count, "ignore_eos": True, **params}


@dataclass(frozen=True, slots=True)
class Trial:
    engine: Engine
    api: Api
    #: For what the API does not show: which workers are ready.
    store: Store

    async def submit(self, **body: object) -> str:
        """The id of an accepted job."""
        return (await self.api.submit({"prompt": "What survives?"} | body)).value.job_id

    async def job(self, job_id: str) -> JobRecord:
        return (await self.api.job(job_id)).value

    async def jobs(self, ids: Sequence[str]) -> list[JobRecord]:
        return list(await asyncio.gather(*map(self.job, ids)))

    async def ended(self, job_id: str) -> JobRecord:
        return (await self.api.ended(job_id)).value

    async def all_ended(self, ids: Sequence[str]) -> list[JobRecord]:
        return list(await asyncio.gather(*map(self.ended, ids)))

    async def stats(self) -> Stats:
        stats = (await self.api.stats()).value
        assert stats.unaccounted == 0, f"promise P1 is broken: {stats}"
        return stats

    async def until(self, condition: Callable[[Stats], bool], timeout: float = 30) -> None:
        async def so() -> bool:
            return condition(await self.stats())

        await wait_until(so, timeout, every=0.05)

    async def until_ready(self, ready: bool, timeout: float = 15) -> None:
        """Until all workers have a backend, or none has."""

        async def so() -> bool:
            workers = (await self.store.scale()).workers
            return len(workers) == WORKERS and all(worker.ready is ready for worker in workers)

        await wait_until(so, timeout, every=0.05)

    async def nothing_is_read_until_it_is_up(self, unfinished: int) -> None:
        """Watches the queue all the time that the engine takes to come."""

        async def up() -> bool:
            stats = await self.stats()
            if await self.engine.up():
                return True
            # It was away a moment ago, too.
            assert (stats.running, stats.queued + stats.retrying) == (0, unfinished), stats
            return False

        await wait_until(up, timeout=150, every=0.1)

    async def settled(self) -> None:
        """Nothing is under way, here or in the engine, and every job accepted has ended once."""
        await self.until(lambda stats: not stats.queued + stats.running + stats.retrying)
        stats = await self.stats()
        ended = stats.succeeded + stats.failed + stats.cancelled + stats.expired
        assert stats.submitted == ended, f"accepted and ended differ: {stats}"
        await self.engine.until_running(0)


@asynccontextmanager
async def trial_in(lab: RunningLab, engine: Engine) -> AsyncGenerator[Trial, None]:
    """Checks the account at the end of a test that has not failed before."""
    store = open_store(Settings(redis_url=lab.ready.redis))
    await store.start()
    try:
        async with lab.client() as api:
            trial = Trial(engine, api, store)
            yield trial
            await trial.settled()
    finally:
        await store.aclose()


def counted(job: JobRecord) -> list[Outcome | None]:
    """Attempts that used up budget; what was given back did not."""
    return [attempt.outcome for attempt in job.attempts if attempt.outcome is not Outcome.RELEASED]
