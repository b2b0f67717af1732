"""What all steps share: the processes, the model, and the question whether it agrees with the store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant

from common.fleet import Presence
from common.job import Job, JobStatus
from common.store import Lease
from tests.model.job import Holder, Instant, ModelJob, Seen
from tests.model.lifecycle import Lifecycle
from tests.model.world import World
from tests.servers import Server
from tests.workers import Worker

T = TypeVar("T")
Method = TypeVar("Method", bound=Callable[..., None])
#: A step's name and its arguments.
Call = tuple[str, dict[str, Any]]

#: Chooses one of what is there.
PICK = st.integers(0, 99)
LISTED = 1000


def step(weight: int, **arguments: st.SearchStrategy[Any]) -> Callable[[Method], Method]:
    """Marks one kind of step: how often it is taken, and with what.

    Not a rule of its own: Hypothesis switches most rules off in each example, and a job's life needs many."""

    def mark(method: Method) -> Method:
        STEPS[method.__name__] = (weight, arguments)
        return method

    return mark


#: By name: weight and arguments.
STEPS: dict[str, tuple[int, dict[str, st.SearchStrategy[Any]]]] = {}


def calls() -> st.SearchStrategy[Call]:
    """Any step marked so far."""
    each = [
        st.tuples(st.just(name), st.fixed_dictionaries(arguments))
        for name, (weight, arguments) in STEPS.items()
        for _ in range(weight)
    ]
    return st.one_of(each)


@dataclass
class Process:
    """A worker's process as the steps know it. One that crashed in everybody's eyes may only be paused."""

    worker: Worker
    #: Number of its latest announcement among all, and when that was (Unix milliseconds).
    announced: int
    announced_ms: int
    #: Every lease it was ever given.
    leases: list[Lease] = field(default_factory=list[Lease])
    #: What its store thinks it holds, by token.
    holding: dict[str, Lease] = field(default_factory=dict[str, Lease])
    retired: bool = False

    def holder(self, token: str = "") -> Holder:
        """What a record says of a job that it holds."""
        seat = self.worker.seat
        return Holder(token, seat.worker, self.worker.presence.instance, seat.epoch)


class Steps(RuleBasedStateMachine):
    """Subclasses add the steps. `server` and `world_class` are set by whoever runs the machine."""

    server: ClassVar[Server]
    world_class: ClassVar[type[World]]
    sent_twice: ClassVar[bool] = False
    #: Steps taken by all examples.
    taken: ClassVar[int] = 0

    @initialize(max_attempts=st.integers(1, 3))
    def open(self, max_attempts: int) -> None:
        self.world = self.world_class(self.server, sent_twice=self.sent_twice, max_attempts=max_attempts)
        self.gateway = self.world.gateway
        ttl_ms = self.world.timing.result_ttl_s * 1000
        self.model = Lifecycle(
            idle_ms=self.world.timing.claim_idle,
            max_attempts=max_attempts,
            result_ttl_ms=ttl_ms,
            key_ttl_ms=ttl_ms // 2,
        )
        self.announcements = 0
        self.processes: list[Process] = []
        #: Ended jobs as they were first seen.
        self.final: dict[str, Job] = {}
        self.failed = True
        self.hire("one")
        self.hire("two")
        self.failed = False

    def hire(self, instance: str) -> Process:
        """A process that was just started, and sits down."""
        worker = self.world.run(self._seated(instance))
        self.announcements += 1
        self.processes.append(Process(worker, self.announcements, self.world.now_ms()))
        return self.processes[-1]

    async def _seated(self, instance: str) -> Worker:
        store = await self.world.processes.open(instance=instance)
        return await Worker.seated(store, Presence(instance=instance))

    def pick(self, among: Sequence[T], number: int) -> T:
        return among[-1 - number % len(among)]

    def picked_job(self, number: int) -> ModelJob | None:
        jobs = list(self.model.jobs.values())
        return self.pick(jobs, number) if jobs else None

    # ---- agreement

    @invariant()
    def agree(self) -> None:
        """Every visible state, every count, and what has ended is as it was."""
        type(self).taken += 1
        if self.failed:
            return
        self.failed = True
        seen, now = self.look()
        for job in self.model.jobs.values():
            gone = self.model.gone(job, now)
            if job.job_id not in seen:
                assert True in gone, f"{job.job_id} cannot be found: {job}"
                continue
            assert False in gone, f"the result of {job.job_id} outlived its time"
            assert Seen.of(seen[job.job_id]) == job.seen, job.job_id
            self._final(seen[job.job_id])
        self._counts()
        self.failed = False

    def look(self) -> tuple[dict[str, Job], Instant]:
        """All jobs that can be read, in the order of a list."""
        jobs, now = self.world.timed(self.gateway.list_jobs(limit=LISTED))
        order = [(job.created_at, job.job_id) for job in jobs]
        assert order == sorted(order, reverse=True), "a list of jobs is not newest first"
        assert len({job.job_id for job in jobs}) == len(jobs), "a list shows a job twice"
        return {job.job_id: job for job in jobs}, now

    def _final(self, job: Job) -> None:
        if job.status.terminal:
            assert self.final.setdefault(job.job_id, job) == job, "an ended job changed (P9)"

    def _counts(self) -> None:
        backlog = self.world.run(self.gateway.depth())
        assert backlog.unaccounted == 0, f"P1: {backlog}"
        assert backlog.submitted == self.model.submitted
        assert backlog.dead_letters == len(self.model.dead)
        for status, count in self.model.ended.items():
            assert getattr(backlog, status.value) == count, (status, backlog)
        live = self.model.live
        running = sum(job.status is JobStatus.RUNNING for job in live)
        waiting = sum(job.retry_at is not None for job in live)
        unsure = sum(job.maybe_promoted for job in live)
        assert backlog.running == running, backlog
        assert waiting - unsure <= backlog.retrying <= waiting, backlog
        assert backlog.queued + backlog.retrying == len(live) - running, backlog
        if backlog.lag is not None and backlog.pending is not None:
            assert backlog.lag + backlog.pending == backlog.queued + running, backlog
