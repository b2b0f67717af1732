"""RedisStore: the port on Redis Streams. Gateway, worker and fleet parts are in files of their own."""

from __future__ import annotations

import asyncio
import logging
import secrets

from redis import exceptions

from common.errors import StoreCorrupt, StoreDenied, StoreRefused
from common.redis_store.calls import Calls
from common.redis_store.claims import Claims
from common.redis_store.fleet import FleetPart, Reconciler
from common.redis_store.gateway import READS_AT_ONCE, GatewayPart
from common.redis_store.keys import Keys
from common.redis_store.scripts import Keep, Scripts
from common.redis_store.translate import translate
from common.redis_store.waiters import Waiters
from common.redis_store.wire import Command, Connect, Wire, dial
from common.redis_store.worker import WorkerPart
from common.settings import Durability, Settings

log = logging.getLogger(__name__)

#: How long a submit waits for the disk or a replica.
DURABLE_WITHIN_MS = 3000
#: Redis before this, and Valkey, which calls itself Redis 7.2: WAITAOF answers before `everysec` has synced
#: (github.com/redis/redis/pull/13793).
WAITS_FOR_EVERYSEC = 8


class RedisStore(GatewayPart, WorkerPart, FleetPart):
    """`connect` makes a client: tests give one that needs no server. `wire` is theirs to replace as well."""

    def __init__(self, settings: Settings, connect: Connect | None = None, wire: type[Wire] = Wire) -> None:
        self._settings = settings
        connect = connect or (lambda: dial(settings.redis_url))
        self._process = secrets.token_hex(8)
        self._keys = Keys(settings.namespace)
        idempotency_ms = round(settings.idempotency_ttl.total_seconds() * 1000)
        keep = Keep(settings.result_ttl_s * 1000, idempotency_ms, settings.dlq_maxlen)
        self._calls = Calls(wire(connect, resend=True), settings.namespace)
        self._scripts = Scripts(self._calls, keep)
        self._durable_calls = self._calls
        if barrier := _barrier(settings.durability):
            self._durable_calls = Calls(wire(connect, resend=True), settings.namespace, barrier)
        self._durable = Scripts(self._durable_calls, keep)
        self._waiters = Waiters(connect, self._keys, self._scripts)
        self._reading = asyncio.Semaphore(READS_AT_ONCE)
        self._claims = Claims(connect, self._keys, self._calls, self._scripts, settings, self._process)
        self._reconciler = Reconciler(self._keys, self._calls, self._scripts, settings, self._process)

    async def start(self) -> None:
        try:
            if await self._calls.prepare():
                await self._check_server()
        except (exceptions.RedisError, OSError) as error:
            if "DB index" in str(error):
                raise StoreRefused(f"IWL_REDIS_URL: the server has no such database: {error}") from error
            raise translate(error) from error
        await self._calls.run("group")

    async def ping(self) -> None:
        # A server that cannot write refuses a PING; one whose counts are broken does not.
        await asyncio.gather(self._calls.start("PING"), self.depth())

    async def aclose(self) -> None:
        await self._waiters.aclose()
        await self._claims.aclose()
        for calls in {self._calls, self._durable_calls}:
            await calls.aclose()

    async def _check_server(self) -> None:
        info = _parse_info(await self._calls.start("INFO"))
        check_version(info["redis_version"])
        policy = info.get("maxmemory_policy", "noeviction")
        if policy != "noeviction":
            raise StoreRefused(
                f"The server's maxmemory-policy is {policy}: it would evict jobs. Use noeviction."
            )
        if self._settings.durability is Durability.AOF:
            await self._check_aof(info)

    async def _check_aof(self, info: dict[str, str]) -> None:
        try:
            await self._calls.start("WAITAOF", 0, 0, 1)
        except (StoreCorrupt, StoreDenied) as error:
            raise StoreRefused("IWL_DURABILITY=aof needs WAITAOF: Redis 7.2 or newer.") from error
        if info.get("aof_enabled") != "1":
            raise StoreRefused("IWL_DURABILITY=aof needs a server with appendonly yes.")
        if _major(info["redis_version"]) < WAITS_FOR_EVERYSEC and not await self._syncs_always():
            raise StoreRefused(
                "IWL_DURABILITY=aof needs appendfsync always on this server: only Redis 8 waits for everysec."
            )

    async def _syncs_always(self) -> bool:
        try:
            return await self._calls.start("CONFIG", "GET", "appendfsync") == [b"appendfsync", b"always"]
        except (StoreCorrupt, StoreDenied):
            return False


def check_version(version: str) -> None:
    """Raises StoreRefused for a server older than 7.0, whose scripts know no flags (P10)."""
    if _major(version) < 7:
        raise StoreRefused(f"Redis {version} is too old: 7.0 or newer is needed.")


def _major(version: str) -> int:
    return int(version.split(".", 1)[0])


def _parse_info(raw: bytes) -> dict[str, str]:
    lines = (line.partition(":") for line in raw.decode().splitlines())
    return {name: value for name, _, value in lines}


def _barrier(durability: Durability) -> Command | None:
    match durability:
        case Durability.SERVER:
            return None
        case Durability.AOF:
            return ("WAITAOF", 1, 0, DURABLE_WITHIN_MS)
        case Durability.REPLICA:
            return ("WAIT", 1, DURABLE_WITHIN_MS)
