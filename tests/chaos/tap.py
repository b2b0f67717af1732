"""The connections of a process that is going to die: every command passes here, and one is the last."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, NoReturn, cast

import hiredis
from redis.exceptions import ResponseError

from common.redis_store.wire import Client, Connection, Pool, PubSub, Reply
from tests.chaos.spots import CONNECT, STARTING, SUBSCRIBE, Side, Spot, what_is

Words = Sequence[bytes]
Exchange = Callable[..., Awaitable[Reply]]
#: Changes a batch before it is sent, perhaps after commands of its own. One command stays one command.
Sabotage = Callable[[Sequence[Words], Exchange], Awaitable[Sequence[Words]]]

#: Longer than any blocking read; a reply that takes longer is a fault of the harness.
PATIENCE = 5.0

_pack = cast(Callable[[tuple[bytes, ...]], bytes], hiredis.pack_command)  # pyright: ignore[reportUnknownMemberType]


class Tap:
    """Counts what passes, and knows the spot. `tell` gets each command's name as it is about to be sent."""

    def __init__(self, spot: Spot | None, tell: Callable[[str], None], sabotage: Sabotage | None) -> None:
        self.spot = spot
        self.sabotage = sabotage
        #: Until the store has been checked.
        self.starting = True
        self._tell = tell
        self._seen: Counter[str] = Counter()

    def last_of(self, names: Sequence[str]) -> int | None:
        """How many of these commands are still executed when the spot is among them."""
        for place, name in enumerate(names):
            what = f"{STARTING}{name}" if self.starting else name
            self._seen[what] += 1
            self._tell(f"SENT {what}")
            if self.spot and (what, self._seen[what]) == (self.spot.what, self.spot.nth):
                return place + (self.spot.side is Side.AFTER)
        return None

    def die(self) -> NoReturn:
        self._tell("DIED")
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("SIGKILL came too late")


class TappedConnection:
    def __init__(self, inner: Connection, tap: Tap) -> None:
        self._inner = inner
        self._tap = tap

    @property
    def is_connected(self) -> bool:
        return self._inner.is_connected

    async def connect(self) -> None:
        last = self._tap.last_of([CONNECT])
        if last != 0:
            await self._inner.connect()
        if last is not None:
            self._tap.die()

    async def disconnect(self, nowait: bool = False) -> None:
        await self._inner.disconnect(nowait=nowait)

    async def send_packed_command(self, command: bytes, check_health: bool = True) -> None:
        batch = _split(command)
        if self._tap.sabotage is not None:
            batch = await self._tap.sabotage(batch, self._exchange)
        await self._send(batch)

    async def read_response(self, *, timeout: float) -> Reply:
        return await self._inner.read_response(timeout=timeout)

    async def _send(self, batch: Sequence[Words]) -> None:
        last = self._tap.last_of([what_is(words) for words in batch])
        sent = batch if last is None else batch[:last]
        if sent:
            await self._inner.send_packed_command(b"".join(_pack(tuple(words)) for words in sent), False)
        if last is not None:
            # Executed, not only sent: the server has answered.
            async with asyncio.timeout(PATIENCE):
                for _ in sent:
                    with suppress(ResponseError):
                        await self._inner.read_response(timeout=PATIENCE)
            self._tap.die()

    async def _exchange(self, *words: bytes) -> Reply:
        await self._send([words])
        return await self._inner.read_response(timeout=PATIENCE)


class TappedPubSub:
    def __init__(self, inner: PubSub, tap: Tap) -> None:
        self._inner = inner
        self._tap = tap

    async def subscribe(self, channel: str) -> None:
        last = self._tap.last_of([SUBSCRIBE])
        if last != 0:
            await self._inner.subscribe(channel)
        if last is not None:
            if last:
                await self._inner.get_message(timeout=PATIENCE)
            self._tap.die()

    async def ping(self) -> None:
        await self._inner.ping()

    async def get_message(self, *, timeout: float) -> dict[str, Any] | None:
        return await self._inner.get_message(timeout=timeout)

    async def aclose(self) -> None:
        await self._inner.aclose()


class TappedClient:
    """In place of a client, for `RedisStore(settings, connect=...)`: all its connections are tapped."""

    def __init__(self, inner: Client, tap: Tap) -> None:
        self._inner = inner
        self._tap = tap

    @property
    def connection_pool(self) -> Pool:
        return self

    def make_connection(self) -> Connection:
        return TappedConnection(self._inner.connection_pool.make_connection(), self._tap)

    def pubsub(self) -> PubSub:
        return TappedPubSub(self._inner.pubsub(), self._tap)

    async def aclose(self) -> None:
        await self._inner.aclose()


def _split(packed: bytes) -> list[Words]:
    """The commands of a round trip; they are written like the arrays of replies."""
    reader = hiredis.Reader()
    reader.feed(packed)
    batch: list[Words] = []
    while (words := reader.gets()) is not False:
        batch.append(cast(list[bytes], words))
    return batch
