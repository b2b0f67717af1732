"""What every measurement stands on: a server of its own, stores on fresh namespaces, worker processes."""

from __future__ import annotations

import asyncio
import signal
import sys
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from common.job import Job, JobRequest, Submission, new_job_id
from common.settings import Settings, child_environment
from common.store import Store
from common.stores import open_store
from lab.ports import free_port
from lab.server import server_answers, server_binary, server_command, server_url

#: 200 bytes, as in the comparison with other queues.
PROMPT = "p" * 200


@dataclass(frozen=True, slots=True)
class Stage:
    url: str

    def settings(self, **overrides: object) -> Settings:
        base = {"redis_url": self.url, "namespace": f"bench-{new_job_id()[-6:]}", "max_queue_depth": 0}
        return Settings.model_validate(base | overrides)


@asynccontextmanager
async def stage() -> AsyncGenerator[Stage, None]:
    """The embedded server with its append-only file on, in a folder that goes afterwards."""
    with tempfile.TemporaryDirectory(prefix="iwl-bench-") as folder:
        port = free_port()
        server = await asyncio.create_subprocess_exec(
            *server_command(server_binary(), port, Path(folder)), stdout=asyncio.subprocess.DEVNULL
        )
        try:
            await _until(lambda: server_answers(port))
            yield Stage(server_url(port))
        finally:
            server.terminate()
            await server.wait()


@asynccontextmanager
async def opened(settings: Settings) -> AsyncGenerator[Store, None]:
    store = open_store(settings)
    try:
        await store.start()
        yield store
    finally:
        await store.aclose()


@asynccontextmanager
async def worker_process(settings: Settings) -> AsyncGenerator[None, None]:
    """`python -m worker` with these settings."""
    said = settings.model_dump(exclude_unset=True)
    environment = child_environment(
        metrics_port="0", log_level="WARNING", **{name: _text(value) for name, value in said.items()}
    )
    worker = await asyncio.create_subprocess_exec(sys.executable, "-m", "worker", env=environment)
    try:
        yield
    finally:
        worker.send_signal(signal.SIGTERM)
        await worker.wait()


def submission() -> Submission:
    return Submission(job_id=new_job_id(), request=JobRequest(prompt=PROMPT))


async def submit_many(store: Store, count: int, batch: int = 250) -> list[str]:
    job_ids: list[str] = []
    for start in range(0, count, batch):
        sent = [submission() for _ in range(min(batch, count - start))]
        await asyncio.gather(*(store.submit(one) for one in sent))
        job_ids += [one.job_id for one in sent]
    return job_ids


async def until_ended(store: Store, count: int) -> None:
    async def ended() -> bool:
        return (await store.depth()).ended >= count

    await _until(ended)


async def _until(condition: Callable[[], Awaitable[bool]]) -> None:
    while True:
        if await condition():
            return
        await asyncio.sleep(0.02)


async def read_many(store: Store, job_ids: Sequence[str]) -> list[Job]:
    jobs: list[Job] = []
    for start in range(0, len(job_ids), 250):
        jobs += await asyncio.gather(*(store.get(job_id) for job_id in job_ids[start : start + 250]))
    return jobs


def _text(value: object) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)
