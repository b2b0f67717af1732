"""Waiting for jobs: one pub/sub connection per process, however many clients wait.

Pub/sub may drop messages, so all watches run again after every reconnect and every few seconds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any
from uuid import uuid4

from common.redis_store.keys import Keys
from common.redis_store.scripts import Scripts
from common.redis_store.wire import PATIENCE_S, Connect, PubSub

log = logging.getLogger(__name__)

#: How long a lost message can go unnoticed.
RECHECK_S = 5.0
#: How long a new wait waits for the subscription, and how long after a failure until the next try.
SUBSCRIBED_WITHIN_S = 1.0
PAUSE_S = 0.2

#: Waits up to so many seconds for something to happen to the job; whether it did.
Changed = Callable[[float], Awaitable[bool]]


class Waiters:
    def __init__(self, connect: Connect, keys: Keys, scripts: Scripts) -> None:
        self._connect = connect
        self._scripts = scripts
        self._gateway = uuid4().hex[:8]
        self._channel = keys.channel(self._gateway)
        self._watches: dict[str, set[asyncio.Event]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._subscribed = asyncio.Event()

    @asynccontextmanager
    async def watch(self, job_id: str) -> AsyncGenerator[Changed]:
        """Whatever happens to the job after this was entered sets `changed`."""
        event = asyncio.Event()
        registered: asyncio.Future[object] | None = None
        self._watches.setdefault(job_id, set()).add(event)
        try:
            await self._listen()
            # Not awaited: it shares its round trip with the caller's next read, and goes first.
            registered = self._scripts.start_watch(gateway=self._gateway, job_id=job_id)
            yield lambda timeout: _changed(event, timeout)
        finally:
            if registered is not None:
                registered.cancel()
            events = self._watches[job_id]
            events.discard(event)
            if not events:
                del self._watches[job_id]

    async def aclose(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _listen(self) -> None:
        if not self._tasks:
            self._tasks = [
                asyncio.create_task(self._keep_on(self._hear)),
                asyncio.create_task(self._keep_on(self._recheck)),
            ]
        # Without a subscription the recheck finds out: a caller is not held up for it.
        with suppress(TimeoutError):
            async with asyncio.timeout(SUBSCRIBED_WITHIN_S):
                await self._subscribed.wait()

    async def _keep_on(self, doing: Callable[[], Awaitable[None]]) -> None:
        """Whatever goes wrong: without these two tasks every wait would last until its timeout."""
        told = False
        while True:
            try:
                await doing()
                told = False
            except Exception as error:
                log.log(logging.DEBUG if told else logging.WARNING, "waiting works less well: %r", error)
                told = True
                await asyncio.sleep(PAUSE_S)

    async def _hear(self) -> None:
        """Until the connection breaks, or is silent."""
        client = self._connect()
        pubsub = client.pubsub()
        try:
            async with asyncio.timeout(PATIENCE_S):
                await pubsub.subscribe(self._channel)
            while True:
                message = await _next(pubsub)
                if message["type"] == "subscribe":
                    self._subscribed.set()
                    self._wake_all()
                elif message["type"] == "message":
                    self._wake(message["data"].decode(errors="replace"))
        finally:
            self._subscribed.clear()
            await pubsub.aclose()
            await client.aclose()

    async def _recheck(self) -> None:
        """One round, every few seconds: registers again, and wakes whatever a lost message should have."""
        await asyncio.sleep(RECHECK_S)
        job_ids = list(self._watches)
        for start in range(0, len(job_ids), 256):
            await self._scripts.watch(gateway=self._gateway, job_ids=job_ids[start : start + 256])
        self._wake_all()

    def _wake_all(self) -> None:
        for job_id in self._watches:
            self._wake(job_id)

    def _wake(self, job_id: str) -> None:
        for event in self._watches.get(job_id, ()):
            event.set()


async def _next(pubsub: PubSub) -> dict[str, Any]:
    # A connection that a firewall has forgotten looks like one without news: it is asked now and then. The
    # library connects again by itself meanwhile, without a time limit of its own.
    async with asyncio.timeout(RECHECK_S + PATIENCE_S):
        message = await pubsub.get_message(timeout=RECHECK_S)
        if message is None:
            await pubsub.ping()
            message = await pubsub.get_message(timeout=PATIENCE_S)
    if message is None:
        raise TimeoutError("the subscription is silent")
    return message


async def _changed(event: asyncio.Event, timeout: float) -> bool:
    try:
        # Not wait_for: up to Python 3.11 it swallows a cancellation that comes with the event, and the wait
        # would go on for a client, or a gateway, that has left.
        async with asyncio.timeout(timeout):
            await event.wait()
    except TimeoutError:
        return False
    event.clear()
    return True
