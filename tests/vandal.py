"""Somebody else with access to the server: damage that the store must notice and repair."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Any, cast

from redis.asyncio import Redis

from common.redis_store.keys import GROUP, Keys
from tests.keyspace import command


class Vandal:
    def __init__(self, raw: Redis, namespace: str) -> None:
        self.raw = raw
        self.keys = Keys(namespace)

    async def live_entry(self, job_id: str) -> str:
        """Id of the entry that the record names."""
        record = self.keys.record(job_id)
        entry = await cast("Awaitable[str | None]", self.raw.hget(record, "entry"))
        assert entry, f"job {job_id} has no entry"
        return entry

    async def delete_entry(self, job_id: str) -> None:
        """The request goes with it."""
        await self.raw.xdel(self.keys.jobs, await self.live_entry(job_id))

    async def pass_over_what_waits(self) -> None:
        """As when a group is made again at `$`: what is queued will not be delivered."""
        await self.raw.xgroup_setid(self.keys.jobs, GROUP, "$")

    async def acknowledge(self, job_id: str) -> None:
        """The entry stays in the stream and will not be delivered again."""
        await self.raw.xack(self.keys.jobs, GROUP, await self.live_entry(job_id))

    async def add_entry(self, fields: Mapping[str, Any]) -> str:
        return str(await self.raw.xadd(self.keys.jobs, cast("Any", fields)))

    async def copy_entry(self, job_id: str) -> str:
        """A second entry for the same job."""
        entry = await self.live_entry(job_id)
        found = cast("list[tuple[str, dict[str, str]]]", await self.raw.xrange(self.keys.jobs, entry, entry))
        return await self.add_entry(found[0][1])

    async def make_unreadable(self, job_id: str) -> None:
        """The job's request, as after damage or by another version."""
        await self.delete_entry(job_id)
        entry = await self.add_entry({"job_id": job_id, "attempt": "1", "request": "{not json"})
        await self.raw.hset(self.keys.record(job_id), "entry", entry)  # pyright: ignore[reportGeneralTypeIssues]

    async def deliver(self, consumer: str, count: int = 1) -> list[str]:
        """Entries read for this consumer and begun by nobody."""
        reply = await command(
            self.raw, "XREADGROUP", "GROUP", GROUP, consumer, "COUNT", count, "STREAMS", self.keys.jobs, ">"
        )
        return [entry for _, entries in reply for entry, _ in entries]

    async def make_wrong_type(self, key: str) -> None:
        await self.raw.delete(key)
        await self.raw.lpush(key, "not", "ours")
