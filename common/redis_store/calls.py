"""One connection for all short commands: what is issued while a round trip is under way shares the next one.

A caller that is cancelled does not cancel the command: a reply left on the wire would be read by the next
one. A command may be sent twice, when its reply was lost: promise P4. What waits while a round trip gets no
answer fails with it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import cast

from redis import exceptions

from common.errors import NotDurable, StoreError, StoreUnavailable
from common.redis_store import loader
from common.redis_store.keys import Keys
from common.redis_store.translate import group_is_missing, script_is_missing, translate
from common.redis_store.wire import Argument, Command, Overdue, Reply, Wire

log = logging.getLogger(__name__)

#: Commands and bytes in one round trip; more only make the replies wait for each other.
MAX_BATCH = 256
MAX_BATCH_BYTES = 4 << 20


class Calls:
    """Runs commands and scripts, loads scripts that the server lost, creates the group when it is gone."""

    def __init__(self, wire: Wire, namespace: str, barrier: Command | None = None) -> None:
        """`barrier` is a WAIT or WAITAOF command sent after each batch; its reply must reach its numbers.

        As one takes until the next sync, a batch before a barrier has no limit but its bytes."""
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

    async def transaction(self, *commands: Command) -> None:
        """All of them in one go. Raises as `run`."""
        try:
            replies = await self._wire.exchange([("MULTI",), *commands, ("EXEC",)])
        except (exceptions.RedisError, OSError) as error:
            raise translate(error) from error
        for reply in replies:
            if isinstance(reply, Exception):
                raise translate(reply) from reply

    async def create_group(self) -> None:
        """When it was found missing."""
        self._note(await self.run("group"))

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
            batch = self._next_batch()
            replies: list[Reply]
            try:
                replies = await self._exchange([command for command, _ in batch])
            except Exception as error:
                # Whatever it was: a future that nobody answers would stop its caller for ever.
                if isinstance(error, Overdue):
                    # Tried as well, each batch would take as long, and the last would wait for all of them.
                    batch += self._waiting
                    self._waiting.clear()
                replies = [translate(error)] * len(batch)
            for (_, future), reply in zip(batch, replies, strict=True):
                if future.done():
                    continue
                if isinstance(reply, Exception):
                    future.set_exception(reply if isinstance(reply, StoreError) else translate(reply))
                else:
                    future.set_result(reply)

    def _next_batch(self) -> list[tuple[Command, asyncio.Future[Reply]]]:
        batch = [self._waiting.popleft()]
        size = _weight(batch[0][0])
        while self._waiting and (self._barrier is not None or len(batch) < MAX_BATCH):
            size += _weight(self._waiting[0][0])
            if size > MAX_BATCH_BYTES:
                break
            batch.append(self._waiting.popleft())
        return batch

    async def _exchange(self, commands: Sequence[Command]) -> list[Reply]:
        if self._shebang is None:
            await self.prepare()
        replies = await self._round_trip(commands)
        for is_missing, heal in (
            (script_is_missing, self._load_scripts),
            (group_is_missing, self._heal_group),
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
        # A replay writes nothing, and a barrier waits for its own connection's writes only: so write.
        mark = ("SET", Keys(self._namespace).barrier, "1", "PX", 1000)
        *replies, _, reached = await self._wire.exchange([*sent, mark, self._barrier])
        return self._past_barrier(self._barrier, replies, reached)

    def _by_sha(self, command: Command) -> Command:
        if command[0] != "EVALSHA":
            return command
        return ("EVALSHA", self._script(str(command[1])).sha, *command[2:])

    def _past_barrier(self, barrier: Command, replies: list[Reply], reached: Reply) -> list[Reply]:
        if not isinstance(reached, Exception):
            got = cast(list[int], reached if isinstance(reached, list) else [reached])
            wanted = [int(n) for n in barrier[1 : 1 + len(got)]]
            if all(have >= want for have, want in zip(got, wanted, strict=True)):
                return replies
        # A replica refuses to wait as well, and what it refused before says why.
        return [reply if isinstance(reply, Exception) else NotDurable() for reply in replies]

    async def _heal_group(self) -> None:
        self._note(await self._wire.call("EVAL", self._script("group").source, 1, self._namespace))

    def _note(self, answer: Reply) -> None:
        # Of all who found it missing one created it: one line for each time, and the only trace of a flush.
        if answer == b"created":
            log.warning("consumer group was missing, created it", extra={"namespace": self._namespace})


def _weight(command: Command) -> int:
    return sum(len(part) for part in command if isinstance(part, (str, bytes)))
