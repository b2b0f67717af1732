"""What this process holds: leases whose job runs here, or whose outcome is not committed yet."""

from __future__ import annotations

import asyncio
import time
from enum import StrEnum
from types import TracebackType

from common.store import Lease


class Stop(StrEnum):
    """Why a model call is closed from outside."""

    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    TAKEN = "taken"
    #: The lease could not be renewed for as long as it lasts.
    STALE = "stale"
    #: The worker leaves and cannot wait any longer.
    DRAIN = "drain"


#: The job is somebody else's or nobody's now: nothing is left to settle.
GONE = frozenset({Stop.CANCELLED, Stop.EXPIRED, Stop.TAKEN})


class Stopped(Exception):
    """The model call was closed from outside."""

    def __init__(self, why: Stop) -> None:
        super().__init__(why)
        self.why = why


class Hold:
    """One lease held. As a context manager it is the model call, which `close` can end from outside.

    Closing cancels the runner's task inside the block and takes the cancellation back on the way out, as
    `asyncio.timeout` does, so that a call needs no task of its own."""

    __slots__ = (
        "_called",
        "_cancels",
        "_closed",
        "_loop",
        "_task",
        "_timer",
        "ended",
        "lease",
        "limit_s",
        "renewed",
        "started",
        "stop",
    )

    def __init__(self, lease: Lease, limit_s: float, loop: asyncio.AbstractEventLoop) -> None:
        """The loop is handed in because asking for it costs a system call up to Python 3.11."""
        self.lease = lease
        #: Seconds this attempt may take.
        self.limit_s = limit_s
        self.started = self.renewed = self.ended = time.monotonic()
        self.stop: Stop | None = None
        self._loop = loop
        self._called = False
        self._closed = 0.0
        self._cancels = 0
        self._task: asyncio.Task[object] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def close(self, why: Stop) -> None:
        """End the model call. Does nothing once the call is over: its outcome stands."""
        if self.stop is None and not self._called:
            self.stop = why
            self._closed = time.monotonic()
            self._cancel()

    def insist(self) -> None:
        """Once more: the call was closed, and what it does to end does not end itself."""
        if self.stop is not None:
            self._cancel()

    @property
    def closing_for(self) -> float:
        """Seconds that a closed call has gone on; 0 for one that was not closed."""
        return 0.0 if self.stop is None or self._called else time.monotonic() - self._closed

    def _cancel(self) -> None:
        if self._task is not None:
            self._cancels += 1
            self._task.cancel()

    def __enter__(self) -> None:
        if self.stop is not None:
            raise Stopped(self.stop)
        self._task = asyncio.current_task(self._loop)
        self._timer = self._loop.call_later(self.limit_s, self.close, Stop.TIMEOUT)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None
        assert self._timer is not None
        self._timer.cancel()
        task, self._task, self._called = self._task, None, True
        if self.stop is not None:
            left = [task.uncancel() for _ in range(self._cancels)]
            # More than ours to take back: the worker itself is being ended as well.
            if left[-1] == 0:
                raise Stopped(self.stop) from error
        elif kind is asyncio.CancelledError and task.cancelling() == 0:
            # Let through, it would end the runner, and with it one slot for good.
            raise RuntimeError("the backend cancelled its own call") from error


class Holdings:
    """All holds, and how many more there may be: at most `concurrency` running, twice that in all."""

    def __init__(self, concurrency: int, changed: asyncio.Event) -> None:
        self.concurrency = concurrency
        self._changed = changed
        self._running: dict[str, Hold] = {}
        self._uncommitted: dict[str, Hold] = {}

    def __len__(self) -> int:
        return len(self._running) + len(self._uncommitted)

    @property
    def running(self) -> list[Hold]:
        return list(self._running.values())

    @property
    def all(self) -> list[Hold]:
        return [*self._running.values(), *self._uncommitted.values()]

    @property
    def free(self) -> int:
        return min(self.concurrency - len(self._running), 2 * self.concurrency - len(self))

    def take(self, hold: Hold) -> None:
        self._running[hold.lease.token] = hold

    def runs(self, hold: Hold) -> bool:
        return hold.lease.token in self._running

    def hand_over(self, hold: Hold) -> None:
        """The outcome is on its way: the slot is free, the lease is kept until the store has it."""
        del self._running[hold.lease.token]
        self._uncommitted[hold.lease.token] = hold
        self._changed.set()

    def drop(self, hold: Hold) -> None:
        if self._running.pop(hold.lease.token, None) is None:
            self._uncommitted.pop(hold.lease.token, None)
        self._changed.set()
