"""A running lab, looked at again and again: is every job accounted for, and does anything grow?"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from common.errors import LabError, StoreError
from common.fleet import Backlog
from common.redis_store.keys import GROUP, Keys
from common.store import Store
from lab.client import Api
from lab.conservation import Conservation
from lab.resp import Reply, ServerSaidNo, command
from lab.server import HOST
from lab.system import System
from tests.endurance.beside import beside

EVERY_S = 0.5
MIB = 1 << 20


@dataclass(frozen=True)
class Held:
    """What the server said it held, in bytes, and the jobs that it knew."""

    used: int
    live: int
    ended: int


@dataclass
class Samples:
    """What was seen; memory in bytes of resident set, the server's as it counts itself; times in seconds."""

    taken: int = 0
    #: Of the public statistics: each is 0, or jobs were lost or made up (P1).
    unaccounted: list[int] = field(default_factory=list[int])
    #: By part: workers count as one, at their largest.
    rss: dict[str, int] = field(default_factory=dict[str, int])
    rss_at_first: dict[str, int] = field(default_factory=dict[str, int])
    server: list[Held] = field(default_factory=list[Held])
    consumers: int = 0
    #: Delays of the event loop's last heartbeat, by part.
    loop_lags: dict[str, list[float]] = field(default_factory=dict[str, list[float]])

    @property
    def server_at_first(self) -> int:
        return self.server[0].used

    @property
    def server_at_last(self) -> int:
        return self.server[-1].used

    def resident(self, name: str, size: int) -> None:
        part = part_of(name)
        self.rss_at_first.setdefault(part, size)
        self.rss[part] = max(size, self.rss.get(part, 0))


class Sampler:
    def __init__(self, system: System, store: Store, api: Api) -> None:
        self.samples = Samples()
        self._system = system
        self._store = store
        self._api = api
        self._keys = Keys(system.settings.namespace)
        self._http = httpx.AsyncClient(trust_env=False, timeout=1)

    @asynccontextmanager
    async def sampling(self) -> AsyncGenerator[None]:
        """All the while, and once more at the end."""
        async with beside(self._sample_on()):
            yield
        await self.sample()
        await self._http.aclose()

    async def _sample_on(self) -> None:
        while True:
            await self.sample()
            await asyncio.sleep(EVERY_S)

    async def sample(self) -> None:
        stats = (await self._api.stats()).value
        jobs = Conservation.of(stats)
        self.samples.unaccounted.append(stats.unaccounted)
        ended = jobs.submitted - jobs.alive
        self.samples.server.append(Held(await self._server_memory(), jobs.alive, ended))
        self.samples.consumers = max(self.samples.consumers, await self._consumers())
        for name, pid in (await self._system.pids()).items():
            if size := resident_bytes(pid):
                self.samples.resident(name, size)
        await self._scrape("api", self._system.api)
        for name, port in self._system.metrics.items():
            await self._scrape(name, f"http://{HOST}:{port}")
        self.samples.taken += 1

    async def _consumers(self) -> int:
        consumers = await self._server("XINFO", "CONSUMERS", self._keys.jobs, GROUP)
        if not isinstance(consumers, list):
            raise LabError(f"XINFO CONSUMERS: {consumers!r}")
        return len(consumers)

    async def _server_memory(self) -> int:
        """What the server says it holds, in bytes."""
        info = str(await self._server("INFO", "memory"))
        return int(info.partition("used_memory:")[2].split()[0])

    async def backlog(self) -> Backlog | None:
        """None while the store does not answer."""
        with suppress(StoreError):
            return await self._store.depth()
        return None

    async def _server(self, *words: str) -> Reply:
        try:
            return await command(HOST, self._system.server_port or 0, *words)
        except ServerSaidNo as error:
            raise LabError(f"{' '.join(words)}: {error}") from error

    async def _scrape(self, name: str, url: str) -> None:
        # A worker that was just killed serves nothing.
        with suppress(httpx.HTTPError):
            text = (await self._http.get(f"{url}/metrics")).text
            for line in text.splitlines():
                if line.startswith("iwl_loop_lag_seconds "):
                    self.samples.loop_lags.setdefault(part_of(name), []).append(float(line.split()[1]))


def part_of(name: str) -> str:
    return name.partition("-")[0]


def resident_bytes(pid: int) -> int | None:
    """None when there is no such process any more, or it is a zombie."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    _, found, rest = status.partition("VmRSS:")
    return int(rest.split()[0]) * 1024 if found else None
