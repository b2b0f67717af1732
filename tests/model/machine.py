"""The machine: the steps of gateways and workers, time that passes, and the end of every example."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import rule

from common.fleet import Tended
from common.job import JobStatus
from common.store import JobEvent
from tests.model.base import PICK, Call, calls, step
from tests.model.gateway import GatewaySteps
from tests.model.job import NO, YES, Instant, LoggedEvent, ModelJob
from tests.model.workers import WorkerSteps

#: Rounds of one worker after which nothing may be left.
DRAINED_WITHIN = 100


class TimeSteps(GatewaySteps, WorkerSteps):
    # ---- time

    @step(5, share=st.sampled_from([1, 1, 2, 3, 3]))
    def time_passes(self, share: int) -> None:
        timing = self.world.timing
        half_a_lease, past_a_lease = timing.claim_idle * 6 // 10, timing.claim_idle * 11 // 10
        self.world.let_pass({1: timing.soon * 11 // 10, 2: half_a_lease, 3: past_a_lease}[share])

    @step(1, share=st.sampled_from([1, 2]))
    def results_run_out(self, share: int) -> None:
        """First their idempotency keys."""
        if self.world.can_wait:
            self.world.let_pass(self.world.timing.result_ttl_s * 501 * share)

    @step(4, number=PICK)
    def tend(self, number: int) -> None:
        store = self.pick([self.gateway, *(process.worker.store for process in self.processes)], number)
        tended, now = self.world.timed(store.tend())
        assert (tended.requeued, tended.lost) == (0, 0), tended
        seen, _ = self.look()
        expired = [job for job in self.model.live if seen[job.job_id].status is JobStatus.EXPIRED]
        assert tended.expired == len(expired)
        for job in expired:
            self.model.expire(job, now)
        assert not [job for job in self.model.live if self.model.overdue(job, now) == YES]
        least, most = self.model.promote(now)
        assert least <= tended.promoted <= most, tended
        self._next(tended, now)

    def _next(self, tended: Tended, now: Instant) -> None:
        live = self.model.live
        due = [at for job in live for at in (job.deadline, job.retry_at) if at is not None]
        if tended.next_in is None:
            # A retry in whose millisecond this call came may have been the last.
            assert not [job for job in live if job.deadline or (job.retry_at and not job.maybe_promoted)]
            return
        assert due
        next_in = round(tended.next_in.total_seconds() * 1000)
        assert min(at.low for at in due) - now.high <= next_in
        assert next_in <= max(0, min(at.high for at in due) - now.low) or any(
            job.maybe_promoted for job in live
        )


class Machine(TimeSteps):
    @rule(call=calls())
    def step(self, call: Call) -> None:
        name, arguments = call
        self.failed = True
        getattr(self, name)(**arguments)
        self.failed = False

    # ---- the end

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        kept = not self.failed
        try:
            if kept:
                self._drain()
                self._logs()
        except BaseException:
            kept = False
            raise
        finally:
            self.world.close(check=kept)

    def _drain(self) -> None:
        """Whatever state the steps left: one worker that does its duty ends every job and tidies up."""
        last = self.hire("last")
        for _ in range(DRAINED_WITHIN):
            self.world.let_pass(self.world.timing.claim_idle // 3)
            self.tend(0)
            if not self.model.live:
                return
            leases = self.claimed(last, 10, announced=True, fresh=True)
            if leases:
                self.settled(last, [("finish", self._settlement(lease, "finish")) for lease in leases])
            self.agree()
        raise AssertionError(f"never ended: {self.model.live}")

    def _logs(self) -> None:
        """The event log of every ended job tells what happened to it, and nothing twice."""
        for job in self.model.jobs.values():
            if job.request.stream and self.model.gone(job, self.now()) == NO:
                assert self.world.run(self._events(job)) == job.events, job.job_id

    async def _events(self, job: ModelJob) -> list[LoggedEvent]:
        return [_told(event) async for event in self.gateway.events(job.job_id)]


def _told(event: JobEvent) -> LoggedEvent:
    return event.kind.value, event.attempt, event.text or (event.status.value if event.status else "")
