"""Keeps child processes alive until told to stop them."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from lab.exits import ChildRefused, Exit
from lab.folder import last_lines

log = logging.getLogger(__name__)

TETHER = Path(__file__).with_name("tether.py")

#: A child that lived longer is restarted at once when it dies; so is any child the first time.
SETTLED = timedelta(seconds=10)
FIRST_DELAY = timedelta(milliseconds=100)
LONGEST_DELAY = timedelta(seconds=5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    log: Path


def restart_delay(quick_deaths: int) -> timedelta:
    """`quick_deaths` counts those in a row, this one included."""
    if quick_deaths <= 1:
        return timedelta(0)
    return min(FIRST_DELAY * 2 ** min(quick_deaths - 2, 10), LONGEST_DELAY)


class Child:
    """One program that is kept running: restarted when it dies, and not when it refuses its settings."""

    def __init__(self, program: Program, tell: Callable[[str], None]) -> None:
        self.program = program
        self._tell = tell
        self._stop = asyncio.Event()
        #: Cleared while a death is to stay one.
        self._may_live = asyncio.Event()
        self._may_live.set()
        self._process: asyncio.subprocess.Process | None = None
        #: When this life of it began.
        self.born_at = datetime.now(UTC)
        #: Ends when the child was stopped; raises ChildRefused when it exits with 2.
        self.kept = asyncio.create_task(self._keep(), name=program.name)

    @property
    def pid(self) -> int | None:
        """None while it is between two lives."""
        alive = self._process is not None and self._process.returncode is None
        return self._process.pid if self._process and alive else None

    async def stop(self, grace: timedelta) -> None:
        """SIGTERM, and SIGKILL for a child that is still there after `grace`."""
        self._stop.set()
        self._may_live.set()
        self.signal(signal.SIGTERM)
        done, _ = await asyncio.wait({self.kept}, timeout=grace.total_seconds())
        if not done:
            self._tell(f"{self.program.name} did not stop in time and was killed")
            self.signal(signal.SIGKILL)
            await asyncio.wait({self.kept})

    def kill(self) -> None:
        """SIGKILL, for good."""
        self._stop.set()
        self._may_live.set()
        self.signal(signal.SIGKILL)

    @contextmanager
    def not_restarted(self) -> Generator[None]:
        """If it dies meanwhile, it stays dead until the end of the block."""
        self._may_live.clear()
        try:
            yield
        finally:
            self._may_live.set()

    def signal(self, signum: signal.Signals) -> None:
        if self.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signum)

    async def _keep(self) -> None:
        lives = quick_deaths = 0
        while not self._stop.is_set():
            born = time.monotonic()
            code = await self._live(again=lives > 0)
            lives += 1
            if self._stop.is_set():
                return
            if code == Exit.USAGE:
                raise ChildRefused("\n".join(last_lines(self.program.log, 1)) or None)
            settled = time.monotonic() - born > SETTLED.total_seconds()
            quick_deaths = 1 if settled else quick_deaths + 1
            delay = restart_delay(quick_deaths)
            if not self._may_live.is_set():
                self._tell(f"{self.program.name} {_death(code)}; not restarting it")
                await self._may_live.wait()
                continue
            self._tell(f"{self.program.name} {_death(code)}; restarting it")
            with suppress(TimeoutError):
                async with asyncio.timeout(delay.total_seconds()):
                    await self._stop.wait()

    async def _live(self, *, again: bool) -> int:
        """One life of the child, from start to exit code."""
        tether = (sys.executable, "-I", "-S", str(TETHER), str(os.getpid()))
        self.born_at = datetime.now(UTC)
        with self.program.log.open("ab") as output:
            self._process = await asyncio.create_subprocess_exec(
                *tether,
                *self.program.command,
                env=self.program.environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                # Ctrl-C goes to the whole group of the terminal: the order of stopping is ours to keep.
                start_new_session=True,
            )
        # Told to stop while the process was being made, when there was nobody to signal yet.
        if self._stop.is_set():
            self.signal(signal.SIGTERM)
        elif again:
            self._tell(f"{self.program.name} runs again, pid {self._process.pid}")
        return await self._process.wait()


def _death(code: int) -> str:
    if code < 0:
        return f"was killed ({signal.Signals(-code).name})"
    return f"exited with {code}"


class Supervisor:
    """All children of one lab."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self.children: dict[str, Child] = {}
        #: Done as soon as one child cannot run with its settings.
        self.refused: asyncio.Future[ChildRefused] = asyncio.get_running_loop().create_future()

    def add(self, program: Program) -> Child:
        child = Child(program, self._tell)
        child.kept.add_done_callback(self._ended)
        self.children[program.name] = child
        return child

    async def stop(self, names: list[str], grace: timedelta) -> None:
        """Stop some of them, all at the same time."""
        children = [self.children[name] for name in names if name in self.children]
        await asyncio.gather(*(child.stop(grace) for child in children))

    def kill(self) -> None:
        for child in self.children.values():
            child.kill()

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not self.refused.done():
            refusal = (
                error if isinstance(error, ChildRefused) else ChildRefused(f"{task.get_name()}: {error}")
            )
            self.refused.set_result(refusal)
