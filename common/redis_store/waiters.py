"""Waiting for jobs: one pub/sub connection per process, however many clients wait.

Pub/sub may drop messages, so all watches run again after every reconnect and every few seconds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from uuid import uuid4

from common.redis_store.keys import Keys
from common.redis_store.scripts import Scripts
from common.redis_store.wire import Connect, PubSub

log = logging.getLogger(__name__)

#: How long a lost message can go unnoticed, in seconds.
RECHECK = 5.0

#: Waits up to so many seconds for something to happen to the job; whether it did.
Changed = Callable[[float], Awaitable[bool]]


class Waiters:
    def __init__(self, connect: Connect, keys: Keys, scripts: Scripts) -> None:
        self._connect = connect
        self._scripts = scripts
        self._gateway = uuid4().hex[:8]
        self._channel = keys.channel(self._gateway)
        self._watches: dict[str, set[asyncio.Event]] = {}
        self._listener: asyncio.Task[None] | None = None
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

    def wake_all(self) -> None:
        for events in self._watches.values():
            for event in events:
                event.set()

    async def aclose(self) -> None:
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.gather(self._listener, return_exceptions=True)

    async def _listen(self) -> None:
        if self._listener is None or self._listener.done():
            self._listener = asyncio.create_task(self._keep_listening())
        # A store that is away must not hold the caller up: the recheck covers what is missed.
        with suppress(TimeoutError):
            await asyncio.wait_for(self._subscribed.wait(), RECHECK)

    async def _keep_listening(self) -> None:
        while True:
            try:
                await self._listen_once()
            except Exception as error:
                # Whatever it was: without a listener every wait would last until its timeout.
                log.debug("listener starts again", extra={"error": repr(error)})
            self._subscribed.clear()
            await asyncio.sleep(0.1)

    async def _listen_once(self) -> None:
        client = self._connect()
        pubsub = client.pubsub()
        try:
            await pubsub.subscribe(self._channel)
            await self._hear(pubsub)
        finally:
            await pubsub.aclose()
            await client.aclose()

    async def _hear(self, pubsub: PubSub) -> None:
        loop = asyncio.get_running_loop()
        recheck_at = loop.time()
        while True:
            message = await pubsub.get_message(timeout=max(0.0, recheck_at - loop.time()))
            if message is not None and message["type"] == "subscribe":
                self._subscribed.set()
                recheck_at = loop.time()
            elif message is not None and message["type"] == "message":
                self._wake(message["data"].decode(errors="replace"))
            if loop.time() >= recheck_at:
                await self._recheck()
                recheck_at = loop.time() + RECHECK

    async def _recheck(self) -> None:
        job_ids = list(self._watches)
        for start in range(0, len(job_ids), 256):
            batch = job_ids[start : start + 256]
            words = await self._scripts.watch(gateway=self._gateway, job_ids=batch)
            for job_id, word in zip(batch, words, strict=True):
                if word != "live":
                    self._wake(job_id)

    def _wake(self, job_id: str) -> None:
        for event in self._watches.get(job_id, ()):
            event.set()


async def _changed(event: asyncio.Event, timeout: float) -> bool:
    try:
        await asyncio.wait_for(event.wait(), timeout)
    except TimeoutError:
        return False
    event.clear()
    return True
