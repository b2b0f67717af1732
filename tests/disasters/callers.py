"""Clients of several gateways, who know what each of their calls must be answered with."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import TypeVar

from common.errors import JobEnded, StoreUnavailable
from common.job import Job, Submission
from common.store import Store
from tests.requests import submission

Answer = TypeVar("Answer")

#: Several on each gateway: their commands share round trips.
CLIENTS_EACH = 4


class Callers:
    def __init__(self, gateways: Sequence[Store], seed: int) -> None:
        self._gateways = gateways
        self._random = random.Random(seed)
        self._numbers = itertools.count()
        #: Number of the call, by the job that it was answered with.
        self.accepted: dict[str, int] = {}
        #: Jobs whose cancelling was answered.
        self.cancelled: set[str] = set()
        #: Answers that did not come.
        self.away = 0

    @asynccontextmanager
    async def busy(self) -> AsyncGenerator[None]:
        """Until the block ends; then each brings its last call to an end."""
        over = asyncio.Event()

        async def keep_calling(gateway: Store) -> None:
            while not over.is_set():
                await self._call(gateway, next(self._numbers))

        async with asyncio.TaskGroup() as tasks:
            for gateway in [*self._gateways] * CLIENTS_EACH:
                tasks.create_task(keep_calling(gateway))
            yield
            over.set()

    def check(self, job: Job, job_id: str) -> None:
        """This job and no other, with the result for its own prompt if it has one."""
        number = self.accepted[job_id]
        assert (job.job_id, job.metadata) == (job_id, {"number": number}), f"a crossed reply: {job}"
        if job.result is not None:
            assert job.result.text == _prompt(number), f"a crossed result: {job}"

    async def _call(self, gateway: Store, number: int) -> None:
        job_id = await self._submit(gateway, number)
        if number % 7 == 0:
            with suppress(JobEnded):
                self.check(await self._insist(lambda: gateway.cancel(job_id)), job_id)
                self.cancelled.add(job_id)
        known = self._random.choice([*self.accepted])
        self.check(await self._insist(lambda: gateway.get(known)), known)
        self.check(await self._insist(lambda: gateway.wait(job_id, timedelta(seconds=1))), job_id)

    async def _submit(self, gateway: Store, number: int) -> str:
        """Without a key the id makes a repeated submit the same; with one it has a new id, as over HTTP."""
        keyed, first = number % 2 == 0, _submission(number, keyed=False)

        def sent() -> Submission:
            return _submission(number, keyed=True) if keyed else first

        job_id = (await self._insist(lambda: gateway.submit(sent()))).job.job_id
        assert self.accepted.setdefault(job_id, number) == number, f"two calls, one job: {job_id}"
        elsewhere = self._random.choice(self._gateways)
        again = await self._insist(lambda: elsewhere.submit(sent()))
        assert again.job.job_id == job_id, f"one call, two jobs: {job_id}, {again.job}"
        self.check(again.job, job_id)
        return job_id

    async def _insist(self, call: Callable[[], Awaitable[Answer]]) -> Answer:
        while True:
            try:
                return await call()
            except StoreUnavailable:
                self.away += 1
                await asyncio.sleep(0.01)


def _submission(number: int, *, keyed: bool) -> Submission:
    return submission(
        _prompt(number),
        idempotency_key=f"key {number}" if keyed else None,
        metadata={"number": number},
        stream=number % 5 == 0,
    )


def _prompt(number: int) -> str:
    """Of many lengths, so that a cut may fall into it."""
    return " ".join([f"call-{number}"] * (1 + number % 100))
