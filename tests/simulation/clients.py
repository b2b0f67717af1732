"""Clients of gateways: they submit until they are told "accepted", wait, cancel, and redrive."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from datetime import timedelta

from common.errors import JobEnded, JobExpired, JobNotFound, StoreError
from common.job import JobRequest, Submission, new_job_id
from common.store import Store, Submitted
from tests.simulation.clock import Clock
from tests.simulation.network import Node
from tests.simulation.witness import Witness, expect

GONE = (JobNotFound, JobExpired)


class Clients:
    """Those of one gateway process, and as dead or paused as it is."""

    def __init__(
        self, node: Node, store: Store, witness: Witness, chance: random.Random, clock: Clock
    ) -> None:
        self.node = node
        self._store = store
        self._witness = witness
        self._chance = chance
        self._clock = clock
        self._numbers = 0
        self.tasks: list[asyncio.Task[None]] = []
        #: No more of them come.
        self.over = False

    @property
    def busy(self) -> bool:
        """Whether one of them is still at it; those of a killed gateway never are again."""
        return not self.node.dead and any(not task.done() for task in self.tasks)

    async def run(self, every: float) -> None:
        """A client every so many seconds."""
        while True:
            await asyncio.sleep(self._chance.expovariate(1 / every))
            if self.over:
                return
            for _ in range(self._chance.choice([1, 1, 1, 6])):
                self.tasks.append(asyncio.create_task(self._client()))

    async def _client(self) -> None:
        sent = self._submission()
        if not await self._submit(sent):
            return
        with suppress(*GONE, StoreError):
            match self._chance.choice(["wait", "wait", "cancel", "read", "leave", "redrive"]):
                case "wait":
                    seconds = timedelta(seconds=self._chance.random() * 15)
                    self._witness.saw(await self._store.wait(sent.job_id, seconds))
                case "cancel":
                    await asyncio.sleep(self._chance.random() * 10)
                    with suppress(JobEnded):
                        self._witness.saw(await self._store.cancel(sent.job_id))
                case "read":
                    for job in await self._store.list_jobs(limit=10):
                        self._witness.saw(job)
                case "redrive":
                    await self._store.redrive(limit=2)
                case _:
                    pass

    async def _submit(self, sent: Submission) -> bool:
        """Tries on, as the API's documentation tells clients to."""
        self._witness.sent.add(sent.job_id)
        for _ in range(self._chance.choice([1, 8])):
            asked_ms = self._clock.unix_ms
            try:
                answer = await self._store.submit(sent)
            except StoreError:
                await asyncio.sleep(self._chance.random() * 2)
            else:
                self._accepted(sent, answer, asked_ms)
                return True
        return False

    def _accepted(self, sent: Submission, answer: Submitted, asked_ms: int) -> None:
        expect(answer.job.job_id == sent.job_id, f"another job was accepted: {answer}")
        # Which second it was stored in, nobody can tell from outside: not before it was asked.
        created_ms = round(answer.job.created_at.timestamp() * 1000)
        expect(created_ms <= self._clock.unix_ms, "accepted in the future")
        self._witness.promised(sent.job_id, created_ms)

    def _submission(self) -> Submission:
        self._numbers += 1
        name = f"{self.node.name}-{self._numbers}"
        how = self._chance.choice(["", "", "", "error", "permanent", "unreachable", "hang", "crash"])
        orders = {
            "seconds": self._chance.choice([0.0, 0.05, 2.0, 8.0]) * self._chance.random(),
            "how": how,
            # A model that is never there uses up ten refunds, with longer and longer pauses.
            "times": self._chance.choice([1, 2, 2 if how == "unreachable" else 99]) if how else 0,
        }
        request = JobRequest(
            prompt=name,
            params={"sim": orders},
            expires_in_s=self._chance.choice([None, None, None, 1.0, 30.0]),
            timeout_s=self._chance.choice([None, 4.0]),
            stream=self._chance.random() < 0.3,
            metadata={"name": name},
        )
        key = f"key-{name}" if self._chance.random() < 0.4 else None
        return Submission(job_id=new_job_id(), request=request, owner="sim", idempotency_key=key)
