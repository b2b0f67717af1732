"""Who sees everything, and says what must not be."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec

from api.shapes import job_view
from common.errors import JobExpired, JobNotFound
from common.job import MAX_REFUNDS, Job, JobStatus, Outcome
from common.store import Store

#: A job as `GET /v1/jobs/{id}` shows it.
View = dict[str, Any]


class Violation(Exception):
    """A promise was broken."""


def expect(holds: bool, what: str) -> None:
    if not holds:
        raise Violation(what)


@dataclass(frozen=True, slots=True)
class Span:
    """Unix milliseconds from first to last."""

    first: int
    last: int

    def meets(self, other: Span) -> bool:
        return self.first <= other.last and other.first <= self.last


@dataclass
class Witness:
    """What clients were told, and what must therefore be so."""

    max_attempts: int
    #: Of each job with a 202: from the first request to the answer. Some time in between it was stored.
    accepted: dict[str, Span] = field(default_factory=dict[str, Span])
    #: The job that each request stands for, by its name.
    named: dict[str, str] = field(default_factory=dict[str, str])
    #: Each ended job as it was first seen.
    ended: dict[str, View] = field(default_factory=dict[str, View])
    #: What the server has lost.
    losses: list[Span] = field(default_factory=list[Span])
    samples: int = 0

    def promised(self, name: str, job_id: str, asked: Span) -> None:
        """Asked once, or again and again with one idempotency key."""
        first = self.named.setdefault(name, job_id)
        expect(first == job_id or self.forfeited(first), f"P4: {name} is two jobs: {first} and {job_id}")
        self.named[name] = job_id
        self.accepted.setdefault(job_id, asked)

    def forfeited(self, job_id: str) -> bool:
        """Whether it may have been accepted in a second that the server lost."""
        return any(self.accepted[job_id].meets(loss) for loss in self.losses)

    def missed(self, job_id: str) -> None:
        """Somebody was told that there is no such job."""
        expect(
            job_id not in self.accepted or self.forfeited(job_id), f"P1: an accepted job is gone: {job_id}"
        )

    def saw(self, job: View, asked_ms: int | None = None) -> None:
        """Every record that anybody was shown, and when it was asked for."""
        attempts, status = job["attempts"], job["status"]
        numbers = [line["n"] for line in attempts]
        expect(
            numbers == list(range(1, job["attempt"] + 1)), f"P6: starts are not numbered one by one: {job}"
        )
        released = sum(line["outcome"] == Outcome.RELEASED for line in attempts)
        spent = job["attempt"] - min(released, MAX_REFUNDS)
        expect(spent <= self.max_attempts, f"P6: started beyond the budget: {job}")
        running = [line["n"] for line in attempts if line["outcome"] is None]
        expect(running in ([], [job["attempt"]]), f"two attempts run at once: {job}")
        expect(bool(running) == (status == JobStatus.RUNNING), f"a state without its attempt: {job}")
        if JobStatus(status).terminal and not self._outdated(job, asked_ms):
            first = self.ended.setdefault(job["job_id"], job)
            expect(first == job, f"P9: an ended job changed: {first} -> {job}")
        if job["result"] is not None:
            self._result(job, job["result"]["text"])

    def _outdated(self, job: View, asked_ms: int | None) -> bool:
        """Whether the server may have lost this end while the answer was on its way."""
        return asked_ms is not None and any(
            loss.last >= asked_ms and loss.first <= _ended_ms(job) for loss in self.losses
        )

    def _result(self, job: View, text: str) -> None:
        prompt, attempt = text.split("/")
        expect(bool(job["attempts"]), f"a result without a start: {job}")
        last = job["attempts"][-1]
        expect(prompt == job["metadata"].get("name"), f"another job's result: {job}")
        own = int(attempt) == last["n"] and last["outcome"] == Outcome.SUCCEEDED
        expect(own, f"P3: a lost lease wrote: {job}")

    def lost(self, since_ms: int, now_ms: int) -> None:
        """The server has lost what it did since then: what ended then is live again or gone."""
        self.losses.append(Span(since_ms, now_ms))
        self.ended = {job_id: job for job_id, job in self.ended.items() if _ended_ms(job) < since_ms}

    async def sample(self, store: Store, job_ids: list[str]) -> None:
        backlog = await store.depth()
        self.samples += 1
        expect(backlog.unaccounted == 0, f"P1: {backlog}")
        for job_id in job_ids:
            await self.look(store, job_id)

    async def look(self, store: Store, job_id: str) -> None:
        """At the job as a client would see it."""
        try:
            job = await store.get(job_id)
        except (JobNotFound, JobExpired):
            self.missed(job_id)
        else:
            self.saw(view(job))


def view(job: Job) -> View:
    return msgspec.json.decode(msgspec.json.encode(job_view(job)))


def _ended_ms(job: View) -> float:
    return datetime.fromisoformat(job["finished_at"]).timestamp() * 1000
