"""Many jobs, and worker after worker killed in the middle of them: each job ends once, and nothing grows."""

from __future__ import annotations

import asyncio
import itertools
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from common.job import Job, Outcome
from common.redis_store.keys import GROUP, Keys
from common.store import Store
from common.stores import open_store
from lab.client import Api
from lab.exits import Exit
from lab.run import run_lab
from lab.supervisor import Child
from lab.system import Plan as LabPlan
from lab.system import Ready, System
from tests.endurance.beside import beside
from tests.endurance.samples import Sampler, Samples
from tests.keyspace import command, leaks
from tests.servers import connect
from tests.waiting import wait_until

LOOK_EVERY_S = 0.05
#: Records read at once.
PAGE = 500
#: Ended jobs that are remembered as they were, to be compared in the end.
REMEMBERED = 500
#: What has not drained by then, after the last submit, does not.
DRAINED_WITHIN_S = 120.0


@dataclass(frozen=True, kw_only=True)
class Plan:
    jobs: int
    kills: int
    workers: int = 4
    concurrency: int = 8
    latency_ms: int = 40
    #: Clients at once.
    clients: int = 32

    @property
    def lab(self) -> LabPlan:
        settings = {
            "namespace": "inference",
            "backend": "mock",
            "mock_latency_ms": str(self.latency_ms),
            "worker_concurrency": str(self.concurrency),
            "min_workers": str(self.workers),
            "claim_idle_ms": "5000",
            # More than three kills of one job are no fault of the job here.
            "max_attempts": "10",
            "retry_backoff_ms": "0",
            "max_queue_depth": "0",
            "api_keys_file": "",
            "durability": "server",
            "log_level": "WARNING",
        }
        return LabPlan(port=0, workers=self.workers, settings=settings, metrics=True)


@dataclass(kw_only=True)
class Account:
    """Where everything is in the end."""

    accepted: int
    seconds: float
    kills: int
    samples: Samples
    #: Ends of jobs, by state; jobs that nobody knows any more count as "unknown", others as "alive".
    ends: Counter[str] = field(default_factory=Counter[str])
    #: Starts beyond the first of each job.
    started_again: int = 0
    #: Jobs with more than one success, with another one's output, or changed after their end.
    took_effect_twice: list[str] = field(default_factory=list[str])
    leaked: list[str] = field(default_factory=list[str])
    #: Of the stream and of its group; None when the server does not tell.
    entries: int | None = None
    pending: int | None = None


async def endure(plan: Plan, tell: Callable[[str], None]) -> Account:
    """Raises LabError when the lab does not start, AssertionError when the jobs do not drain, and whatever
    ends the killer or the sampler."""
    accounts: list[Account] = []

    async def work(system: System, ready: Ready) -> Exit:
        store = open_store(system.settings)
        await store.start()
        async with Api(ready.api, connections=plan.clients + 4) as api:
            accounts.append(await Endurance(plan, system, store, api, tell).run())
        await store.aclose()
        return Exit.OK

    await run_lab(plan.lab, lambda _: None, work, interrupted=Exit.FAILED)
    return accounts[0]


class Endurance:
    def __init__(
        self, plan: Plan, system: System, store: Store, api: Api, tell: Callable[[str], None]
    ) -> None:
        self._plan = plan
        self._system = system
        self._store = store
        self._api = api
        self._tell = tell
        self._sampler = Sampler(system, store, api)
        self._prompts: dict[str, str] = {}
        self._kills = 0
        self._remembered: dict[str, Job] = {}

    async def run(self) -> Account:
        began = time.monotonic()
        async with self._sampler.sampling():
            async with beside(self._kill_on()):
                await self._submit_all()
                await self._drained()
            seconds = time.monotonic() - began
            await self._system.whole()
        account = Account(
            accepted=len(self._prompts), seconds=seconds, kills=self._kills, samples=self._sampler.samples
        )
        await self._audit(account)
        return account

    async def _submit_all(self) -> None:
        numbers = iter(range(self._plan.jobs))

        async def client() -> None:
            for number in numbers:
                prompt = f"question {number}"
                self._prompts[(await self._api.submit({"prompt": prompt})).value.job_id] = prompt

        await asyncio.gather(*(client() for _ in range(self._plan.clients)))

    async def _drained(self) -> None:
        async def nothing_lives() -> bool:
            backlog = await self._sampler.backlog()
            return backlog is not None and not backlog.unfinished

        await wait_until(nothing_lives, DRAINED_WITHIN_S, LOOK_EVERY_S)

    # ---- kills

    async def _kill_on(self) -> None:
        """Spread over the run by the jobs that have ended, so that the last is in the middle of work, too."""
        chance = random.Random(1)
        while self._kills < self._plan.kills:
            due = self._plan.jobs * (self._kills + 1) // (self._plan.kills + 1)
            backlog = await self._sampler.backlog()
            if backlog is None or backlog.ended < due:
                await asyncio.sleep(LOOK_EVERY_S)
                continue
            if child := await self._victim(chance):
                child.signal(signal.SIGKILL)
                self._kills += 1
                await self._remember(chance)
                if self._kills % 20 == 0:
                    self._tell(f"{self._kills} kills, {backlog.ended} of {self._plan.jobs} jobs ended")

    async def _victim(self, chance: random.Random) -> Child | None:
        """A worker that lives; None when all of them are between two lives."""
        children = await self._system.children()
        living = [
            child for name, child in sorted(children.items()) if name.startswith("worker-") and child.pid
        ]
        return chance.choice(living) if living else None

    async def _remember(self, chance: random.Random) -> None:
        """A few ended jobs as they are now: they must never change (P9)."""
        known = list(itertools.islice(reversed(self._prompts), 2_000))
        for job_id in chance.sample(known, min(3, len(known))):
            job = await self._store.get(job_id)
            if job.status.terminal and len(self._remembered) < REMEMBERED:
                self._remembered[job_id] = job

    # ---- the end

    async def _audit(self, account: Account) -> None:
        ids = list(self._prompts)
        for first in range(0, len(ids), PAGE):
            page = ids[first : first + PAGE]
            jobs = await asyncio.gather(*map(self._store.get, page), return_exceptions=True)
            for job_id, job in zip(page, jobs, strict=True):
                self._judge(account, job_id, job)
        keys = Keys(self._system.settings.namespace)
        raw = connect(self._system.settings.redis_url, decode_responses=True)
        await look_at_the_stream(account, raw, keys)
        account.leaked = await leaks(raw, keys.namespace, keys.permanent)
        await raw.aclose()

    def _judge(self, account: Account, job_id: str, job: Job | BaseException) -> None:
        if isinstance(job, BaseException):
            account.ends["unknown"] += 1
            return
        account.ends[job.status if job.status.terminal else "alive"] += 1
        account.started_again += len(job.attempts) - 1
        if not self._once(job_id, job):
            account.took_effect_twice.append(f"{job}")

    def _once(self, job_id: str, job: Job) -> bool:
        successes = _outcomes(job).count(Outcome.SUCCEEDED)
        own = job.result is None or job.result.text == self._prompts[job_id]
        return successes <= 1 and own and self._remembered.get(job_id, job) == job


async def look_at_the_stream(account: Account, raw: Redis, keys: Keys) -> None:
    """All that is in it, and all that its group has delivered. Without the group nobody knows."""
    account.entries = int(await command(raw, "XLEN", keys.jobs))
    with suppress(ResponseError):
        account.pending = int((await command(raw, "XPENDING", keys.jobs, GROUP))["pending"])


def _outcomes(job: Job) -> Sequence[Outcome | None]:
    return [attempt.outcome for attempt in job.attempts]
