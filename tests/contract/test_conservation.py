"""Conservation: whatever happens in whatever order, every job is in exactly one place and ends once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta

import pytest

from common.errors import JobEnded, SeatLost
from common.job import Job, JobStatus
from common.store import Lease, Released, Settled, Settlement, Store
from tests.processes import Processes
from tests.requests import submission
from tests.workers import Worker, failed, finished

STEPS = 250


class Walk:
    """Random steps by a gateway and three workers. Leases are used late, twice and after they were lost."""

    def __init__(self, seed: int, gateway: Store, workers: list[Worker]) -> None:
        self.random = random.Random(seed)
        self.gateway = gateway
        self.workers = workers
        self.submitted: list[str] = []
        self.leases: list[Lease] = []
        #: Every answer that said a job had succeeded: job id -> the tokens that got it.
        self.succeeded: dict[str, set[str]] = {}
        self.ended: dict[str, Job] = {}

    async def step(self) -> None:
        steps: list[Callable[[], Awaitable[object]]] = [
            self.submit,
            self.submit,
            self.claim,
            self.claim,
            self.settle,
            self.settle,
            self.extend,
            self.cancel,
            self.tend,
            self.pause,
        ]
        await self.random.choice(steps)()

    async def submit(self) -> None:
        sent = submission(
            stream=self.random.random() < 0.3,
            expires_in_s=self.random.choice([None, None, 0.05, 60]),
            idempotency_key=self.random.choice([None, str(self.random.randrange(10**6))]),
            owner=self.random.choice(["", "ann", "ben"]),
        )
        for _ in range(self.random.choice([1, 1, 2])):
            await self.gateway.submit(sent)
        self.submitted.append(sent.job_id)

    async def claim(self) -> None:
        worker = self.random.choice(self.workers)
        with suppress(SeatLost):
            self.leases += (await worker.look(self.random.randint(1, 4))).leases

    async def settle(self) -> None:
        chosen = self.random.sample(self.leases, min(len(self.leases), 3))
        settlements = [self.settlement(lease) for lease in chosen]
        worker = self.random.choice(self.workers)
        for answers in [await worker.store.settle(settlements) for _ in range(self.random.choice([1, 2]))]:
            for lease, answer in zip(chosen, answers, strict=True):
                if answer is Settled.SUCCEEDED:
                    self.succeeded.setdefault(lease.job_id, set()).add(lease.token)

    def settlement(self, lease: Lease) -> Settlement:
        return self.random.choice(
            [
                finished(lease, lease.token),
                failed(lease),
                failed(lease, retry_in=timedelta(milliseconds=20)),
                failed(lease, retry_in=timedelta(seconds=90)),
                failed(lease, retry_in=None),
                Released(lease=lease),
            ]
        )

    async def extend(self) -> None:
        some = self.random.sample(self.leases, min(len(self.leases), 3))
        await self.random.choice(self.workers).store.extend(some)

    async def cancel(self) -> None:
        for job_id in self.random.sample(self.submitted, min(len(self.submitted), 1)):
            with suppress(JobEnded):
                await self.gateway.cancel(job_id)

    async def tend(self) -> None:
        await self.random.choice(self.workers).store.tend()

    async def pause(self) -> None:
        """Lets leases and seats run out."""
        if self.random.random() < 0.3:
            await asyncio.sleep(0.12)

    async def check(self) -> None:
        backlog = await self.gateway.depth()
        assert backlog.unaccounted == 0, backlog
        assert backlog.submitted == len(self.submitted)
        assert min(backlog.queued, backlog.running, backlog.retrying) >= 0, backlog
        for job_id in self.random.sample(self.submitted, min(len(self.submitted), 2)):
            await self.check_final(await self.gateway.get(job_id))

    async def check_final(self, job: Job) -> None:
        if job.status.terminal:
            assert self.ended.setdefault(job.job_id, job) == job

    async def drain(self, worker: Worker) -> None:
        """Runs what is left to its end; what was tried before may wait for long, and is cancelled."""
        async with asyncio.timeout(20):
            for job_id in self.submitted:
                job = await self.gateway.get(job_id)
                if job.status is JobStatus.QUEUED and job.attempt:
                    await self.gateway.cancel(job_id)
            while (await self.gateway.depth()).unfinished:
                await self.gateway.tend()
                leases = (await worker.look(10, timedelta(milliseconds=20))).leases
                answers = await worker.store.settle([finished(lease, lease.token) for lease in leases])
                for lease, answer in zip(leases, answers, strict=True):
                    if answer is Settled.SUCCEEDED:
                        self.succeeded.setdefault(lease.job_id, set()).add(lease.token)


async def walk(processes: Processes, seed: int) -> None:
    gateway = await processes.open()
    workers = [await processes.hire() for _ in range(3)]
    walk = Walk(seed, gateway, workers)
    for _ in range(STEPS):
        await walk.step()
        await walk.check()
    await walk.drain(await processes.hire())
    for job_id in walk.submitted:
        job = await gateway.get(job_id)
        assert job.status.terminal
        await walk.check_final(job)
        tokens = walk.succeeded.get(job_id, set())
        assert len(tokens) == (job.status is JobStatus.SUCCEEDED)
        assert not job.result or {job.result.text} == tokens
        assert [line.n for line in job.attempts] == list(range(1, job.attempt + 1))


@pytest.mark.settings(claim_idle_ms=100, retry_backoff_ms=0)
@pytest.mark.parametrize("seed", [1, 2])
async def test_a_random_walk_loses_and_doubles_nothing(processes: Processes, seed: int) -> None:
    await walk(processes, seed)


@pytest.mark.sent_twice
@pytest.mark.settings(claim_idle_ms=100, retry_backoff_ms=0)
@pytest.mark.parametrize("seed", [11, 12])
async def test_a_random_walk_with_every_script_sent_twice_loses_and_doubles_nothing(
    processes: Processes, seed: int
) -> None:
    await walk(processes, seed)


async def test_the_sum_holds_at_every_instant_while_all_work_at_once(processes: Processes) -> None:
    gateway = await processes.open()
    workers = [await processes.hire() for _ in range(3)]
    done = asyncio.Event()

    async def submit_many() -> None:
        for _ in range(100):
            await gateway.submit(submission())

    async def run(worker: Worker) -> None:
        while not done.is_set():
            leases = (await worker.look(5, timedelta(milliseconds=10))).leases
            await worker.store.settle([finished(lease) for lease in leases])

    async def watch(store: Store) -> None:
        while not done.is_set():
            backlog = await store.depth()
            assert backlog.unaccounted == 0, backlog
            if backlog.succeeded == 100:
                done.set()

    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        tasks.create_task(watch(await processes.open()))
        tasks.create_task(submit_many())
        for worker in workers:
            tasks.create_task(run(worker))
