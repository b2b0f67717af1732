"""Several processes in one: store objects that share a namespace and nothing else."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, cast

from common.errors import LabError
from common.fleet import Presence
from common.redis_store.keys import Keys
from common.redis_store.store import RedisStore
from common.redis_store.wire import Client, Wire, dial
from common.settings import Settings
from common.store import Store
from tests.instant import wrong_now
from tests.keyspace import leaks
from tests.servers import Server
from tests.twice import TwiceWire
from tests.workers import Worker


class Processes:
    """Opens stores and hires workers on one namespace of one server."""

    def __init__(
        self, server: Server, namespace: str, overrides: dict[str, Any], *, sent_twice: bool = False
    ) -> None:
        """`sent_twice`: every script reaches the server twice."""
        self._server = server
        self._sent_twice = sent_twice
        self._overrides = overrides
        self._stores: list[Store] = []
        self.namespace = namespace

    def settings(self, **overrides: Any) -> Settings:
        values = {"redis_url": self._server.url, "namespace": self.namespace}
        return Settings.model_validate(values | self._overrides | overrides)

    async def open(self, **overrides: Any) -> Store:
        """A started store."""
        wire = TwiceWire if self._sent_twice else Wire
        store = RedisStore(self.settings(**overrides), connect=self.connect, wire=wire)
        self._stores.append(store)
        await store.start()
        return store

    async def hire(self, instance: str = "", *, worker_id: str | None = None, **overrides: Any) -> Worker:
        """A worker with a seat. Without an instance it is one that was never seen before."""
        instance = instance or f"instance-{len(self._stores)}"
        store = await self.open(instance=instance, **overrides)
        return await Worker.seated(store, Presence(instance=instance, worker_id=worker_id))

    def connect(self) -> Client:
        """A connection as the stores use it."""
        # A real server is dialled as in production; fakeredis has no address.
        server = self._server
        return dial(server.url) if server.real else cast(Client, server.connect())

    async def assert_promises_kept(self) -> None:
        """P1, P2, P5 and P7, as they must hold after anything that is not vandalism."""
        if not self._stores:
            return
        backlog = await self._stores[0].depth()
        raw = self._server.connect(decode_responses=True)
        try:
            leaked = await leaks(raw, self.namespace, Keys(self.namespace).permanent)
            wrong = await wrong_now(raw, self.namespace)
        finally:
            await raw.aclose()
        assert not wrong, f"promise P1, P2, P5 or P7 is broken: {wrong}"
        assert not leaked, f"promise P7 is broken: {leaked}"
        assert backlog.unaccounted == 0, f"promise P1 is broken: {backlog}"

    async def close(self) -> None:
        for store in self._stores:
            with suppress(LabError):
                await store.aclose()
