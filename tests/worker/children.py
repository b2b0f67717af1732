"""Workers as real child processes, to be killed, paused and told to leave."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from common.settings import Settings, child_environment
from common.store import Store
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]


class Child:
    """`python -m worker`, its standard error in a file."""

    def __init__(self, settings: Settings, directory: Path, **overrides: Any) -> None:
        self.instance = str(overrides.get("instance", f"child-{time.monotonic_ns()}"))
        told = {
            "redis_url": settings.redis_url,
            "namespace": settings.namespace,
            "claim_idle_ms": settings.claim_idle_ms,
            "instance": self.instance,
            "metrics_port": 0,
        }
        told |= overrides
        environment = child_environment(**{name: str(value) for name, value in told.items()})
        self._log = directory / f"{self.instance}-{time.monotonic_ns()}.log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "worker"], cwd=ROOT, env=environment, stderr=log
            )

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The JSON log lines."""
        return [msgspec.json.decode(line) for line in self.log.splitlines() if line.startswith("{")]

    async def seated(self, store: Store) -> str:
        """Its name, once it is ready to work."""

        async def name() -> str | None:
            workers = (await store.scale()).workers
            return next((w.worker for w in workers if w.instance == self.instance and w.ready), None)

        await wait_until(name, timeout=10)
        found = await name()
        assert found
        return found

    async def exit_code(self, timeout: float = 15.0) -> int:
        async with asyncio.timeout(timeout):
            return await asyncio.to_thread(self.process.wait)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def pause(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def ask_to_leave(self) -> None:
        self.process.terminate()

    def clear_away(self) -> None:
        if self.process.poll() is None:
            self.resume()
            self.kill()
