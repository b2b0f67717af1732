"""A real vLLM, watched through its HTTP API, and killed and paused through the script that runs it."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.waiting import wait_until

#: Loading a small model takes half a minute on two cores.
START_WITHIN_S = 150.0
#: What the engine takes to die, or to notice that its clients have gone.
SOON_S = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    #: Ends in /v1, as IWL_VLLM_URL does.
    url: str
    model: str
    #: Takes `kill`, `start`, `pause` and `resume`; None is an engine that nobody here controls.
    control: str | None
    #: Fails at once when the engine hangs: httpx has a time limit of its own.
    http: httpx.AsyncClient = field(default_factory=lambda: httpx.AsyncClient(timeout=20, trust_env=False))

    async def ask(self, **body: object) -> Any:
        """The answer to a chat completion without any queue, or the error as it came."""
        whole = {"model": self.model} | body
        return (await self.http.post(f"{self.url}/chat/completions", json=whole)).json()

    async def up(self) -> bool:
        """Healthy, and serving: what a worker asks, too."""
        try:
            health = await self.http.get(f"{self._root}/health")
            return health.is_success and (await self.http.get(f"{self.url}/models")).is_success
        except httpx.HTTPError:
            return False

    async def running(self) -> int:
        """Requests in the engine's hands, by its own account."""
        metrics = (await self.http.get(f"{self._root}/metrics")).text
        held = re.findall(r"^vllm:num_requests_(?:running|waiting)\{.*\} (\S+)$", metrics, re.MULTILINE)
        assert held, "the engine tells no vllm:num_requests_running"
        return round(sum(map(float, held)))

    async def until_running(self, count: int, timeout: float = SOON_S) -> None:
        async def so() -> bool:
            return await self.running() == count

        await wait_until(so, timeout, every=0.02)

    async def kill(self) -> None:
        await self._do("kill")
        # A start that still finds it alive would leave it at that.
        await wait_until(self._gone, SOON_S, every=0.05)

    async def start(self) -> None:
        """Returns at once; it takes a while until it is `up`."""
        await self._do("start")

    async def until_up(self) -> None:
        await wait_until(self.up, START_WITHIN_S, every=0.1)

    async def pause(self) -> None:
        await self._do("pause")

    async def resume(self) -> None:
        await self._do("resume")

    @property
    def _root(self) -> str:
        return self.url.removesuffix("/v1")

    async def _gone(self) -> bool:
        try:
            await self.http.get(f"{self._root}/health")
        except httpx.ConnectError:
            return True
        except httpx.HTTPError:
            pass
        return False

    async def _do(self, verb: str) -> None:
        assert self.control
        # Its own children must not hold a pipe of ours open.
        process = await asyncio.create_subprocess_exec(
            self.control, verb, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL
        )
        assert await process.wait() == 0, f"{self.control} {verb} failed"
