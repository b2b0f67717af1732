"""The client library as we use it: one connection, many commands, one round trip; and pub/sub.

The library's pool and pipelines cost more per command than the server does, and its own annotations are
partly unknown to a strict checker; both end here.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, cast

import hiredis
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as ConnectionLost
from redis.exceptions import MasterDownError, ReadOnlyError, ResponseError
from redis.exceptions import TimeoutError as Overdue

from common.errors import SettingsError

Argument = str | bytes | int | float
Command = tuple[Argument, ...]
#: As the server sent it: bytes, int, list or None; an error reply is its exception.
Reply = Any

REPLICA_SAYS = (ReadOnlyError, MasterDownError)

#: After this a round trip counts as lost. No blocking read lasts longer than a second.
PATIENCE_S = 5.0


class Connection(Protocol):
    @property
    def is_connected(self) -> bool: ...
    async def connect(self) -> None: ...
    async def disconnect(self, nowait: bool = False) -> None: ...
    async def send_packed_command(self, command: bytes, check_health: bool = True) -> None: ...
    async def read_response(self, *, timeout: float) -> Reply: ...


class Pool(Protocol):
    def make_connection(self) -> Connection: ...


class PubSub(Protocol):
    def subscribe(self, channel: str) -> Awaitable[None]: ...
    def ping(self) -> Awaitable[object]: ...
    def get_message(self, *, timeout: float) -> Awaitable[dict[str, Any] | None]: ...
    def aclose(self) -> Awaitable[None]: ...


class Client(Protocol):
    @property
    def connection_pool(self) -> Pool: ...
    def pubsub(self) -> PubSub: ...
    def aclose(self) -> Awaitable[None]: ...


Connect = Callable[[], Client]

_pack = cast(Callable[[Command], bytes], hiredis.pack_command)  # pyright: ignore[reportUnknownMemberType]


def dial(url: str) -> Client:
    # Protocol 2: one shape of replies on every server. No timeout of the library's own: it costs a task
    # for each command, and a round trip has ours.
    try:
        client = Redis.from_url(url, protocol=2, socket_timeout=None, socket_connect_timeout=PATIENCE_S)  # pyright: ignore[reportUnknownMemberType]
        client.connection_pool.make_connection()
    except (TypeError, ValueError):
        # Its own message may quote a part of the password.
        raise SettingsError("IWL_REDIS_URL: the client library cannot use it; look at its query") from None
    return cast(Client, client)


class Wire:
    """One connection, made when it is needed and made again when it broke.

    Round trips wait for each other: two at once would read each other's replies."""

    def __init__(self, connect: Connect, *, resend: bool) -> None:
        """`resend`: once more when the connection broke, for commands that may reach the server twice."""
        self._client = connect()
        self._resend = resend
        self._connection: Connection | None = None
        self._free = asyncio.Lock()
        #: What answers here is no primary any more.
        self._outlived = False

    async def exchange(self, commands: Sequence[Command]) -> list[Reply]:
        """Replies in order. Raises the library's ConnectionError and TimeoutError, and OSError."""
        async with self._free:
            try:
                return await self._round_trip(commands)
            except (ConnectionLost, OSError):
                if not self._resend:
                    raise
                return await self._round_trip(commands)

    async def call(self, *command: Argument) -> Reply:
        """One reply. Raises as `exchange`, and ResponseError."""
        (reply,) = await self.exchange([command])
        if isinstance(reply, ResponseError):
            raise reply
        return reply

    async def aclose(self) -> None:
        if self._connection is not None:
            await self._connection.disconnect()
        await self._client.aclose()

    async def _round_trip(self, commands: Sequence[Command]) -> list[Reply]:
        if self._connection is None:
            self._connection = self._client.connection_pool.make_connection()
        connection = self._connection
        try:
            async with asyncio.timeout(PATIENCE_S):
                if not connection.is_connected:
                    await connection.connect()
                packed = b"".join(_pack(command) for command in commands)
                await connection.send_packed_command(packed, check_health=False)
                replies = [await self._reply(connection) for _ in commands]
                if self._outlived:
                    # After a failover the address may lead to the new primary; this connection never will.
                    self._outlived = False
                    await connection.disconnect(nowait=True)
                return replies
        except BaseException as error:
            # A reply left on the wire would be read as the answer to the next command.
            await connection.disconnect(nowait=True)
            if isinstance(error, TimeoutError):
                raise Overdue("no answer in time") from error
            raise

    async def _reply(self, connection: Connection) -> Reply:
        try:
            return await connection.read_response(timeout=math.inf)
        except ResponseError as error:
            self._outlived |= isinstance(error, REPLICA_SAYS)
            return error
