"""A worker played by hand: it claims and settles when the test says so, and never by itself."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from datetime import timedelta

from common.fleet import Presence, Seat
from common.job import Cause, JobError, Result, Usage
from common.store import Claimed, Failed, Finished, Lease, LeaseState, Released, Settled, Settlement, Store
from tests.waiting import wait_until

NOW = timedelta(0)
SOON = timedelta(milliseconds=50)


@dataclass
class Worker:
    store: Store
    presence: Presence
    seat: Seat

    @classmethod
    async def seated(cls, store: Store, presence: Presence) -> Worker:
        return cls(store, presence, await store.announce(presence))

    @property
    def name(self) -> str:
        return self.seat.worker

    async def heartbeat(self, **says: object) -> Seat:
        self.presence = replace(self.presence, **says)  # pyright: ignore[reportArgumentType]
        self.seat = await self.store.announce(self.presence)
        return self.seat

    async def look(self, limit: int = 10, wait: timedelta = NOW, *, fresh: bool = True) -> Claimed:
        """One claim, its seat kept first."""
        await self.heartbeat()
        return await self.store.claim(limit, wait, fresh=fresh)

    async def take(self, count: int = 1, *, timeout: float = 5.0, fresh: bool = True) -> list[Lease]:
        """Claims until it has `count` leases."""
        deadline = time.monotonic() + timeout
        leases: list[Lease] = []
        while len(leases) < count:
            assert time.monotonic() < deadline, f"{self.name} got {len(leases)} of {count} leases"
            leases += (await self.look(count - len(leases), SOON, fresh=fresh)).leases
        return leases

    async def lease(self, job_id: str | None = None, *, timeout: float = 5.0, fresh: bool = True) -> Lease:
        """Claims one job, the one named if any."""
        lease = (await self.take(timeout=timeout, fresh=fresh))[0]
        assert job_id in (None, lease.job_id), f"expected a lease for {job_id}, got {lease}"
        return lease

    async def settle(self, settlement: Settlement) -> Settled:
        return (await self.store.settle([settlement]))[0]

    async def finish(self, lease: Lease, text: str = "done") -> Settled:
        return await self.settle(finished(lease, text))

    async def fail(
        self,
        lease: Lease,
        cause: Cause = Cause.ERROR,
        message: str = "it broke",
        retry_in: timedelta | None = NOW,
    ) -> Settled:
        return await self.settle(failed(lease, cause, message, retry_in))

    async def release(self, lease: Lease) -> Settled:
        return await self.settle(Released(lease=lease))

    async def extend(self, lease: Lease) -> LeaseState:
        return (await self.store.extend([lease]))[0]

    async def run(self, job_id: str | None = None, text: str = "done") -> Lease:
        """Claims a job and finishes it."""
        lease = await self.lease(job_id)
        assert await self.finish(lease, text) is Settled.SUCCEEDED
        return lease


def finished(lease: Lease, text: str = "done") -> Finished:
    usage = Usage(prompt_tokens=3, completion_tokens=5)
    return Finished(lease=lease, result=Result(text=text, finish_reason="stop", usage=usage))


def failed(
    lease: Lease,
    cause: Cause = Cause.ERROR,
    message: str = "it broke",
    retry_in: timedelta | None = NOW,
) -> Failed:
    return Failed(lease=lease, error=JobError(cause=cause, message=message), retry_in=retry_in)


async def outlive(worker: Worker) -> None:
    """Until this worker's seat has run out."""

    async def gone() -> bool:
        view = await worker.store.scale()
        return worker.name not in [live.worker for live in view.workers]

    await wait_until(gone)
