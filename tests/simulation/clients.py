"""Clients of the gateways: they submit until they are told "accepted", wait, follow, cancel, and redrive."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from tests.api.keyring import KEYS
from tests.simulation.clock import Clock
from tests.simulation.http import Answer, Door, Request, Unanswered
from tests.simulation.witness import Span, Witness, expect

JOBS = "/v1/jobs"
#: Names with a key each.
CALLERS = ("ann", "ben")
#: The gateway is full, or its store is away: to be asked again.
NOT_NOW = {429, 503}


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all clients have to do with."""

    #: Of the gateways that somebody may know of.
    doors: Callable[[], list[Door]]
    witness: Witness
    chance: random.Random
    clock: Clock


class Clients:
    def __init__(self, around: Surroundings) -> None:
        self._around = around
        #: Requests for a job, each under a name of its own.
        self.sent = 0
        self.tasks: list[asyncio.Task[None]] = []

    @property
    def busy(self) -> bool:
        return any(not task.done() for task in self.tasks)

    async def run(self, every: float) -> None:
        """A client, or some, every so many seconds, until cancelled."""
        while True:
            await asyncio.sleep(self._around.chance.expovariate(1 / every))
            for _ in range(self._around.chance.choice([1, 1, 1, 6])):
                self.sent += 1
                client = Client(f"job-{self.sent}", self._around)
                self.tasks.append(asyncio.create_task(client.run()))


class Client:
    """One job, and what somebody does about it."""

    def __init__(self, name: str, around: Surroundings) -> None:
        self._name = name
        self._doors = around.doors
        self._witness = around.witness
        self._chance = around.chance
        self._clock = around.clock
        self._caller = self._chance.choice(CALLERS)
        #: Of the latest request.
        self._asked_ms = 0

    async def run(self) -> None:
        if job_id := await self._submit():
            with suppress(Unanswered):
                await self._then(job_id)

    async def _then(self, job_id: str) -> None:
        what = self._chance.choice(["wait", "wait", "follow", "cancel", "list", "leave", "redrive", "pry"])
        match what:
            case "wait":
                wait = f"wait={self._chance.random() * 15:.3f}"
                self._shown(job_id, await self._ask("GET", f"{JOBS}/{job_id}", query=wait))
            case "follow":
                self._followed(job_id, await self._ask("GET", f"{JOBS}/{job_id}/events"))
            case "cancel":
                await asyncio.sleep(self._chance.random() * 10)
                self._shown(job_id, await self._ask("DELETE", f"{JOBS}/{job_id}"), or_status=409)
            case "list":
                answer = await self._ask("GET", JOBS, query="limit=10")
                if self._answered(answer, 200):
                    for job in answer.json["jobs"]:
                        self._witness.saw(job, self._asked_ms)
            case "redrive":
                answer = await self._ask("POST", "/v1/dlq/redrive", body={"limit": 2})
                self._answered(answer, 200)
            case "pry":
                self._caller = next(name for name in CALLERS if name != self._caller)
                answer = await self._ask("GET", f"{JOBS}/{job_id}")
                if self._answered(answer, 200, 404):
                    expect(answer.status == 404, f"{self._caller} was shown another's job: {answer}")
            case _:
                pass

    async def _submit(self) -> str | None:
        """The id, once one was told. Tries on, as the API's documentation tells clients to."""
        tries = self._chance.choice([1, 8])
        body = self._request() | ({"idempotency_key": f"key-{self._name}"} if tries > 1 else {})
        first_ms = self._clock.unix_ms
        for _ in range(tries):
            try:
                answer = await self._ask("POST", JOBS, body=body)
            except Unanswered:
                pass
            else:
                if self._answered(answer, 202):
                    job_id = answer.json["job_id"]
                    self._witness.promised(self._name, job_id, Span(first_ms, self._clock.unix_ms))
                    return job_id
            await asyncio.sleep(self._chance.random() * 2)
        return None

    async def _ask(self, method: str, path: str, *, query: str = "", body: object = None) -> Answer:
        """Raises Unanswered."""
        if not (doors := self._doors()):
            raise Unanswered
        self._asked_ms = self._clock.unix_ms
        request = Request(method=method, path=path, query=query, body=body, key=KEYS[self._caller])
        return await self._chance.choice(doors).ask(request)

    def _answered(self, answer: Answer, *statuses: int) -> bool:
        """Whether the gateway did what it was asked; a refusal says that it may be asked again."""
        expect(answer.status in NOT_NOW or answer.status in statuses, f"{self._name}: {answer}")
        return answer.status not in NOT_NOW

    def _shown(self, job_id: str, answer: Answer, or_status: int = 200) -> None:
        if self._answered(answer, 200, 404, or_status):
            if answer.status == 200:
                self._witness.saw(answer.json, self._asked_ms)
            elif answer.status == 404:
                self._witness.missed(job_id)

    def _followed(self, job_id: str, answer: Answer) -> None:
        if not self._answered(answer, 200, 404):
            return
        if answer.status == 404:
            self._witness.missed(job_id)
            return
        for line in answer.body.split(b"\n"):
            if line.startswith(b"data: ") and "job" in (data := msgspec.json.decode(line[6:])):
                self._witness.saw(data["job"], self._asked_ms)

    def _request(self) -> dict[str, Any]:
        chance = self._chance
        how = chance.choice(["", "", "", "error", "permanent", "unreachable", "hang", "crash"])
        orders = {
            "seconds": chance.choice([0.0, 0.05, 2.0, 8.0]) * chance.random(),
            "how": how,
            # A model that is never there uses up ten refunds, with longer and longer pauses.
            "times": chance.choice([1, 2, 2 if how == "unreachable" else 99]) if how else 0,
        }
        return {
            "prompt": self._name,
            "params": {"sim": orders},
            "expires_in_s": chance.choice([None, None, None, 1.0, 30.0]),
            "timeout_s": chance.choice([None, 4.0]),
            "stream": chance.random() < 0.3,
            "metadata": {"name": self._name},
        }
