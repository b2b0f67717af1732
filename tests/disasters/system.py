"""Gateway, scaler and workers as processes of their own, and a client that submits over HTTP."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx
import msgspec

from common.settings import child_environment
from tests.repository import ROOT
from tests.waiting import wait_until

#: Short jobs, and leases that a pause of a busy machine does not outlive.
SETTINGS = {"mock_latency_ms": "20", "claim_idle_ms": "5000", "heartbeat_ms": "500", "metrics_port": "0"}


class Service:
    """`python -m NAME`, its log in a file."""

    def __init__(
        self, module: str, log: Path, settings: Mapping[str, str], environment: Mapping[str, str]
    ) -> None:
        self._log = log
        with log.open("wb") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module],
                env={**child_environment(**settings), **environment},
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stderr=stderr,
            )

    @property
    def lines(self) -> list[dict[str, Any]]:
        """Whatever it logged; what is not JSON is a traceback, and fails the test."""
        return [msgspec.json.decode(line) for line in self._log.read_text().splitlines()]

    async def said(self, message: str = "") -> dict[str, Any]:
        """Its first such line, once there is one."""

        def found() -> list[dict[str, Any]]:
            assert self._process.poll() is None, self._log.read_text()
            return [line for line in self.lines if message in ("", line["message"])]

        await wait_until(found, timeout=15)
        return found()[0]

    @property
    def warnings(self) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["level"] in ("WARNING", "ERROR")]

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@dataclass(frozen=True)
class Accepted:
    key: str
    job_id: str
    sent_at: float
    answered_at: float


class Client:
    """Submits jobs with keys, again after a 503, and remembers what it was told."""

    def __init__(self, url: str) -> None:
        self._http = httpx.AsyncClient(base_url=url, timeout=30, trust_env=False)
        self.accepted: list[Accepted] = []
        #: Statuses of submits that were not.
        self.refused = Counter[int]()

    async def submit(self, key: str, **body: object) -> Accepted:
        while True:
            sent_at = time.monotonic()
            body = {"prompt": key, "idempotency_key": key, **body}
            answer = await self._http.post("/v1/jobs", json=body)
            if answer.status_code == HTTPStatus.ACCEPTED:
                self.accepted.append(Accepted(key, answer.json()["job_id"], sent_at, time.monotonic()))
                return self.accepted[-1]
            self.refused[answer.status_code] += 1
            await asyncio.sleep(0.02)

    @asynccontextmanager
    async def busy(self) -> AsyncGenerator[None]:
        """Four at a time, until the block ends."""
        numbers, over = itertools.count(), False

        async def keep_submitting() -> None:
            while not over:
                await self.submit(f"job {next(numbers)}")

        async with asyncio.TaskGroup() as tasks:
            for _ in range(4):
                tasks.create_task(keep_submitting())
            yield
            over = True

    async def has(self, count: int) -> None:
        """Until so many more are accepted."""
        wanted = len(self.accepted) + count
        await wait_until(lambda: len(self.accepted) >= wanted, timeout=20)

    async def is_refused(self, times: int) -> None:
        await wait_until(lambda: self.refused.total() >= times, timeout=20)

    async def look(self, job_id: str) -> dict[str, Any]:
        return (await self._http.get(f"/v1/jobs/{job_id}")).raise_for_status().json()

    async def end(self, job_id: str) -> dict[str, Any] | None:
        """The job once it has ended; None when there is no such job."""
        answer = await self._http.get(f"/v1/jobs/{job_id}", params={"wait": 20})
        if answer.status_code == HTTPStatus.NOT_FOUND:
            return None
        job = answer.raise_for_status().json()
        assert job["finished_at"], f"has not ended: {job}"
        return job

    async def stats(self) -> dict[str, int]:
        return (await self._http.get("/v1/stats")).raise_for_status().json()

    async def aclose(self) -> None:
        await self._http.aclose()


@dataclass(frozen=True)
class System:
    services: dict[str, Service]
    clients: dict[str, Client]

    @property
    def client(self) -> Client:
        return self.clients["api"]


@asynccontextmanager
async def running(
    url: str,
    folder: Path,
    *names: str,
    environments: Mapping[str, Mapping[str, str]] | None = None,
    **settings: str,
) -> AsyncGenerator[System]:
    """Services named after their modules, as in `api`, `worker-1`, `worker-2`; `environments` by name.
    A worker's name is its id."""
    services: dict[str, Service] = {}
    clients: dict[str, Client] = {}
    try:
        for name in names:
            told = {
                **SETTINGS,
                "redis_url": url,
                "port": "0",
                "instance": name,
                "worker_id": name,
                **settings,
            }
            environment = (environments or {}).get(name, {})
            services[name] = Service(name.split("-")[0], folder / f"{name}.log", told, environment)
        for name in names:
            if name.startswith("api"):
                clients[name] = Client((await services[name].said("listening"))["url"])
        yield System(services, clients)
    finally:
        for client in clients.values():
            await client.aclose()
        for service in services.values():
            service.kill()
