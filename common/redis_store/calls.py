"""One connection for all short commands: what is issued while a round trip is under way shares the next one.

A caller that is cancelled does not cancel the command: a reply left on the wire would be read by the next
one. A command may be sent twice, when its reply was lost: promise P4.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import cast

from redis import exceptions

from common.errors import StoreCorrupt, StoreError, StoreFull, StoreRefused, StoreUnavailable
from common.redis_store import loader
from common.redis_store.wire import Argument, Command, Reply, Wire

log = logging.getLogger(__name__)

#: Commands in one round trip; more only make the replies wait for each other.
MAX_BATCH = 256


def translate(error: Exception) -> StoreError:
    """The one place where the library's exceptions become ours."""
    text = str(error)
    if isinstance(error, exceptions.OutOfMemoryError) or text.startswith("OOM"):
        return StoreFull()
    if isinstance(error, (exceptions.ConnectionError, exceptions.TimeoutError, OSError)):
        return StoreUnavailable(f"The store is away: {text}")
    if text.split(" ", 1)[0] in {
        "READONLY",
        "MASTERDOWN",
        "LOADING",
        "MISCONF",
        "NOREPLICAS",
        "CLUSTERDOWN",
        "BUSY",
    }:
        return StoreUnavailable(f"The store takes no writes: {text}")
    return StoreCorrupt(f"The store's keys are not as we left them: {text}")


def group_is_missing(error: object) -> bool:
    """Redis 7.0 answers a blocked read of a deleted stream with UNBLOCKED, everything else with NOGROUP."""
    return isinstance(error, exceptions.ResponseError) and (
        "NOGROUP" in str(error) or "UNBLOCKED" in str(error)
    )


def script_is_missing(error: object) -> bool:
    return isinstance(error, exceptions.NoScriptError) or "NOSCRIPT" in str(error)


class Calls:
    """Runs commands and scripts, loads scripts that the server lost, creates the group when it is gone."""

    def __init__(self, wire: Wire, namespace: str, barrier: Command | None = None) -> None:
        """`barrier` is a WAIT or WAITAOF command sent after each batch; its reply must reach its numbers."""
        self._wire = wire
        self._namespace = namespace
        self._barrier = barrier
        self._waiting: deque[tuple[Command, asyncio.Future[Reply]]] = deque()
        self._sender: asyncio.Task[None] | None = None
        self._shebang: bool | None = None

    async def run(self, script: str, *arguments: Argument) -> Reply:
        """One script's reply. Raises StoreUnavailable, StoreFull, StoreCorrupt."""
        return await self.start("EVALSHA", script, 1, self._namespace, *arguments)

    def start(self, *command: Argument) -> asyncio.Future[Reply]:
        """Queue a command; two started in a row share a round trip and keep their order."""
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting.append((command, future))
        if self._sender is None or self._sender.done():
            self._sender = asyncio.create_task(self._send_all())
        return future

    def start_script(self, script: str, *arguments: Argument) -> asyncio.Future[Reply]:
        return self.start("EVALSHA", script, 1, self._namespace, *arguments)

    async def prepare(self) -> bool:
        """Load all scripts; whether the server reads `#!lua` lines (fakeredis does not)."""
        try:
            # allow-oom: a worker that starts on a full server is what makes room there (P10).
            await self._wire.call("EVAL", "#!lua flags=allow-oom\nreturn 1", 0)
            self._shebang = True
        except exceptions.ResponseError as error:
            if isinstance(translate(error), StoreUnavailable):
                raise
            self._shebang = False
        await self._load_scripts()
        return self._shebang

    async def aclose(self) -> None:
        if self._sender is not None:
            await self._sender
        await self._wire.aclose()

    async def _load_scripts(self) -> None:
        loads: list[Command] = [("SCRIPT", "LOAD", self._script(name).source) for name in loader.names()]
        for reply in await self._wire.exchange(loads):
            if isinstance(reply, Exception):
                raise reply

    def _script(self, name: str) -> loader.Script:
        return loader.load(name, shebang=self._shebang is not False)

    async def _send_all(self) -> None:
        while self._waiting:
            batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), MAX_BATCH))]
            replies: list[Reply]
            try:
                replies = await self._exchange([command for command, _ in batch])
            except Exception as error:
                # Whatever it was: a future that nobody answers would stop its caller for ever.
                replies = [translate(error)] * len(batch)
            for (_, future), reply in zip(batch, replies, strict=True):
                if future.done():
                    continue
                if isinstance(reply, Exception):
                    future.set_exception(reply if isinstance(reply, StoreError) else translate(reply))
                else:
                    future.set_result(reply)

    async def _exchange(self, commands: Sequence[Command]) -> list[Reply]:
        if self._shebang is None:
            await self.prepare()
        replies = await self._round_trip(commands)
        for is_missing, heal in (
            (script_is_missing, self._load_scripts),
            (group_is_missing, self._create_group),
        ):
            again = [
                i for i, reply in enumerate(replies) if isinstance(reply, Exception) and is_missing(reply)
            ]
            if again:
                await heal()
                for i, reply in zip(again, await self._round_trip([commands[i] for i in again]), strict=True):
                    replies[i] = reply
        return replies

    async def _round_trip(self, commands: Sequence[Command]) -> list[Reply]:
        sent = [self._by_sha(command) for command in commands]
        if self._barrier is None:
            return await self._wire.exchange(sent)
        return self._past_barrier(self._barrier, await self._wire.exchange([*sent, self._barrier]))

    def _by_sha(self, command: Command) -> Command:
        if command[0] != "EVALSHA":
            return command
        return ("EVALSHA", self._script(str(command[1])).sha, *command[2:])

    def _past_barrier(self, barrier: Command, replies: list[Reply]) -> list[Reply]:
        reached = replies.pop()
        if isinstance(reached, Exception):
            raise reached
        got = cast(list[int], reached if isinstance(reached, list) else [reached])
        wanted = [int(n) for n in barrier[1 : 1 + len(got)]]
        if all(have >= want for have, want in zip(got, wanted, strict=True)):
            return replies
        return [StoreUnavailable("The store could not make the job durable in time.")] * len(replies)

    async def _create_group(self) -> None:
        log.warning("consumer group is missing, creating it", extra={"namespace": self._namespace})
        group = self._script("group")
        await self._wire.call("EVAL", group.source, 1, self._namespace)


def check_version(version: str) -> None:
    """Raises StoreRefused for a server older than 7.0, whose scripts know no flags (P10)."""
    if int(version.split(".", 1)[0]) < 7:
        raise StoreRefused(f"Redis {version} is too old: 7.0 or newer is needed.")
