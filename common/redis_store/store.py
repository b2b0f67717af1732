"""RedisStore: the port on Redis Streams. Gateway, worker and fleet parts are in files of their own."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable

from redis import exceptions

from common.errors import StoreRefused
from common.redis_store import wire
from common.redis_store.calls import Calls, check_version, translate
from common.redis_store.claims import Claims
from common.redis_store.fleet import FleetPart, Reconciler
from common.redis_store.gateway import GatewayPart
from common.redis_store.keys import Keys
from common.redis_store.scripts import Keep, Scripts
from common.redis_store.waiters import Waiters
from common.redis_store.wire import Client, Command
from common.redis_store.worker import WorkerPart
from common.settings import Durability, Settings

log = logging.getLogger(__name__)

#: Milliseconds that a submit waits for the disk or a replica.
DURABLE_WITHIN = 3000


class RedisStore(GatewayPart, WorkerPart, FleetPart):
    """`connect` makes a client; tests give one that needs no server."""

    def __init__(self, settings: Settings, connect: Callable[[], Client] | None = None) -> None:
        self._settings = settings
        self._connect = lambda: wire.raw(connect() if connect else wire.connect(settings.redis_url))
        self._process = secrets.token_hex(4)
        self._keys = Keys(settings.namespace)
        self._client = self._connect()
        self._calls = Calls(self._client, settings.namespace)
        keep = Keep(settings.result_ttl_s * 1000, settings.idempotency_ttl_s * 1000, settings.dlq_maxlen)
        self._scripts = Scripts(self._calls, keep)
        barrier = _barrier(settings.durability)
        self._durable_client = self._connect() if barrier else self._client
        self._durable_calls = (
            Calls(self._durable_client, settings.namespace, barrier) if barrier else self._calls
        )
        self._durable = Scripts(self._durable_calls, keep)
        self._waiters = Waiters(self._connect, self._keys, self._scripts)
        self._claims = Claims(self._connect, self._keys, self._calls, self._scripts, settings, self._process)
        self._reconciler = Reconciler(self._keys, self._calls, self._scripts, settings, self._process)

    async def start(self) -> None:
        try:
            if await self._calls.prepare():
                await self._check_server()
        except (exceptions.RedisError, OSError) as error:
            raise translate(error) from error
        await self._calls.run("group")

    async def ping(self) -> None:
        await self._calls.start("PING")

    async def aclose(self) -> None:
        await self._waiters.aclose()
        await self._claims.aclose()
        for calls in {self._calls, self._durable_calls}:
            await calls.aclose()
        for client in {self._client, self._durable_client}:
            await client.aclose()

    async def _check_server(self) -> None:
        info = _parse_info(await self._client.execute_command("INFO"))
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
            await self._client.execute_command("WAITAOF", 0, 0, 1)
        except exceptions.ResponseError as error:
            raise StoreRefused("IWL_DURABILITY=aof needs WAITAOF: Redis 7.2 or newer.") from error
        if info.get("aof_enabled") != "1":
            raise StoreRefused("IWL_DURABILITY=aof needs a server with appendonly yes.")


def _parse_info(raw: bytes) -> dict[str, str]:
    lines = (line.partition(":") for line in raw.decode().splitlines())
    return {name: value for name, _, value in lines}


def _barrier(durability: Durability) -> Command | None:
    match durability:
        case Durability.SERVER:
            return None
        case Durability.AOF:
            return ("WAITAOF", 1, 0, DURABLE_WITHIN)
        case Durability.REPLICA:
            return ("WAIT", 1, DURABLE_WITHIN)
