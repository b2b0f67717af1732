"""Counts and log lines about jobs: the worker's whole telemetry of what happened to them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from common.fleet import Tended
from common.job import Cause, JobStatus, Outcome
from common.store import Claimed, Failed, Finished, Lease, LeaseState, Released, Settled, Settlement
from common.telemetry import WorkerMetrics
from worker.hold import Hold

log = logging.getLogger(__name__)

#: How an attempt ended whose lease is gone.
LOSSES = {
    LeaseState.CANCELLED: Outcome.CANCELLED,
    LeaseState.EXPIRED: Outcome.EXPIRED,
    LeaseState.TAKEN: Outcome.LOST,
}

#: How the job ended, where the answer to an outcome says that it has.
ENDS = {
    Settled.SUCCEEDED: JobStatus.SUCCEEDED,
    Settled.FAILED: JobStatus.FAILED,
    Settled.EXPIRED: JobStatus.EXPIRED,
}


class Tally:
    def __init__(self, metrics: WorkerMetrics, worker: Callable[[], str | None]) -> None:
        self._metrics = metrics
        self._worker = worker
        # Bound once: looking a label up costs three times the counting.
        self._jobs = {status: metrics.jobs.labels(status) for status in ENDS.values()}
        self._attempts = {outcome: metrics.attempts.labels(outcome) for outcome in Outcome}
        self._tokens_in = metrics.tokens.labels("in")
        self._tokens_out = metrics.tokens.labels("out")

    def called(self) -> None:
        self._metrics.model_calls.inc()

    def claimed(self, claimed: Claimed) -> None:
        for lease in claimed.leases:
            if lease.queued_for is not None:
                self._metrics.queue_seconds.observe(lease.queued_for.total_seconds())
            if lease.reclaimed:
                self._metrics.reclaims.inc()
                self._attempts[Outcome.CRASH].inc()
                log.info("job reclaimed", extra=self._about(lease))
        self._metrics.short_circuits.inc(claimed.short_circuits)
        self._metrics.discarded.inc(claimed.discarded)
        self._metrics.crashed_out.inc(claimed.crashed_out)
        self._metrics.failed(Cause.CRASH, claimed.crashed_out)
        self._metrics.jobs.labels(JobStatus.EXPIRED).inc(claimed.expired)
        self._attempts[Outcome.CRASH].inc(claimed.crashed_out)

    def settled(self, batch: Sequence[tuple[Hold, Settlement]], answers: Sequence[Settled | None]) -> None:
        """None: the store cannot take this outcome, and it was given up."""
        now = time.monotonic()
        tokens_in = tokens_out = 0
        for (hold, settlement), answer in zip(batch, answers, strict=True):
            self._metrics.run_seconds.observe(hold.ended - hold.started)
            if isinstance(settlement, Finished) and answer is Settled.SUCCEEDED:
                tokens_in += settlement.result.usage.prompt_tokens
                tokens_out += settlement.result.usage.completion_tokens
            else:
                self._unsuccessful(settlement, answer)
            if hold.lease.queued_for is not None and answer in ENDS:
                total = hold.lease.queued_for.total_seconds() + now - hold.started
                self._metrics.total_seconds.observe(total)
        succeeded = sum(answer is Settled.SUCCEEDED for answer in answers)
        self._jobs[JobStatus.SUCCEEDED].inc(succeeded)
        self._attempts[Outcome.SUCCEEDED].inc(succeeded)
        self._tokens_in.inc(tokens_in)
        self._tokens_out.inc(tokens_out)

    def lost(self, lease: Lease, state: LeaseState) -> None:
        self._attempts[LOSSES[state]].inc()
        log.info("lease lost", extra={**self._about(lease), "state": state.value})

    def tended(self, tended: Tended) -> None:
        self._metrics.tended(tended)
        if tended.requeued or tended.lost:
            log.warning("entries were gone", extra={"requeued": tended.requeued, "lost": tended.lost})

    def _unsuccessful(self, settlement: Settlement, answer: Settled | None) -> None:
        if answer is None:
            return
        if answer is Settled.LOST:
            self._metrics.stale_writes.inc()
            self._attempts[Outcome.LOST].inc()
            log.warning("outcome refused, the lease was lost", extra=self._about(settlement.lease))
            return
        match settlement:
            case Failed():
                self._failed(settlement, answer)
            case Released() if answer is Settled.FAILED:
                self._attempts[Outcome.ERROR].inc()
                self._metrics.failed(Cause.ERROR, 1)
                log.warning("job ended: given back too often", extra=self._about(settlement.lease))
            case Released():
                self._attempts[Outcome.RELEASED].inc()
                log.info("job released", extra=self._about(settlement.lease))
            case Finished():
                pass

    def _failed(self, failed: Failed, answer: Settled) -> None:
        cause = failed.error.cause
        self._attempts[Outcome(cause)].inc()
        if answer is Settled.FAILED:
            self._metrics.failures.labels(cause).inc()
        if answer in ENDS:
            self._jobs[ENDS[answer]].inc()
        told = {"cause": cause.value, "error": failed.error.message, "then": answer.value}
        log.warning("attempt failed", extra={**self._about(failed.lease), **told})

    def _about(self, lease: Lease) -> dict[str, object]:
        return {"job_id": lease.job_id, "attempt": lease.attempt, "worker": self._worker()}
