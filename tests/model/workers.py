"""Steps of worker processes: claim, renew, settle, append; crash, come back as a zombie, restart."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import strategies as st

from common.errors import SeatLost
from common.job import Cause, JobStatus, Outcome
from common.redis_store.fleet import KEEP_MS
from common.store import Claimed, Failed, Finished, Lease, LeaseState, Released, Settlement
from tests.model.base import PICK, Process, Steps, step
from tests.model.job import Instant
from tests.workers import NOW, failed, finished

MOST_PROCESSES = 6
KINDS = ("finish", "finish", "retry", "retry_soon", "retry_late", "never", "release", "release")
ORDER = {Finished: 0, Failed: 1, Released: 2}


class WorkerSteps(Steps):
    def holder(self, number: int) -> Process | None:
        """A process that was ever given a lease."""
        holders = [process for process in self.processes if process.leases]
        return self.pick(holders, number) if holders else None

    # ---- claim

    @step(
        10,
        number=PICK,
        limit=st.integers(1, 4),
        announced=st.sampled_from([True, True, False]),
        fresh=st.sampled_from([True, True, False]),
    )
    def claim(self, number: int, limit: int, announced: bool, fresh: bool) -> None:
        process = self.pick(self.processes, number)
        self.claimed(process, limit, announced=announced, fresh=fresh)

    def claimed(self, process: Process, limit: int, *, announced: bool, fresh: bool) -> list[Lease]:
        if announced:
            self.announce(process)
        try:
            claimed, now = self.world.timed(process.worker.store.claim(limit, NOW, fresh=fresh))
        except SeatLost:
            assert not announced, "a seat was lost that had just been taken"
            assert self._may_lose_seat(process), "a seat was lost to nobody"
            return []
        assert not process.retired, "a claim without a seat"
        assert len(claimed.leases) <= limit
        self._check_alone(process, claimed)
        for lease in claimed.leases:
            self._begun(process, lease, now)
        self._adopt(process, claimed, now)
        return list(claimed.leases)

    def _may_lose_seat(self, process: Process) -> bool:
        others = [other.announced for other in self.processes if other is not process]
        forgotten = self.world.now_ms() - process.announced_ms >= KEEP_MS
        return process.retired or forgotten or max(others, default=0) > process.announced

    def announce(self, process: Process) -> None:
        self.world.run(process.worker.heartbeat(busy=len(process.holding)))
        self.announcements += 1
        process.announced, process.announced_ms = self.announcements, self.world.now_ms()
        process.retired = False
        live = [view.worker for view in self.world.run(self.gateway.scale()).workers]
        assert len(set(live)) == len(live)

    def _check_alone(self, process: Process, claimed: Claimed) -> None:
        if any(lease.alone for lease in process.holding.values()):
            assert claimed == Claimed(), "something ran beside a suspect"
        if any(lease.alone for lease in claimed.leases):
            assert not process.holding, "a suspect ran beside something"
            assert len(claimed.leases) == 1, "a suspect ran beside something"

    def _begun(self, process: Process, lease: Lease, now: Instant) -> None:
        job = self.model.jobs[lease.job_id]
        self.model.begin(job, process.holder(lease.token), now)
        assert lease.attempt == job.starts
        assert lease.request == job.request
        assert (lease.queued_for is None) == (job.starts > 1)
        assert lease.reclaimed == (bool(job.closed) and job.closed[-1][2] is Outcome.CRASH)
        assert lease.alone == self.model.must_run_alone(job)
        process.leases.append(lease)
        process.holding[lease.token] = lease

    def _adopt(self, process: Process, claimed: Claimed, now: Instant) -> None:
        """A claim says how many jobs ended in it, not which."""
        seen, _ = self.look()
        expired = crashed_out = 0
        for job in self.model.live:
            status = seen[job.job_id].status if job.job_id in seen else None
            if status is JobStatus.EXPIRED:
                self.model.expire(job, now)
                expired += 1
            elif status is JobStatus.FAILED:
                self.model.crash_out(job, process.holder(), now)
                crashed_out += 1
        assert (claimed.expired, claimed.crashed_out) == (expired, crashed_out)

    # ---- with a lease

    @step(
        8,
        number=PICK,
        choices=st.lists(st.tuples(PICK, st.sampled_from(KINDS)), min_size=1, max_size=3),
        again=st.booleans(),
    )
    def settle(self, number: int, choices: list[tuple[int, str]], again: bool) -> None:
        process = self.holder(number)
        if process is None:
            return
        batch = [(kind, self._settlement(self.pick(process.leases, lease), kind)) for lease, kind in choices]
        for _ in range(1 + again):
            self.settled(process, batch)

    def settled(self, process: Process, batch: list[tuple[str, Settlement]]) -> None:
        answers, now = self.world.timed(process.worker.store.settle([item for _, item in batch]))
        judged = sorted(zip(batch, answers, strict=True), key=lambda settled: ORDER[type(settled[0][1])])
        for (kind, settlement), answer in judged:
            lease = settlement.lease
            retry_ms, cause = None, Cause.ERROR
            if isinstance(settlement, Failed):
                retry = settlement.retry_in
                retry_ms = None if retry is None else round(retry.total_seconds() * 1000)
                cause = settlement.error.cause
            job = self.model.jobs[lease.job_id]
            kind = kind if kind in ("finish", "release") else "fail"
            self.model.settle(
                job, lease.token, kind, answer.value, now, retry_ms=retry_ms, text=lease.token, cause=cause
            )
            process.holding.pop(lease.token, None)

    def _settlement(self, lease: Lease, kind: str) -> Settlement:
        soon = timedelta(milliseconds=self.world.timing.soon)
        match kind:
            case "finish":
                return finished(lease, lease.token)
            case "release":
                return Released(lease=lease)
            case "never":
                return failed(lease, Cause.PERMANENT, retry_in=None)
            case "retry":
                return failed(lease)
            case "retry_soon":
                return failed(lease, Cause.TIMEOUT, retry_in=soon)
            case _:
                return failed(lease, retry_in=3 * soon)

    @step(3, number=PICK, choices=st.lists(PICK, min_size=1, max_size=4), again=st.booleans())
    def extend(self, number: int, choices: list[int], again: bool) -> None:
        process = self.holder(number)
        if process is None:
            return
        leases = [self.pick(process.leases, choice) for choice in choices]
        for _ in range(1 + again):
            states, now = self.world.timed(process.worker.store.extend(leases))
            for lease, state in zip(leases, states, strict=True):
                self.model.extend(self.model.jobs[lease.job_id], lease.token, state.value, now)
                if state is not LeaseState.HELD:
                    process.holding.pop(lease.token, None)

    @step(2, number=PICK, lease=PICK, seq=st.integers(1, 3), again=st.booleans())
    def append(self, number: int, lease: int, seq: int, again: bool) -> None:
        process = self.holder(number)
        if process is None:
            return
        held = self.pick(process.leases, lease)
        for _ in range(1 + again):
            text = f"chunk {seq}"
            kept = self.world.run(process.worker.store.append(held, seq, text))
            self.model.append(self.model.jobs[held.job_id], held.token, seq, text, kept)

    # ---- crash and restart

    @step(2, number=PICK, same_instance=st.booleans())
    def crash(self, number: int, same_instance: bool) -> None:
        """Another process starts in its place. The old one may wake up again, and knows of nothing."""
        if len(self.processes) < MOST_PROCESSES:
            old = self.pick(self.processes, number).worker.presence.instance
            self.hire(old if same_instance else f"instance-{len(self.processes)}")

    @step(1, number=PICK)
    def retire(self, number: int) -> None:
        process = self.pick(self.processes, number)
        self.world.run(process.worker.store.retire())
        process.retired = True
