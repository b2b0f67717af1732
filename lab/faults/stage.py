"""One lab as a fault sees it: jobs go in, parts are struck, records come out, and every job is remembered."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime, timedelta

from common.errors import LabError
from lab.client import Api
from lab.faults.books import Books
from lab.faults.clients import Clients, job_body
from lab.records import JobRecord, Stats
from lab.resp import Reply as ServerReply
from lab.resp import command
from lab.server import HOST
from lab.supervisor import Child
from lab.system import System

LOOK_EVERY_S = 0.01
#: What has not come about by then does not.
GIVE_UP_S = 30.0
TRIES = 3


class Stage:
    def __init__(self, system: System, api: Api, before: Stats, tell: Callable[[str], None]) -> None:
        self.system = system
        self.api = api
        self.tell = tell
        self.struck_at = datetime.now(UTC)
        self.books = Books(api, before)

    # ------------------------------------------------------------ jobs

    async def submit(self, *, latency_ms: int, timeout_s: float | None = None, **orders: object) -> str:
        """Id of a new job; `orders` are for the mock model."""
        body = job_body(latency_ms, **orders)
        if timeout_s is not None:
            body["timeout_s"] = timeout_s
        job_id = (await self.api.submit(body)).value.job_id
        self.books.accepted([job_id])
        return job_id

    async def submit_many(self, count: int, *, latency_ms: int) -> list[str]:
        return await asyncio.gather(*(self.submit(latency_ms=latency_ms) for _ in range(count)))

    @asynccontextmanager
    async def clients(self, jobs: int, *, latency_ms: int) -> AsyncGenerator[Clients]:
        """Clients that submit meanwhile, each job under a key of its own, until all are accepted."""
        clients = Clients(self.api, jobs, latency_ms)
        task = asyncio.create_task(clients.run())
        try:
            yield clients
            await task
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError, LabError):
                await task
            self.books.accepted(clients.accepted)

    async def at_work(self, jobs: int, *, latency_ms: int) -> list[JobRecord]:
        """New jobs, all of them running; longer ones where that takes too long. Raises LabError."""
        for longer in range(1, TRIES + 1):
            ids = await self.submit_many(jobs, latency_ms=latency_ms * longer)
            running = await self.running(ids)
            if all(job.status == "running" for job in running):
                self.tell(f"{jobs} jobs of {latency_ms * longer} ms run.")
                return running
        raise LabError("The machine is too slow: jobs are over before all of them run.")

    async def running(self, ids: Sequence[str]) -> list[JobRecord]:
        """The jobs as they stand once all of them run, or one is over."""
        while True:
            jobs = await self.look(ids)
            if all(job.status == "running" for job in jobs) or any(job.ended for job in jobs):
                return jobs
            await asyncio.sleep(LOOK_EVERY_S)

    async def look(self, ids: Sequence[str]) -> list[JobRecord]:
        replies = await asyncio.gather(*map(self.api.job, ids))
        return [reply.value for reply in replies]

    async def ends(self, ids: Sequence[str]) -> list[JobRecord]:
        """The jobs once they have ended; those that do not end are left out."""
        return await self.books.ends(ids)

    # ------------------------------------------------------------ parts

    async def child(self, name: str) -> Child:
        """Raises LabError when none has this name (any more)."""
        children = await self.system.children()
        if name not in children:
            raise LabError(f"There is no {name} any more.")
        return children[name]

    async def victim(self, jobs: Sequence[JobRecord]) -> tuple[str, Child]:
        """The last of the workers that run these jobs."""
        name = max(job.worker for job in jobs if job.worker)
        return name, await self.child(name)

    def strike(self, name: str, child: Child, signum: signal.Signals) -> None:
        self.now(f"{signum.name} to process {child.pid}: {name}.")
        child.signal(signum)

    @contextmanager
    def paused(self, name: str, child: Child) -> Generator[None]:
        self.strike(name, child, signal.SIGSTOP)
        try:
            yield
        finally:
            child.signal(signal.SIGCONT)
            self.tell(f"SIGCONT: {name} goes on.")

    async def server(self, *words: str) -> ServerReply:
        """Somebody else's command to the server. Raises ServerSaidNo."""
        return await command(HOST, self.system.server_port or 0, *words)

    # ------------------------------------------------------------ time

    def now(self, what: str) -> None:
        """This is the moment from which recovery counts."""
        self.tell(what)
        self.struck_at = datetime.now(UTC)

    def since(self) -> timedelta:
        return datetime.now(UTC) - self.struck_at

    def recovery(self, jobs: Sequence[JobRecord]) -> timedelta:
        """From the fault to the end of the last job that lived at that moment."""
        ends = [job.finished_at for job in jobs if job.finished_at and job.created_at <= self.struck_at]
        return max([*ends, self.struck_at]) - self.struck_at

    async def until(self, what: str, condition: Callable[[], Awaitable[bool]]) -> None:
        """Raises LabError when it does not come about."""
        deadline = time.monotonic() + GIVE_UP_S
        while not await condition():
            if time.monotonic() > deadline:
                raise LabError(f"After {GIVE_UP_S:g} s still not so: {what}.")
            await asyncio.sleep(LOOK_EVERY_S)
