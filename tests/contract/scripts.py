"""How to get every answer out of every script: for each, a stage is set and one call is made ready."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from common.job import JobRequest, new_job_id
from common.redis_store import records
from common.redis_store.calls import Calls
from common.redis_store.scripts import Begun, Keep, Scripts
from common.store import Lease, Store
from tests.processes import Processes
from tests.requests import submit
from tests.vandal import Vandal
from tests.workers import Worker

KEEP = Keep(result_ttl=60_000, idempotency_ttl=60_000, dead_letters=100)
HOUR = 3_600_000
#: Whose jobs the scripts are tried on: to count them is one write more.
OWNER = records.encode_text("ann")

#: A call with its arguments fixed; made twice it must answer the same.
Call = Callable[[], Awaitable[Any]]


@dataclass(frozen=True)
class Stage:
    processes: Processes
    gateway: Store
    worker: Worker
    vandal: Vandal
    calls: Calls
    scripts: Scripts

    async def running(self, **fields: Any) -> Lease:
        job = await submit(self.gateway, **fields)
        return await self.worker.lease(job.job_id)

    def submit(
        self,
        job_id: str,
        *,
        idem: str = "",
        fingerprint: str = "",
        max_depth: int = 0,
        max_open: int = 0,
    ) -> Call:
        body, shown = records.encode_request(JobRequest(prompt="hi", model="m", stream=True))
        return lambda: self.scripts.submit(
            job_id=job_id, request=body, shown=shown, owner=OWNER, idem=idem, fingerprint=fingerprint,
            expires_in=HOUR, stream=True, recent_max=10, max_depth=max_depth, max_open=max_open,
        )  # fmt: skip

    def begin(self, entry: str, job_id: str, *, idle: int = HOUR, max_attempts: int = 3, **seat: Any) -> Call:
        given: dict[str, Any] = {
            "worker": self.worker.name,
            "instance": self.worker.presence.instance,
            "epoch": self.worker.seat.epoch,
            "busy": 0,
        }
        return lambda: self.scripts.begin(
            idle=idle, max_attempts=max_attempts, deliveries=[(entry, job_id, "token-2")], **(given | seat)
        )

    async def delivered(self, **fields: Any) -> tuple[str, str]:
        """Entry and job id of a job read from the stream and not begun."""
        job = await submit(self.gateway, **fields)
        (entry,) = await self.vandal.deliver(self.worker.name)
        return entry, job.job_id

    async def begun(self, **fields: Any) -> tuple[str, str]:
        entry, job_id = await self.delivered(**fields)
        begin = self.scripts.begin(
            idle=HOUR, max_attempts=3, worker=self.worker.name, instance=self.worker.presence.instance,
            epoch=self.worker.seat.epoch, busy=0, deliveries=[(entry, job_id, "token-1")],
        )  # fmt: skip
        assert [answer.word for answer in await begin] == ["run"]
        return entry, job_id

    def finish(self, job_id: str, token: str) -> Call:
        return lambda: self.scripts.finish(leases=[(job_id, token, b'{"text":"hi"}', b"")])

    def fail(self, job_id: str, token: str, retry_in: int, max_attempts: int = 3) -> Call:
        lease = (job_id, token, retry_in, "error", b'"it broke"')
        return lambda: self.scripts.fail(max_attempts=max_attempts, leases=[lease])

    def release(self, job_id: str, token: str, max_refunds: int = 10) -> Call:
        return lambda: self.scripts.release(max_attempts=1, max_refunds=max_refunds, leases=[(job_id, token)])

    def reconcile(self, job_id: str) -> Call:
        return lambda: self.scripts.reconcile(idle=0, job_ids=[job_id])

    def announce(self, instance: str, process: str, worker_id: str = "") -> Call:
        return lambda: self.scripts.announce(
            instance=instance, process=process, worker_id=worker_id, held="", lost=False, movable=False,
            ttl=HOUR, keep=HOUR, concurrency=4, busy=1, ready=True,
        )  # fmt: skip

    def publish(self, term: int) -> Call:
        return lambda: self.scripts.publish_scale(
            term=term, desired=2, reason="start", lag=1, pending=None, retrying=0, minimum=0, maximum=8,
            observed=True, history=100,
        )  # fmt: skip

    async def dead_letter(self) -> str:
        lease = await self.running(owner="ann")
        await self.worker.fail(lease, retry_in=None)
        return (await self.gateway.list_dead())[0].cursor

    def redrive(self, letter: str, max_open: int = 0, asking: bytes = b"") -> Call:
        letters = [(letter, DEAD_ID, NEW_ID, HOUR, True)]
        return lambda: self.scripts.redrive(recent_max=10, max_open=max_open, asking=asking, letters=letters)


DEAD_ID, NEW_ID, SUBMIT_ID = new_job_id(), new_job_id(), new_job_id()
Prepare = Callable[[Stage], Awaitable[Call]]
SCENARIOS: dict[tuple[str, str], Prepare] = {}


def answer(script: str, word: str) -> Callable[[Prepare], Prepare]:
    def register(prepare: Prepare) -> Prepare:
        SCENARIOS[script, word] = prepare
        return prepare

    return register


def word_of(reply: Any) -> str:
    """The answer word of a typed reply; numbers are words too."""
    match reply:
        case None:
            return "none"
        case Begun():
            return reply.word
        case bytes():
            return reply.decode()
        case list() | tuple():
            return word_of(reply[0]) if reply else ""  # pyright: ignore[reportUnknownArgumentType]
        case _:
            return str(reply)


# ---- submit


@answer("submit", "accepted")
async def _(stage: Stage) -> Call:
    return stage.submit(SUBMIT_ID, idem="ann:k", fingerprint="f")


@answer("submit", "replayed")
async def _(stage: Stage) -> Call:
    await stage.submit(new_job_id(), idem="ann:k", fingerprint="f")()
    return stage.submit(new_job_id(), idem="ann:k", fingerprint="f")


@answer("submit", "conflict")
async def _(stage: Stage) -> Call:
    await stage.submit(new_job_id(), idem="ann:k", fingerprint="f")()
    return stage.submit(new_job_id(), idem="ann:k", fingerprint="g")


@answer("submit", "full")
async def _(stage: Stage) -> Call:
    await submit(stage.gateway)
    return stage.submit(new_job_id(), max_depth=1)


@answer("submit", "owner_full")
async def _(stage: Stage) -> Call:
    await submit(stage.gateway, owner="ann")
    return stage.submit(new_job_id(), max_open=1)


# ---- read, watch, cancel


@answer("read", "ended")
async def _(stage: Stage) -> Call:
    lease = await stage.running()
    await stage.worker.finish(lease)
    return lambda: stage.scripts.read(job_ids=[lease.job_id])


@answer("read", "live")
async def _(stage: Stage) -> Call:
    job = await submit(stage.gateway)
    return lambda: stage.scripts.read(job_ids=[job.job_id])


@answer("read", "gone")
async def _(stage: Stage) -> Call:
    return lambda: stage.scripts.read(job_ids=["unknown"])


@answer("read", "broken")
async def _(stage: Stage) -> Call:
    job = await submit(stage.gateway)
    await stage.vandal.make_wrong_type(stage.vandal.keys.record(job.job_id))
    return lambda: stage.scripts.read(job_ids=[job.job_id])


@answer("watch", "ended")
async def _(stage: Stage) -> Call:
    lease = await stage.running()
    await stage.worker.finish(lease)
    return lambda: stage.scripts.watch(gateway="g", job_ids=[lease.job_id])


@answer("watch", "live")
async def _(stage: Stage) -> Call:
    job = await submit(stage.gateway)
    await stage.scripts.watch(gateway="other", job_ids=[job.job_id])
    return lambda: stage.scripts.watch(gateway="g", job_ids=[job.job_id])


@answer("watch", "gone")
async def _(stage: Stage) -> Call:
    return lambda: stage.scripts.watch(gateway="g", job_ids=["unknown"])


@answer("cancel", "cancelled")
async def _(stage: Stage) -> Call:
    lease = await stage.running(stream=True, expires_in_s=60, owner="ann")
    return lambda: stage.scripts.cancel(job_id=lease.job_id)


@answer("cancel", "ended")
async def _(stage: Stage) -> Call:
    lease = await stage.running()
    await stage.worker.finish(lease)
    return lambda: stage.scripts.cancel(job_id=lease.job_id)


@answer("cancel", "gone")
async def _(stage: Stage) -> Call:
    return lambda: stage.scripts.cancel(job_id="unknown")


# ---- redrive


@answer("redrive", "queued")
async def _(stage: Stage) -> Call:
    return stage.redrive(await stage.dead_letter())


@answer("redrive", "gone")
async def _(stage: Stage) -> Call:
    return stage.redrive("1-1")


@answer("redrive", "owner_full")
async def _(stage: Stage) -> Call:
    letter = await stage.dead_letter()
    await submit(stage.gateway, owner="ann")
    return stage.redrive(letter, max_open=1)


# ---- begin


@answer("begin", "run")
async def _(stage: Stage) -> Call:
    return stage.begin(*await stage.delivered(stream=True))


@answer("begin", "done")
async def _(stage: Stage) -> Call:
    lease = await stage.running()
    entry = await stage.vandal.copy_entry(lease.job_id)
    await stage.worker.finish(lease)
    await stage.vandal.deliver(stage.worker.name)
    return stage.begin(entry, lease.job_id)


@answer("begin", "stale")
async def _(stage: Stage) -> Call:
    _, job_id = await stage.delivered()
    copy = await stage.vandal.copy_entry(job_id)
    await stage.vandal.deliver(stage.worker.name)
    return stage.begin(copy, job_id)


@answer("begin", "gone")
async def _(stage: Stage) -> Call:
    entry = await stage.vandal.add_entry({"job_id": "unknown", "attempt": 1, "request": '{"prompt":"p"}'})
    await stage.vandal.deliver(stage.worker.name)
    return stage.begin(entry, "unknown")


@answer("begin", "held")
async def _(stage: Stage) -> Call:
    return stage.begin(*await stage.begun())


@answer("begin", "later")
async def _(stage: Stage) -> Call:
    return stage.begin(*await stage.begun(), idle=0, max_attempts=2, busy=1)


@answer("begin", "expired")
async def _(stage: Stage) -> Call:
    entry, job_id = await stage.delivered(expires_in_s=0.001, owner="ann")
    await asyncio.sleep(0.005)
    return stage.begin(entry, job_id)


@answer("begin", "dead")
async def _(stage: Stage) -> Call:
    return stage.begin(*await stage.begun(stream=True, owner="ann"), idle=0, max_attempts=1)


@answer("begin", "usurped")
async def _(stage: Stage) -> Call:
    return stage.begin(*await stage.delivered(), epoch=stage.worker.seat.epoch - 1)


# ---- extend, append


@answer("extend", "held")
async def _(stage: Stage) -> Call:
    lease = await stage.running()
    return lambda: stage.scripts.extend(worker=stage.worker.name, leases=[(lease.job_id, lease.token)])


@answer("extend", "cancelled")
async def _(stage: Stage) -> Call:
    lease = await stage.running()
    await stage.gateway.cancel(lease.job_id)
    return lambda: stage.scripts.extend(worker=stage.worker.name, leases=[(lease.job_id, lease.token)])


@answer("extend", "expired")
async def _(stage: Stage) -> Call:
    lease = await stage.running(expires_in_s=60)
    await stage.fail(lease.job_id, lease.token, HOUR)()
    return lambda: stage.scripts.extend(worker=stage.worker.name, leases=[(lease.job_id, lease.token)])


@answer("extend", "taken")
async def _(stage: Stage) -> Call:
    lease = await stage.running()
    return lambda: stage.scripts.extend(worker=stage.worker.name, leases=[(lease.job_id, "other")])


@answer("append", "ok")
async def _(stage: Stage) -> Call:
    lease = await stage.running(stream=True)
    return lambda: stage.scripts.append(job_id=lease.job_id, token=lease.token, seq=1, text="hi")


@answer("append", "lost")
async def _(stage: Stage) -> Call:
    lease = await stage.running(stream=True)
    return lambda: stage.scripts.append(job_id=lease.job_id, token="other", seq=1, text="hi")


# ---- finish, fail, release


@answer("finish", "succeeded")
async def _(stage: Stage) -> Call:
    lease = await stage.running(stream=True, idempotency_key="k", expires_in_s=60, owner="ann")
    return stage.finish(lease.job_id, lease.token)


@answer("finish", "lost")
async def _(stage: Stage) -> Call:
    return stage.finish((await stage.running()).job_id, "other")


@answer("fail", "retrying")
async def _(stage: Stage) -> Call:
    lease = await stage.running(stream=True)
    return stage.fail(lease.job_id, lease.token, HOUR)


@answer("fail", "failed")
async def _(stage: Stage) -> Call:
    lease = await stage.running(stream=True, idempotency_key="k", expires_in_s=60, owner="ann")
    return stage.fail(lease.job_id, lease.token, -1)


@answer("fail", "expired")
async def _(stage: Stage) -> Call:
    lease = await stage.running(expires_in_s=60)
    return stage.fail(lease.job_id, lease.token, HOUR)


@answer("fail", "lost")
async def _(stage: Stage) -> Call:
    return stage.fail((await stage.running()).job_id, "other", 0)


@answer("release", "released")
async def _(stage: Stage) -> Call:
    lease = await stage.running(stream=True)
    return stage.release(lease.job_id, lease.token)


@answer("release", "failed")
async def _(stage: Stage) -> Call:
    lease = await stage.running()
    return stage.release(lease.job_id, lease.token, max_refunds=0)


@answer("release", "lost")
async def _(stage: Stage) -> Call:
    return stage.release((await stage.running()).job_id, "other")


# ---- seats


@answer("announce", "seat")
async def _(stage: Stage) -> Call:
    return stage.announce("pod-x", "process-x")


@answer("announce", "taken")
async def _(stage: Stage) -> Call:
    await stage.announce("pod-x", "process-x", "gpu-a")()
    return stage.announce("pod-y", "process-y", "gpu-a")


@answer("retire", "retired")
async def _(stage: Stage) -> Call:
    await stage.announce("pod-x", "process-x", "gpu-a")()
    return lambda: stage.scripts.retire(worker="gpu-a", process="process-x")


@answer("retire", "taken")
async def _(stage: Stage) -> Call:
    await stage.announce("pod-x", "process-x", "gpu-a")()
    return lambda: stage.scripts.retire(worker="gpu-a", process="process-y")


# ---- fleet


@answer("group", "created")
async def _(stage: Stage) -> Call:
    await stage.vandal.raw.delete(stage.vandal.keys.jobs)
    return lambda: stage.calls.run("group")


@answer("group", "exists")
async def _(stage: Stage) -> Call:
    return lambda: stage.calls.run("group")


@answer("publish_scale", "published")
async def _(stage: Stage) -> Call:
    term = await stage.scripts.lead(candidate="scaler", ttl=HOUR)
    assert term is not None
    return stage.publish(term)


@answer("publish_scale", "over")
async def _(stage: Stage) -> Call:
    return stage.publish(99)


@answer("reconcile", "fine")
async def _(stage: Stage) -> Call:
    return stage.reconcile((await submit(stage.gateway)).job_id)


@answer("reconcile", "requeued")
async def _(stage: Stage) -> Call:
    job = await submit(stage.gateway)
    await stage.vandal.pass_over_what_waits()
    return stage.reconcile(job.job_id)


@answer("reconcile", "lost")
async def _(stage: Stage) -> Call:
    job = await submit(stage.gateway)
    await stage.vandal.delete_entry(job.job_id)
    return stage.reconcile(job.job_id)


@answer("reconcile", "gone")
async def _(stage: Stage) -> Call:
    return stage.reconcile("unknown")


# ---- scripts that answer numbers


@answer("depth", "")
async def _(stage: Stage) -> Call:
    await stage.running()
    return stage.scripts.depth


@answer("scale", "")
async def _(stage: Stage) -> Call:
    await stage.running()
    return lambda: stage.scripts.scale(history=5)


@answer("drop", "")
async def _(stage: Stage) -> Call:
    entry = await stage.vandal.add_entry({"foreign": "entry"})
    await stage.vandal.deliver(stage.worker.name)
    return lambda: stage.scripts.drop(entries=[entry])


@answer("promote", "")
async def _(stage: Stage) -> Call:
    lease = await stage.running(stream=True)
    await stage.fail(lease.job_id, lease.token, 1)()
    await asyncio.sleep(0.005)
    return lambda: stage.scripts.promote(limit=10)


@answer("expire", "")
async def _(stage: Stage) -> Call:
    await stage.running(expires_in_s=0.2, stream=True, owner="ann")
    await asyncio.sleep(0.21)
    return lambda: stage.scripts.expire(limit=10)


@answer("prune", "")
async def _(stage: Stage) -> Call:
    await stage.vandal.deliver("long-gone")
    return lambda: stage.scripts.prune(keep=HOUR)


@answer("lock", "")
async def _(stage: Stage) -> Call:
    return lambda: stage.scripts.lock(name="sweep", holder="a", ttl=HOUR)


@answer("lead", "")
async def _(stage: Stage) -> Call:
    return lambda: stage.scripts.lead(candidate="scaler", ttl=HOUR)
