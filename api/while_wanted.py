"""Waiting for work on a client's behalf, and no longer than the client or the gateway stays."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

T = TypeVar("T")


async def client_gone(receive: Receive) -> None:
    """Returns when the client has hung up."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def stop(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def while_wanted(work: Coroutine[Any, Any, T], receive: Receive, closing: asyncio.Event) -> T | None:
    """The result of `work`, or None when the client hung up or the gateway closes first."""
    task = asyncio.create_task(work)
    interrupts = [asyncio.create_task(client_gone(receive)), asyncio.create_task(closing.wait())]
    try:
        await asyncio.wait([task, *interrupts], return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        await stop(task, *interrupts)
