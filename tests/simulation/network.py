"""Processes and what lies between them and the server: latency, resets, lost replies, partitions."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from tests.simulation.clock import PROCESS, Process, VirtualLoop
from tests.simulation.server import SimulatedServer
from tests.simulation.weather import CALM, Fate

if TYPE_CHECKING:
    from tests.simulation.links import Link


class Node(Process):
    """A process with its tasks and connections."""

    def __init__(self, network: Network, name: str, *, sheltered: bool = False) -> None:
        super().__init__(name)
        self.network = network
        #: No faults of the network for this one.
        self.sheltered = sheltered
        self.cut = False
        self.links: list[Link] = []
        #: Pipes of connections that are over, with messages still on their way.
        self.stragglers: list[Pipe] = []
        self.on_kill: Callable[[], None] = _unnoticed
        self._context = copy_context()
        self._context.run(PROCESS.set, self)
        network.nodes.append(self)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        return self.network.loop.create_task(work, context=self._context.copy())

    def kill(self) -> None:
        """SIGKILL. What it had sent is on its way."""
        self.dead = True
        for link in list(self.links):
            link.hang_up()
        self.on_kill()

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        if self.paused and not self.dead:
            self.network.loop.resume(self)

    def part(self) -> None:
        self.cut = True

    def heal(self) -> None:
        self.cut = False
        for link in list(self.links):
            link.flow()
        for pipe in self.stragglers:
            pipe.flow()


class Network:
    def __init__(self, loop: VirtualLoop, server: SimulatedServer, chance: random.Random) -> None:
        self.loop = loop
        self.server = server
        self.chance = chance
        self.weather = CALM
        #: Not any process's: packets travel on when their sender is dead.
        self.context = copy_context()
        self.nodes: list[Node] = []

    def delay(self, node: Node) -> float:
        if node.sheltered:
            return 0.0
        if self.chance.random() < self.weather.slow:
            return self.chance.random() * self.weather.stall
        return self.weather.latency * (0.5 + self.chance.random())

    def fate(self, node: Node) -> Fate:
        """Of a request to the node or from it."""
        return (CALM if node.sheltered else self.weather).fate(self.chance.random())

    def lateness(self) -> float:
        """Seconds, of a request that comes late."""
        return self.chance.random() * 5

    def later(self, seconds: float, what: Callable[[], None]) -> None:
        self.loop.call_later(seconds, what, context=self.context)

    def restart_server(self, seconds: float, restore: object = None) -> None:
        self.server.stop()
        for node in self.nodes:
            for link in list(node.links):
                # Whoever is cut off does not hear of it.
                if not node.cut:
                    link.broken()
        if restore is not None:
            self.server.restore(restore)
        self.later(seconds, self.server.start)


class Pipe:
    """One direction of a connection: in order, each message some time after it was sent."""

    def __init__(self, node: Node, deliver: Callable[[Any], None]) -> None:
        self._node = node
        self._deliver = deliver
        self._on_the_way: deque[Any] = deque()
        self._arrived = 0

    def send(self, message: Any, extra: float = 0.0) -> None:
        self._on_the_way.append(message)
        self._node.network.later(self._node.network.delay(self._node) + extra, self._arrive)

    def _arrive(self) -> None:
        self._arrived += 1
        self.flow()

    @property
    def pending(self) -> bool:
        return bool(self._on_the_way)

    def flow(self) -> None:
        """Hands over what has arrived; a partition keeps it back."""
        while self._arrived and self._on_the_way and not self._node.cut:
            self._arrived -= 1
            self._deliver(self._on_the_way.popleft())


def _unnoticed() -> None:
    pass
