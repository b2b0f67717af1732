"""Who sees everything, and says what must not be."""

from __future__ import annotations

from dataclasses import dataclass, field

from common.errors import JobExpired, JobNotFound
from common.job import MAX_REFUNDS, Job, JobStatus, Outcome
from common.store import Store


class Violation(Exception):
    """A promise was broken."""


def expect(holds: bool, what: str) -> None:
    if not holds:
        raise Violation(what)


@dataclass
class Witness:
    """What clients were told, and what must therefore be so."""

    max_attempts: int
    #: Accepted: a client has its 202. By the time of acceptance in Unix milliseconds.
    accepted: dict[str, int] = field(default_factory=dict[str, int])
    #: Sent, and perhaps accepted: the client gave up.
    sent: set[str] = field(default_factory=set[str])
    ended: dict[str, Job] = field(default_factory=dict[str, Job])
    #: Accepted in a second that the server lost.
    forfeited: set[str] = field(default_factory=set[str])
    samples: int = 0

    def promised(self, job_id: str, now_ms: int) -> None:
        self.accepted[job_id] = now_ms

    def saw(self, job: Job) -> None:
        """Every record that anybody was shown."""
        numbers = [line.n for line in job.attempts]
        expect(numbers == list(range(1, job.attempt + 1)), f"P6: starts are not numbered one by one: {job}")
        released = sum(line.outcome is Outcome.RELEASED for line in job.attempts)
        spent = job.attempt - min(released, MAX_REFUNDS)
        expect(spent <= self.max_attempts, f"P6: started beyond the budget: {job}")
        running = [line.n for line in job.attempts if line.outcome is None]
        expect(running in ([], [job.attempt]), f"two attempts run at once: {job}")
        expect(bool(running) == (job.status is JobStatus.RUNNING), f"a state without its attempt: {job}")
        if job.status.terminal:
            first = self.ended.setdefault(job.job_id, job)
            expect(first == job, f"P9: an ended job changed: {first} -> {job}")
        if job.result is not None:
            self._result(job, job.result.text)

    def _result(self, job: Job, text: str) -> None:
        prompt, attempt = text.split("/")
        expect(bool(job.attempts), f"a result without a start: {job}")
        last = job.attempts[-1]
        expect(prompt == job.metadata.get("name"), f"another job's result: {job}")
        expect(int(attempt) == last.n and last.outcome is Outcome.SUCCEEDED, f"P3: a lost lease wrote: {job}")

    def lost(self, since_ms: int) -> None:
        """The server has lost what it did since then: what ended then is live again or gone."""
        self.ended = {
            job_id: job
            for job_id, job in self.ended.items()
            if job.finished_at is not None and job.finished_at.timestamp() * 1000 < since_ms
        }
        self.forfeited |= {job_id for job_id, at in self.accepted.items() if at >= since_ms}

    async def sample(self, store: Store, job_ids: list[str]) -> None:
        backlog = await store.depth()
        self.samples += 1
        expect(backlog.unaccounted == 0, f"P1: {backlog}")
        for job_id in job_ids:
            await self.look(store, job_id)

    async def look(self, store: Store, job_id: str) -> Job | None:
        try:
            job = await store.get(job_id)
        except (JobNotFound, JobExpired):
            known = job_id in self.accepted and job_id not in self.forfeited
            expect(not known, f"an accepted job is gone: {job_id}")
            return None
        self.saw(job)
        return job
