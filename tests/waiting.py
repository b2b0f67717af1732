"""Waiting on conditions, so that no test sleeps for luck."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable


async def wait_until(
    condition: Callable[[], object | Awaitable[object]], timeout: float = 5.0, every: float = 0.01
) -> None:
    """Polls until the condition is truthy. Fails the test when time is up."""
    deadline = time.monotonic() + timeout
    while True:
        outcome = condition()
        value = await outcome if inspect.isawaitable(outcome) else outcome
        if value:
            return
        if time.monotonic() > deadline:
            raise AssertionError(f"{inspect.getsource(condition).strip()}: still not so after {timeout} s")
        await asyncio.sleep(every)


def hold_up_the_loop(seconds: float) -> None:
    """As a computation or a call that blocks does it."""
    time.sleep(seconds)
