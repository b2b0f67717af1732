"""A namespace seen from outside: what is in it, and what in it leaks."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Protocol, cast

from redis.asyncio import Redis

from common.redis_store.wire import Argument
from tests.servers import Server

#: What tells a time that every call moves on: leases renewed, workers and leaders seen.
MOVING = {"lease", "seen", "leads_until", "updated"}

#: (type, contents, whether it has a TTL) by key.
Dump = dict[str, tuple[str, object, bool]]


class _Commands(Protocol):
    def execute_command(self, *words: Argument) -> Awaitable[Any]: ...


async def command(raw: Redis, *words: Argument) -> Any:
    """One command, for those whose annotations in the library are partly unknown."""
    return await cast(_Commands, raw).execute_command(*words)


async def keys_of(raw: Redis, namespace: str) -> list[str]:
    """Every key of the namespace, by name."""
    pattern = "".join(f"[{char}]" if char in "*?[]" else char for char in namespace) + ":*"
    found: set[str] = set()
    cursor = -1
    while cursor:
        cursor, page = await command(raw, "SCAN", max(cursor, 0), "MATCH", pattern, "COUNT", 1000)
        found.update(str(key) for key in page)
    return sorted(found)


async def dump(raw: Redis, namespace: str) -> Dump:
    """The whole namespace without what moves by itself; of a TTL, only whether there is one."""
    return {key: await _look(raw, key) for key in await keys_of(raw, namespace)}


async def clear(server: Server, namespace: str) -> None:
    """Keeps a shared server small, so that walking over its keys stays quick."""
    raw = server.connect(decode_responses=True)
    keys = await keys_of(raw, namespace)
    if keys:
        await raw.delete(*keys)
    await raw.aclose()


async def leaks(raw: Redis, namespace: str, permanent: frozenset[str]) -> list[str]:
    """Keys that break promise P7: no TTL, not on the permanent list, and of no live job."""
    live = {key.rsplit(":", 1)[1] for key in await keys_of(raw, f"{namespace}:job")}
    suspects = [key for key in await keys_of(raw, namespace) if key not in permanent]
    return [
        key
        for key in suspects
        if await raw.ttl(key) == -1 and not await _belongs_to(raw, key, live, f"{namespace}:idem:")
    ]


async def _belongs_to(raw: Redis, key: str, live: set[str], idempotency: str) -> bool:
    if key.startswith(idempotency):
        held = str(await raw.get(key))
        return any(job_id in held for job_id in live)
    return any(job_id in key for job_id in live)


async def _look(raw: Redis, key: str) -> tuple[str, object, bool]:
    kind = str(await raw.type(key))
    return kind, await _contents(raw, key, kind), await raw.ttl(key) >= 0


async def _contents(raw: Redis, key: str, kind: str) -> object:
    match kind:
        case "string":
            return await raw.get(key)
        case "hash":
            fields = await cast("Awaitable[dict[str, str]]", raw.hgetall(key))
            return {name: value for name, value in fields.items() if name not in MOVING}
        case "zset" if key.endswith(":workers"):
            return await command(raw, "ZRANGE", key, 0, -1)
        case "zset":
            return await command(raw, "ZRANGE", key, 0, -1, "WITHSCORES")
        case "set":
            return sorted(await cast("Awaitable[set[str]]", raw.smembers(key)))
        case "list":
            return await cast("Awaitable[list[str]]", raw.lrange(key, 0, -1))
        case "stream":
            return await _stream(raw, key)
        case _:
            return None


async def _stream(raw: Redis, key: str) -> object:
    """Entries, and of each group who holds which entry (not when: that moves by itself)."""
    entries = await raw.xrange(key)
    groups = await raw.xinfo_groups(key)
    pending = {
        group["name"]: [
            (row["message_id"], row["consumer"])
            for row in await raw.xpending_range(key, group["name"], "-", "+", 10_000)
        ]
        for group in groups
    }
    return entries, pending
