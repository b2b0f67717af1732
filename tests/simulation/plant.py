"""The system under simulation: workers, scalers and gateways, each a process of its own."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

from prometheus_client import CollectorRegistry

from api.app import create_app
from api.server import GRACE_S
from common.errors import LabError, StoreUnavailable
from common.job import JobRequest
from common.redis_store.store import RedisStore
from common.redis_store.wire import Client
from common.settings import Settings
from common.telemetry import WorkerMetrics
from scaler.gauges import Gauges
from scaler.loop import Scaler
from tests.simulation.http import Door
from tests.simulation.links import SimulatedClient
from tests.simulation.network import Network, Node
from worker.backends.base import BrokenStream, Completion, Refused, Unreachable
from worker.loop import Worker


class Model:
    """A backend that obeys `params.sim` of the request: seconds, and how its first attempts fail."""

    def __init__(self, die: Callable[[], None]) -> None:
        self._die = die

    async def generate(self, request: JobRequest, attempt: int) -> AsyncGenerator[str | Completion, None]:
        orders = cast(dict[str, Any], request.params["sim"])
        await asyncio.sleep(orders["seconds"])
        if attempt <= orders["times"]:
            await self._fail(orders["how"])
        yield f"{request.prompt}/"
        await asyncio.sleep(orders["seconds"] / 4)
        yield str(attempt)
        yield Completion(finish_reason="stop")

    async def _fail(self, how: str) -> None:
        match how:
            case "permanent":
                raise Refused(400, "no")
            case "unreachable":
                raise Unreachable
            case "hang":
                await asyncio.get_running_loop().create_future()
            case "crash":
                self._die()
                await asyncio.sleep(0)
            case _:
                raise BrokenStream("broken")

    async def ready(self) -> bool:
        return True

    async def aclose(self) -> None:
        pass


def _unheard() -> None:
    """A process that has not set up its signals yet."""


@dataclass
class Running:
    """A process that a supervisor would look after."""

    node: Node
    kind: str
    instance: str
    #: SIGTERM.
    leave: Callable[[], None] = _unheard


class Plant:
    def __init__(
        self,
        network: Network,
        settings: dict[str, Any],
        chance: random.Random,
    ) -> None:
        self._network = network
        self._settings = settings
        self._chance = chance
        self._started = 0
        self.running: list[Running] = []
        self._doors: list[Door] = []
        #: Nobody starts anything again.
        self.closed = False
        #: What no process may die of.
        self.broken: list[BaseException] = []

    def settings(self, instance: str) -> Settings:
        return Settings.model_validate(self._settings | {"instance": instance})

    def store(self, node: Node, instance: str = "client") -> RedisStore:
        def connect() -> Client:
            return cast(Client, SimulatedClient(node))

        return RedisStore(self.settings(instance), connect=connect)

    def node(self, kind: str, *, sheltered: bool = False) -> Node:
        self._started += 1
        return Node(self._network, f"{kind}-{self._started}", sheltered=sheltered)

    def doors(self) -> list[Door]:
        """Of all gateways that were not killed, also of one that is paused or was replaced."""
        return [door for door in self._doors if not door.node.dead]

    # ---- start and end

    def start(self, kind: str, instance: str) -> Running:
        running = Running(self.node(kind), kind, instance)
        self.running.append(running)
        running.node.spawn(self._live(running))
        return running

    def kill(self, running: Running, *, after: float, same: bool = True) -> None:
        """SIGKILL, and a new process some seconds later."""
        if running in self.running:
            self.running.remove(running)
            running.node.kill()
            instance = running.instance if same else f"{running.instance}x"
            self._network.later(after, lambda: self._again(running.kind, instance))

    def replace(self, running: Running, *, after: float) -> None:
        """Nobody hears from it: its instance is started again somewhere else. It may come back."""
        if running in self.running:
            self.running.remove(running)
            self._network.later(after, lambda: self._again(running.kind, running.instance))

    def _again(self, kind: str, instance: str) -> None:
        if not self.closed:
            self.start(kind, instance)

    async def _live(self, running: Running) -> None:
        does = {"worker": self._work, "scaler": self._scale, "gateway": self._serve}[running.kind]
        try:
            await does(running)
        except Exception as error:
            self.broken.append(error)
        else:
            self.kill(running, after=1.0)

    async def _work(self, running: Running) -> None:
        store = self.store(running.node, running.instance)

        def die() -> None:
            self.kill(running, after=self._chance.random() * 5)

        metrics = WorkerMetrics(CollectorRegistry())
        worker = Worker(self.settings(running.instance), store, Model(die), metrics)
        running.leave = worker.drain
        with suppress(LabError):
            await worker.run()

    async def _scale(self, running: Running) -> None:
        store = self.store(running.node, running.instance)
        while True:
            with suppress(StoreUnavailable):
                await store.start()
                break
            await asyncio.sleep(0.5)
        scaler = Scaler(store, self.settings(running.instance), Gauges(CollectorRegistry()))
        stop = asyncio.Event()
        running.leave = stop.set
        await scaler.run(stop)
        await store.aclose()

    async def _serve(self, running: Running) -> None:
        store = self.store(running.node)
        app = create_app(store, self.settings(running.instance))
        door = Door(running.node, app, self.broken)
        self._doors.append(door)
        closing: asyncio.Event = app.state.gateway.closing
        running.leave = closing.set
        async with app.router.lifespan_context(app):
            await closing.wait()
            with suppress(TimeoutError):
                async with asyncio.timeout(GRACE_S):
                    await door.close()
        await store.aclose()
