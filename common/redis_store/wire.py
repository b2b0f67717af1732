"""What we use of the client library, typed: its own annotations are partly unknown to a strict checker."""

from __future__ import annotations

from collections.abc import Awaitable, MutableMapping
from typing import Any, Protocol, cast

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

Argument = str | bytes | int | float
Command = tuple[Argument, ...]
Reply = Any

#: Seconds until a command counts as lost. No blocking read lasts longer than a second.
SOCKET_TIMEOUT = 5.0


class Pipeline(Protocol):
    def execute_command(self, *command: Argument) -> object: ...
    def execute(self, raise_on_error: bool = True) -> Awaitable[list[Reply]]: ...


class PubSub(Protocol):
    def subscribe(self, channel: str) -> Awaitable[None]: ...
    def get_message(self, *, timeout: float) -> Awaitable[dict[str, Any] | None]: ...
    def aclose(self) -> Awaitable[None]: ...


class Client(Protocol):
    #: Command name -> parser of its reply.
    response_callbacks: MutableMapping[Any, Any]

    def execute_command(self, *command: Argument) -> Awaitable[Reply]: ...
    def pipeline(self, transaction: bool) -> Pipeline: ...
    def pubsub(self) -> PubSub: ...
    def aclose(self) -> Awaitable[None]: ...


def connect(url: str) -> Client:
    # One re-send of a command whose reply was lost: every script may run twice (P4). Protocol 2: one shape
    # of replies on every server.
    client = Redis.from_url(  # pyright: ignore[reportUnknownMemberType]
        url,
        protocol=2,
        socket_timeout=SOCKET_TIMEOUT,
        socket_connect_timeout=SOCKET_TIMEOUT,
        retry=Retry(NoBackoff(), 1),
    )
    return cast(Client, client)


def raw(client: Client) -> Client:
    """Replies as the server sends them: the library's parsers know one shape per command, and cost time."""
    client.response_callbacks.clear()
    return client
