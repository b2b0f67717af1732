"""Reading deliveries, on a connection of its own: a read for new ones blocks."""

from __future__ import annotations

from typing import Any

from redis.exceptions import RedisError

from common.redis_store.calls import Calls
from common.redis_store.keys import GROUP, Keys
from common.redis_store.translate import group_is_missing
from common.redis_store.wire import Argument, Command, Connect, Wire


class Reader:
    """Raises redis-py's errors and OSError; what a lost reply held is among the worker's own deliveries."""

    def __init__(self, connect: Connect, keys: Keys, calls: Calls) -> None:
        self._wire = Wire(connect, resend=False)
        self._keys = keys
        self._calls = calls
        self._client_id: int | None = None

    async def read(self, worker: str, after: str, limit: int, block_s: float = 0) -> list[Any]:
        """Entries: this worker's own ones after an id, or new ones (`after` is ">"), waited for."""
        blocking: Command = ("BLOCK", int(block_s * 1000)) if block_s >= 0.001 else ()
        read = ("XREADGROUP", "GROUP", GROUP, worker, "COUNT", limit, *blocking)
        reply = await self._ask(*read, "STREAMS", self._keys.jobs, after)
        return reply[0][1] if reply else []

    async def reclaim(self, worker: str, idle_ms: int, cursor: str, limit: int) -> tuple[str, list[Any]]:
        """The next cursor ("0-0" at the end) and entries that were idle too long, now this worker's."""
        reply = await self._ask("XAUTOCLAIM", self._keys.jobs, GROUP, worker, idle_ms, cursor, "COUNT", limit)
        return (reply[0].decode(), reply[1]) if reply else ("0-0", [])

    async def interrupt(self) -> None:
        """End a blocked read without losing what it may just have been given."""
        if self._client_id is not None:
            # With a write, to wait as writes do in a failover or CLIENT PAUSE: Redis 7.0 panics when it is to
            # unblock a read that is held up there as well (valkey-io/valkey#2117).
            write = ("DEL", self._keys.barrier)
            await self._calls.transaction(write, ("CLIENT", "UNBLOCK", self._client_id))

    async def aclose(self) -> None:
        await self._wire.aclose()

    async def _ask(self, *command: Argument) -> Any:
        """None when the group had to be made again."""
        try:
            if self._client_id is None:
                self._client_id = int(await self._wire.call("CLIENT", "ID"))
            return await self._wire.call(*command)
        except BaseException as error:
            # The next command may find another connection.
            self._client_id = None
            if not (isinstance(error, RedisError) and group_is_missing(error)):
                raise
        await self._calls.create_group()
        return None
