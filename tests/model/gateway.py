"""Steps of gateways: submit, submit again, cancel, read, redrive."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from common.errors import IdempotencyConflict, JobEnded, JobExpired, JobNotFound, QueueFull
from common.job import Cause, JobRequest, JobStatus, Submission
from common.store import Submitted
from tests.model.base import PICK, Steps, step
from tests.model.job import NO, Instant, ModelJob, Seen

OWNER = "model"


def job_id(number: int) -> str:
    """A UUIDv7 that sorts by its number."""
    return f"01890000-0000-7000-8000-{number:012x}"


class GatewaySteps(Steps):
    numbers = 0

    def new_id(self) -> str:
        self.numbers += 1
        return job_id(self.numbers)

    # ---- submit

    @step(
        9,
        count=st.integers(1, 3),
        prompt=st.sampled_from(["a", "a", "b"]),
        key=st.sampled_from([None, None, None, "k", "l"]),
        expires=st.sampled_from([None, None, None, 1, 20]),
        stream=st.booleans(),
        max_depth=st.sampled_from([0, 0, 0, 0, 4]),
        again=st.booleans(),
    )
    def submit(
        self,
        count: int,
        prompt: str,
        key: str | None,
        expires: int | None,
        stream: bool,
        max_depth: int,
        again: bool,
    ) -> None:
        expires_in_s = None if expires is None else expires * self.world.timing.soon / 1000
        request = JobRequest(prompt=prompt, stream=stream, expires_in_s=expires_in_s)
        for _ in range(count):
            self._submit(request, key, max_depth, again)

    def _submit(self, request: JobRequest, key: str | None, max_depth: int, again: bool) -> None:
        sent = Submission(job_id=self.new_id(), request=request, owner=OWNER, idempotency_key=key)
        outcome, now = self.world.timed(self._outcome(sent, max_depth))
        assert outcome[0] in self._allowed(sent, max_depth, now), (outcome, sent)
        match outcome:
            case "accepted", Submitted() as answer:
                self._accepted(sent, answer, now)
                if again:
                    self._resubmit(sent)
            case "replayed", Submitted() as answer:
                assert answer.job.job_id == self.model.keys[key or ""]
            case _:
                pass

    async def _outcome(self, sent: Submission, max_depth: int) -> tuple[str, Submitted | None]:
        try:
            answer = await self.gateway.submit(sent, max_depth=max_depth)
        except IdempotencyConflict:
            return "conflict", None
        except QueueFull as full:
            return ("full" if full.depth == len(self.model.live) else f"full at {full.depth}"), None
        return "replayed" if answer.replayed else "accepted", answer

    def _allowed(self, sent: Submission, max_depth: int, now: Instant) -> Iterable[str]:
        known, remembered = self.model.replays(sent.idempotency_key or "", now)
        if known is not None and True in remembered:
            yield "replayed" if known.request == sent.request else "conflict"
        if False in remembered:
            yield "full" if 0 < max_depth <= len(self.model.live) else "accepted"

    def _accepted(self, sent: Submission, answer: Submitted, now: Instant) -> None:
        job = answer.job
        assert (job.status, job.attempt, job.owner) == (JobStatus.QUEUED, 0, OWNER)
        created = round(job.created_at.timestamp() * 1000)
        assert now.low <= created <= now.high, "accepted at a time that was not now"
        expires_in_s = sent.request.expires_in_s
        deadline = None if expires_in_s is None else created + round(expires_in_s * 1000)
        shown = None if job.deadline_at is None else round(job.deadline_at.timestamp() * 1000)
        assert shown == deadline
        at = None if deadline is None else Instant(deadline, deadline)
        self.model.accept(ModelJob(job.job_id, sent.request, sent.idempotency_key, at))

    @step(2, number=PICK)
    def submit_an_old_one_again(self, number: int) -> None:
        """Its reply was lost, or the client tries on for long."""
        job = self.picked_job(number)
        if job and job.origin is None and self.model.gone(job, self.now()) == NO:
            sent = Submission(job_id=job.job_id, request=job.request, owner=OWNER, idempotency_key=job.key)
            self._resubmit(sent)

    def _resubmit(self, sent: Submission) -> None:
        answer = self.world.run(self.gateway.submit(sent, max_depth=1))
        job = self.model.jobs[sent.job_id]
        assert answer.replayed is not job.live
        assert answer.job.job_id == sent.job_id
        if answer.replayed:
            assert Seen.of(answer.job) == job.seen

    # ---- cancel and read

    @step(2, number=PICK, again=st.booleans())
    def cancel(self, number: int, again: bool) -> None:
        job = self.picked_job(number)
        for _ in range(1 + again if job else 0):
            assert job
            (word, told), now = self.world.timed(self._cancelled(job.job_id))
            if job.live:
                assert word == "cancelled"
                self.model.cancel(job, now)
            allowed = {"gone"} if True in self.model.gone(job, now) else set[str]()
            if False in self.model.gone(job, now):
                allowed.add("cancelled" if job.status is JobStatus.CANCELLED else "ended")
            assert word in allowed, (word, job)
            assert word != "ended" or told == job.status

    async def _cancelled(self, job_id: str) -> tuple[str, str]:
        try:
            answer = await self.gateway.cancel(job_id)
        except JobEnded as ended:
            return "ended", ended.status
        except (JobNotFound, JobExpired):
            return "gone", ""
        assert answer.status is JobStatus.CANCELLED
        return "cancelled", ""

    @step(1, number=PICK)
    def get(self, number: int) -> None:
        job = self.picked_job(number)
        if job is None:
            return
        try:
            seen = self.world.run(self.gateway.get(job.job_id))
        except (JobNotFound, JobExpired):
            assert True in self.model.gone(job, self.now())
        else:
            assert Seen.of(seen) == job.seen
            assert seen.owner == OWNER

    @step(1, status=st.sampled_from(JobStatus), limit=st.integers(1, 5), skip=st.integers(0, 3))
    def list_some(self, status: JobStatus, limit: int, skip: int) -> None:
        everything = list(self.look()[0].values())
        before = everything[skip - 1].job_id if 0 < skip <= len(everything) else None
        rest = everything[skip:] if before else everything
        some = self.world.run(self.gateway.list_jobs(status=status, limit=limit, before=before))
        expected = [job.job_id for job in rest if job.status is status][:limit]
        assert [job.job_id for job in some] == expected

    def now(self) -> Instant:
        ms = self.world.now_ms()
        return Instant(ms, ms)

    # ---- dead letters

    @step(
        3,
        by=st.sampled_from(["all", "ids", "cause"]),
        cause=st.sampled_from(Cause),
        limit=st.integers(1, 3),
        dry_run=st.booleans(),
    )
    def redrive(self, by: str, cause: Cause, limit: int, dry_run: bool) -> None:
        letters = self.world.run(self.gateway.list_dead(limit=100))
        assert {letter.job_id: letter.cause for letter in letters} == self.model.dead
        oldest_first = [letter.job_id for letter in reversed(letters)]
        wanted: dict[str, Any] = {}
        if by == "ids":
            wanted["ids"] = [*oldest_first[::2], *list(self.model.redriven)[-1:]]
        if by == "cause":
            wanted["cause"] = cause
        chosen = [
            dead
            for dead in oldest_first
            if dead in wanted.get("ids", [dead])
            and self.model.dead[dead] is wanted.get("cause", self.model.dead[dead])
        ][:limit]
        repeats = [dead for dead in wanted.get("ids", [])[:limit] if dead not in chosen and not dry_run]
        redriven, now = self.world.timed(self.gateway.redrive(**wanted, limit=limit, dry_run=dry_run))
        jobs = dict(redriven.jobs)
        assert [old for old, _ in redriven.jobs][: len(chosen)] == chosen
        assert set(jobs) <= {*chosen, *repeats}
        assert not redriven.unusable
        for old in repeats:
            new, known = self.model.redriven_as(old, now)
            assert (jobs.get(old) == new) in known
        for old in chosen:
            assert dry_run == (jobs[old] == "")
            if not dry_run:
                self._redriven(self.model.jobs[old], jobs[old], now)

    def _redriven(self, old: ModelJob, new: str, now: Instant) -> None:
        seen = self.world.run(self.gateway.get(new))
        assert (seen.redrive_of, seen.owner) == (old.job_id, OWNER)
        assert (seen.deadline_at is None) == (old.request.expires_in_s is None)
        deadline = None
        if seen.deadline_at is not None:
            ms = round(seen.deadline_at.timestamp() * 1000)
            deadline = Instant(ms, ms)
        del self.model.dead[old.job_id]
        self.model.redriven[old.job_id] = (new, now)
        self.model.accept(replace(ModelJob(new, old.request), deadline=deadline, origin=old.job_id))
