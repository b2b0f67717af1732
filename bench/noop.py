"""A backend that answers at once: what is left is the queue's own cost."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from common.job import JobRequest
from common.settings import Settings
from worker.backends.base import Completion

ANSWER = "x" * 100


class Noop:
    def __init__(self, settings: Settings) -> None:
        del settings

    async def generate(self, request: JobRequest, attempt: int) -> AsyncGenerator[str | Completion, None]:
        del request, attempt
        yield ANSWER
        yield Completion()

    async def ready(self) -> bool:
        return True

    async def aclose(self) -> None: ...
