"""The life of jobs as DESIGN and docs/lifecycle.md tell it, without a store: what each call must answer.

Where the clock of a real server leaves a choice (a lease that ran out between two readings), the model takes
every answer that some reading allows, and goes on from the one that was given."""

from __future__ import annotations

from common.job import MAX_REFUNDS, Cause, JobStatus, Outcome
from tests.model.job import YES, Holder, Instant, ModelJob, due, ran_out

OUTCOMES = {
    JobStatus.SUCCEEDED: Outcome.SUCCEEDED,
    JobStatus.CANCELLED: Outcome.CANCELLED,
    JobStatus.EXPIRED: Outcome.EXPIRED,
}


class Lifecycle:
    def __init__(self, *, idle_ms: int, max_attempts: int, result_ttl_ms: int, key_ttl_ms: int) -> None:
        self.idle_ms = idle_ms
        self.max_attempts = max_attempts
        self.result_ttl_ms = result_ttl_ms
        self.key_ttl_ms = key_ttl_ms
        self.jobs: dict[str, ModelJob] = {}
        #: Idempotency key -> the job it was first used for.
        self.keys: dict[str, str] = {}
        #: Dead job -> its cause.
        self.dead: dict[str, Cause] = {}
        #: Dead job that was queued again -> the new job, and when.
        self.redriven: dict[str, tuple[str, Instant]] = {}
        #: Counts of what ended and was accepted, of jobs whose results are gone too.
        self.submitted = 0
        self.ended = dict.fromkeys((status for status in JobStatus if status.terminal), 0)

    # ---- what may be asked about a job

    @property
    def live(self) -> list[ModelJob]:
        return [job for job in self.jobs.values() if job.live]

    def gone(self, job: ModelJob, now: Instant) -> frozenset[bool]:
        """Whether an ended job's record has been removed."""
        return ran_out(job.ended_at, self.result_ttl_ms, now)

    def lapsed(self, job: ModelJob, now: Instant) -> frozenset[bool]:
        return due(job.leased_at.after(self.idle_ms) if job.leased_at else None, now)

    def overdue(self, job: ModelJob, now: Instant) -> frozenset[bool]:
        return due(job.deadline, now)

    def replays(self, key: str, now: Instant) -> tuple[ModelJob | None, frozenset[bool]]:
        """The job behind a key, and whether the key is still remembered."""
        job = self.jobs.get(self.keys.get(key, ""))
        if job is None or job.ended_at is None:
            return job, frozenset({job is not None})
        forgotten = ran_out(job.ended_at, min(self.key_ttl_ms, self.result_ttl_ms), now)
        return job, frozenset(not yes for yes in forgotten)

    def redriven_as(self, dead: str, now: Instant) -> tuple[str, frozenset[bool]]:
        """The job that a dead one was queued again as, and whether that is still remembered."""
        new, at = self.redriven[dead]
        return new, frozenset(not yes for yes in ran_out(at, self.result_ttl_ms, now))

    def takeable(self, job: ModelJob, by: Holder, now: Instant) -> frozenset[bool]:
        """Whether a running job may be begun again: a lost lease, or one's own from before a restart."""
        assert job.holder
        if job.holder.seat == by.seat and job.holder.epoch < by.epoch:
            return YES
        return self.lapsed(job, now)

    # ---- gateway

    def accept(self, job: ModelJob) -> None:
        assert job.job_id not in self.jobs, f"{job.job_id} was accepted twice"
        self.jobs[job.job_id] = job
        self.submitted += 1
        if job.key:
            self.keys[job.key] = job.job_id

    def cancel(self, job: ModelJob, now: Instant) -> None:
        self._end(job, JobStatus.CANCELLED, now, token="")

    # ---- time keeping

    def promote(self, now: Instant) -> tuple[int, int]:
        """Retries that are due go back to the queue: at least, and at most, so many of them."""
        least = most = 0
        for job in self.live:
            is_due = due(job.retry_at, now)
            if is_due == YES:
                least += not job.maybe_promoted
                job.retry_at, job.maybe_promoted = None, False
            elif True in is_due:
                job.maybe_promoted = True
            most += True in is_due
        return least, most

    def expire(self, job: ModelJob, now: Instant) -> None:
        assert True in self.overdue(job, now), f"{job.job_id} expired before its deadline"
        self._end(job, JobStatus.EXPIRED, now, token="")

    # ---- worker

    def begin(self, job: ModelJob, holder: Holder, now: Instant) -> None:
        """A start. Everything that forbids one is an assertion."""
        assert job.live, f"{job.job_id} was begun after its end"
        assert False in self.overdue(job, now), f"{job.job_id} was begun past its deadline"
        assert job.retry_at is None or job.maybe_promoted, f"{job.job_id} was begun before its retry was due"
        if job.holder is not None:
            may = self.takeable(job, holder, now)
            assert True in may, f"a live lease was stolen: {job.holder} by {holder}"
            self._close(job, Outcome.CRASH)
        assert job.spent < self.max_attempts, f"{job.job_id} was started beyond its budget"
        job.status, job.holder, job.leased_at, job.retry_at = JobStatus.RUNNING, holder, now, None
        job.starts, job.seq, job.maybe_promoted = job.starts + 1, 0, False
        kind = "state" if job.starts == 1 else "attempt"
        job.events.append((kind, job.starts, "running"))

    def must_run_alone(self, job: ModelJob) -> bool:
        """Of a job that has just begun: this is its last start, and it was lost before."""
        return job.crashed_before and job.spent >= self.max_attempts

    def crash_out(self, job: ModelJob, by: Holder, now: Instant) -> None:
        assert job.holder is not None, f"{job.job_id} crashed out without running"
        assert True in self.takeable(job, by, now), f"{job.job_id} crashed out under a live lease"
        assert job.spent >= self.max_attempts, f"{job.job_id} crashed out with budget left"
        self._bury(job, Cause.CRASH, now, token=None)

    def settle(
        self, job: ModelJob, token: str, kind: str, given: str, now: Instant, *, retry_ms: int | None = None,
        text: str = "", cause: Cause = Cause.ERROR,
    ) -> None:  # fmt: skip
        """One settlement that was answered with `given`."""
        if job.holder is None or job.holder.token != token:
            expected = job.settled[1] if job.settled and job.settled[0] == token else "lost"
            maybe_gone = not job.live and True in self.gone(job, now)
            assert given == expected or (maybe_gone and given == "lost"), (
                f"{kind} by a token that holds nothing: {given}, expected {expected}"
            )
            return
        match kind:
            case "finish":
                assert given == "succeeded"
                self._end(job, JobStatus.SUCCEEDED, now, token=token, text=text)
            case "release":
                self._release(job, token, given, now)
            case _:
                self._fail(job, token, given, now, retry_ms, cause)

    def extend(self, job: ModelJob, token: str, given: str, now: Instant) -> None:
        if job.holder is not None and job.holder.token == token:
            assert given == "held", f"the holder's lease was answered {given}"
            job.leased_at = now
            return
        told = {JobStatus.CANCELLED: "cancelled", JobStatus.EXPIRED: "expired"}
        expected = {told.get(job.status, "taken")}
        if not job.live and True in self.gone(job, now):
            expected.add("taken")
        assert given in expected, f"extend without a lease was answered {given}, expected {expected}"

    def append(self, job: ModelJob, token: str, seq: int, text: str, given: bool) -> None:
        held = job.holder is not None and job.holder.token == token
        assert given is held, f"append was answered {given}"
        if held and seq > job.seq:
            job.seq = seq
            job.events.append(("chunk", job.starts, text))

    # ---- how attempts and jobs end

    def _fail(
        self, job: ModelJob, token: str, given: str, now: Instant, retry_ms: int | None, cause: Cause
    ) -> None:
        if retry_ms is None or job.spent >= self.max_attempts:
            assert given == "failed", f"a failure that cannot be retried was answered {given}"
            self._bury(job, cause, now, token=token)
            return
        late = due(job.deadline, now.after(retry_ms))
        assert given in {"expired" if is_late else "retrying" for is_late in late}
        self._close(job, Outcome(cause.value))
        if given == "expired":
            self._end(job, JobStatus.EXPIRED, now, token=token)
        else:
            self._requeue(job, token, given, now.after(retry_ms) if retry_ms else None)

    def _release(self, job: ModelJob, token: str, given: str, now: Instant) -> None:
        if job.refunds >= MAX_REFUNDS and job.spent >= self.max_attempts:
            assert given == "failed", f"given back too often, and answered {given}"
            self._bury(job, Cause.ERROR, now, token=token)
            return
        assert given == "released"
        job.refunds += job.refunds < MAX_REFUNDS
        self._close(job, Outcome.RELEASED)
        self._requeue(job, token, given, None)

    def _requeue(self, job: ModelJob, token: str, answer: str, retry_at: Instant | None) -> None:
        job.status, job.retry_at, job.settled, job.seq = JobStatus.QUEUED, retry_at, (token, answer), 0
        job.events.append(("state", job.starts, "queued"))

    def _close(self, job: ModelJob, outcome: Outcome) -> None:
        assert job.holder
        job.closed.append((job.starts, job.holder.worker, outcome))
        job.holder = job.leased_at = None

    def _bury(self, job: ModelJob, cause: Cause, now: Instant, token: str | None) -> None:
        self.dead[job.job_id] = cause
        job.cause = cause
        self._end(job, JobStatus.FAILED, now, token=token or "")

    def _end(
        self, job: ModelJob, status: JobStatus, now: Instant, *, token: str, text: str | None = None
    ) -> None:
        assert job.live, f"{job.job_id} ended twice: {job.status}, then {status}"
        if job.holder is not None:
            outcome = OUTCOMES.get(status) or Outcome((job.cause or Cause.ERROR).value)
            self._close(job, outcome)
        job.status, job.text, job.ended_at, job.retry_at = status, text, now, None
        job.settled = (token, status.value) if token else None
        job.events.append(("state", job.starts, status.value))
        self.ended[status] += 1
