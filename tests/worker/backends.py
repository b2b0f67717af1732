"""Backends that tests play by hand, and one that can be named in IWL_BACKEND."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable

from common.job import JobRequest
from common.settings import Settings
from worker.backends.base import Completion

Pieces = AsyncGenerator[str | Completion, None]
DONE = Completion(finish_reason="stop")


class Played:
    """Calls a plain function for each request, and remembers what was asked and what was closed."""

    def __init__(self, generate: Callable[[JobRequest, int], Pieces]) -> None:
        self._generate = generate
        self.is_ready = True
        self.calls: list[tuple[str, int]] = []
        self.open = 0
        self.most_open = 0
        self.closed = False

    async def generate(self, request: JobRequest, attempt: int) -> Pieces:
        self.calls.append((request.prompt or "", attempt))
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            async for piece in self._generate(request, attempt):
                yield piece
        finally:
            self.open -= 1

    async def ready(self) -> bool:
        return self.is_ready

    async def aclose(self) -> None:
        self.closed = True


def echoing() -> Played:
    async def echo(request: JobRequest, attempt: int) -> Pieces:
        yield request.prompt or ""
        yield DONE

    return Played(echo)


def raising(*errors: BaseException) -> Played:
    """Raises the first on the first call, and so on; then echoes."""
    left = list(errors)

    async def generate(request: JobRequest, attempt: int) -> Pieces:
        if left:
            raise left.pop(0)
        yield request.prompt or ""
        yield DONE

    return Played(generate)


class Gate:
    """A backend whose calls wait until the test opens it."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()
        self.backend = Played(self._wait)

    async def _wait(self, request: JobRequest, attempt: int) -> Pieces:
        await self.opened.wait()
        yield request.prompt or ""
        yield DONE


class Named:
    """`IWL_BACKEND=tests.worker.backends:Named`."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    async def generate(self, request: JobRequest, attempt: int) -> Pieces:
        yield "named"
        yield DONE

    async def ready(self) -> bool:
        return True

    async def aclose(self) -> None:
        pass


class NoBackend:
    """Lacks everything."""

    def __init__(self, settings: Settings) -> None:
        pass


class TakesNothing(Named):
    """Its constructor wants no settings."""

    def __init__(self) -> None:
        pass


class Breaks(Named):
    """Its constructor fails."""

    def __init__(self, settings: Settings) -> None:
        raise KeyError("a weight")


class NoGenerator(Named):
    """Answers whole, as a coroutine."""

    async def generate(self, request: JobRequest, attempt: int) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        return "whole"


class NotAsync(Named):
    """Says at once whether it is ready."""

    def ready(self) -> bool:  # pyright: ignore[reportIncompatibleMethodOverride]
        return True
