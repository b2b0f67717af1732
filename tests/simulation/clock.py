"""Virtual time: a clock that only moves when told, and an event loop that tells it."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVar
from unittest.mock import patch

T = TypeVar("T")

#: 2030-01-01, a whole second: whatever the machine's clock says, a run is the same run.
EPOCH_NS = 1_893_456_000 * 10**9


class Clock:
    """What `time` says while the clock is installed. Whole nanoseconds, so that sums do not drift."""

    def __init__(self) -> None:
        self.ns = 0

    @property
    def now(self) -> float:
        """Seconds since the start."""
        return self.ns / 1e9

    @property
    def unix_ms(self) -> int:
        return (EPOCH_NS + self.ns) // 10**6

    def advance_to(self, seconds: float) -> None:
        # Never a little too early, by a float's rounding: a timer that has been waited for is due.
        self.ns = max(self.ns, int(seconds * 1e9))
        while self.now < seconds:
            self.ns += 1

    @contextmanager
    def installed(self) -> Generator[None]:
        """For everything in this process: fakeredis and the workers share the one clock (P8)."""
        with (
            patch.object(time, "time", lambda: (EPOCH_NS + self.ns) / 1e9),
            patch.object(time, "time_ns", lambda: EPOCH_NS + self.ns),
            patch.object(time, "monotonic", lambda: self.now),
        ):
            yield


class Process:
    """What tasks belong to: it can be stopped like a process by SIGSTOP, and ended like one by SIGKILL."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.dead = False
        self.paused = False
        #: Callbacks that came due while it was paused, or after its death.
        self.held: list[Step] = []
        #: All that have not ended: one that is never run again must not be collected as garbage either.
        self.tasks: list[asyncio.Task[Any]] = []
        self._roomy = 64

    def owns(self, task: asyncio.Task[Any]) -> None:
        self.tasks.append(task)
        if len(self.tasks) > self._roomy:
            self.tasks = [task for task in self.tasks if not task.done()]
            self._roomy = 2 * len(self.tasks) + 64


#: The process that runs the current callback; inherited by every task and timer it starts.
PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)

Step = tuple[asyncio.Handle, Process | None]


class Stuck(Exception):
    """Nothing is ready and no timer waits: somebody waits for what never comes."""


class VirtualLoop(asyncio.BaseEventLoop):
    """Runs what is ready, then jumps to the next timer. No selector, no threads, no real time."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock
        self.steps = 0
        self._serial = itertools.count()
        self._soon: deque[Step] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle, Process | None]] = []
        _Task.numbers = itertools.count()
        self.set_task_factory(_task)

    def time(self) -> float:
        return self.clock.now

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        with self.clock.installed():
            return self.run_until_complete(work)

    def resume(self, process: Process) -> None:
        process.paused = False
        self._soon.extend(process.held)
        process.held.clear()

    # ---- what asyncio calls

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        context = copy_context() if context is None else context
        handle = asyncio.Handle(callback, args, self, context)
        self._soon.append((handle, context.get(PROCESS)))
        return handle

    call_soon_threadsafe = call_soon  # pyright: ignore[reportAssignmentType]

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        context = copy_context() if context is None else context
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        # The serial number keeps timers of one instant in the order of their making.
        heapq.heappush(self._timers, (when, next(self._serial), timer, context.get(PROCESS)))
        return timer

    def _run_once(self) -> None:
        while self._timers and self._timers[0][2].cancelled():
            heapq.heappop(self._timers)
        if not self._soon:
            if not self._timers:
                raise Stuck
            self.clock.advance_to(self._timers[0][0])
        while self._timers and self._timers[0][0] <= self.time():
            _, _, timer, process = heapq.heappop(self._timers)
            self._soon.append((timer, process))
        for _ in range(len(self._soon)):
            self._step(*self._soon.popleft())

    def _step(self, handle: asyncio.Handle, process: Process | None) -> None:
        if handle.cancelled():
            return
        if process and (process.paused or process.dead):
            process.held.append((handle, process))
            return
        self.steps += 1
        handle._run()  # pyright: ignore[reportPrivateUsage]

    def _write_to_self(self) -> None:
        pass

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        pass


class _Task(asyncio.Task[Any]):
    """Sets of tasks have an order of their own: by number, not by address, so that a run can be repeated."""

    numbers = itertools.count()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._number = next(_Task.numbers)
        super().__init__(*args, **kwargs)

    def __hash__(self) -> int:
        return self._number


def _task(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
    task = _Task(work, loop=loop, **options)
    context = options.get("context")
    if process := context.get(PROCESS) if context is not None else PROCESS.get():
        process.owns(task)
    return task
