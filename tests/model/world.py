"""Where the model's steps take place: a server, several processes on it, and a way to let time pass."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar
from uuid import uuid4

from common.store import Store
from tests.keyspace import clear
from tests.model.job import Instant
from tests.processes import Processes
from tests.servers import Server
from tests.simulation.clock import Clock, VirtualLoop

T = TypeVar("T")


@dataclass(frozen=True)
class Timing:
    """How long things take here, in milliseconds."""

    claim_idle: int
    #: A deadline, or the delay of a retry.
    soon: int
    result_ttl_s: int = 3600


#: Real time passes: everything is as short as the settings allow.
QUICK = Timing(claim_idle=100, soon=40)
#: Time passes at once.
LEISURELY = Timing(claim_idle=30_000, soon=5_000)


class World:
    """One example's processes, in an event loop of their own."""

    timing: Timing
    #: Whether hours may pass.
    can_wait = False

    def __init__(self, server: Server, *, sent_twice: bool, max_attempts: int) -> None:
        self._server = server
        overrides = {
            "claim_idle_ms": self.timing.claim_idle,
            "max_attempts": max_attempts,
            "result_ttl_s": self.timing.result_ttl_s,
            "idempotency_ttl_s": self.timing.result_ttl_s // 2,
        }
        self.namespace = f"model-{uuid4().hex[:10]}"
        self.processes = Processes(server, self.namespace, overrides, sent_twice=sent_twice)
        self.gateway: Store = self.run(self.processes.open())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        raise NotImplementedError

    def now_ms(self) -> int:
        raise NotImplementedError

    def let_pass(self, ms: int) -> None:
        raise NotImplementedError

    def timed(self, work: Coroutine[Any, Any, T]) -> tuple[T, Instant]:
        """An answer, and when it was given."""
        before = self.now_ms()
        answer = self.run(work)
        return answer, Instant(before, self.now_ms())

    async def _leave(self, check: bool) -> None:
        try:
            if check:
                await self.processes.assert_promises_kept()
        finally:
            await self.processes.close()
            await clear(self._server, self.namespace)

    def close(self, *, check: bool) -> None:
        """`check`: promises P1 and P7 must hold."""
        self.run(self._leave(check))


class VirtualWorld(World):
    """fakeredis: time stands still during a step."""

    timing = LEISURELY
    can_wait = True

    def __init__(self, server: Server, *, sent_twice: bool, max_attempts: int) -> None:
        self._clock = Clock()
        self._loop = VirtualLoop(self._clock)
        super().__init__(server, sent_twice=sent_twice, max_attempts=max_attempts)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run(work)

    def now_ms(self) -> int:
        return self._clock.unix_ms

    def let_pass(self, ms: int) -> None:
        self._clock.advance_to(self._clock.now + ms / 1000)

    def close(self, *, check: bool) -> None:
        try:
            super().close(check=check)
        finally:
            self._loop.run(self._loop.shutdown_asyncgens())
            self._loop.close()


class RealWorld(World):
    """A real server, on the clock of this machine: a step takes a while."""

    timing = QUICK

    def __init__(self, server: Server, *, sent_twice: bool, max_attempts: int) -> None:
        self._runner = asyncio.Runner()
        super().__init__(server, sent_twice=sent_twice, max_attempts=max_attempts)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    def now_ms(self) -> int:
        return time.time_ns() // 10**6

    def let_pass(self, ms: int) -> None:
        self.run(asyncio.sleep(timedelta(milliseconds=ms).total_seconds()))

    def close(self, *, check: bool) -> None:
        try:
            super().close(check=check)
        finally:
            self._runner.close()
