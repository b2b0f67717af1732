"""Runs something inside a lab, and leaves nothing behind however that ends."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress

from lab.exits import Exit
from lab.system import Plan, Ready, System

Work = Callable[[System, Ready], Awaitable[Exit]]

#: SIGHUP is the end of the terminal.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


async def run_lab(plan: Plan, tell: Callable[[str], None], work: Work, *, interrupted: Exit) -> Exit:
    """Starts a lab, does `work` in it, stops it: after the work, at a signal, or when a child refuses.

    Raises SettingsError, ChildRefused, NotStarted, and what `work` raises."""

    def tell_if_possible(line: str) -> None:
        # With the terminal goes where to tell it, and the lab must still stop.
        with suppress(OSError):
            tell(line)

    first, second = _signals(lambda: tell_if_possible("stopping; once more to kill"))
    system = System(plan, tell_if_possible)
    second.add_done_callback(lambda _: system.kill())
    task = asyncio.create_task(_work(system, work))
    try:
        await asyncio.wait((task, first, system.refused), return_when=asyncio.FIRST_COMPLETED)
        if system.refused.done():
            raise system.refused.result()
        return task.result() if task.done() else interrupted
    finally:
        task.cancel()
        # What it raised was raised above, unless a signal or a refusal came first.
        with suppress(asyncio.CancelledError, Exception):
            await task
        await system.stop()


async def _work(system: System, work: Work) -> Exit:
    return await work(system, await system.start())


def _signals(heard: Callable[[], None]) -> tuple[asyncio.Future[None], asyncio.Future[None]]:
    """Done at the first signal, and at the second one of somebody who does not want to wait."""
    loop = asyncio.get_running_loop()
    first: asyncio.Future[None] = loop.create_future()
    second: asyncio.Future[None] = loop.create_future()

    def handle() -> None:
        if not first.done():
            heard()
            first.set_result(None)
        elif not second.done():
            second.set_result(None)

    for signum in SIGNALS:
        loop.add_signal_handler(signum, handle)
    return first, second
