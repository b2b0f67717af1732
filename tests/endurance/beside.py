"""Something that goes on beside the work, and whose crash is not left for later."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager


@asynccontextmanager
async def beside(going_on: Coroutine[None, None, None]) -> AsyncGenerator[None]:
    """Until the block ends. What it raises ends the block, as an ExceptionGroup."""
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(going_on)
        yield
        task.cancel()
