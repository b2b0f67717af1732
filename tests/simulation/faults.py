"""What goes wrong, and when: drawn from the seed."""

from __future__ import annotations

import asyncio
import random

from tests.simulation.network import Network, Node
from tests.simulation.plant import Plant, Running
from tests.simulation.weather import CALM, Weather
from tests.simulation.witness import Witness


class Faults:
    def __init__(self, network: Network, plant: Plant, witness: Witness, chance: random.Random) -> None:
        self._network = network
        self._plant = plant
        self._witness = witness
        self._chance = chance
        self._failovers = chance.random() < 0.4
        #: Seconds between two of them.
        self.every = chance.choice([0.7, 2.0, 5.0])
        #: Which kind of process they befall; "" is any.
        self.kind = ""
        self.count: dict[str, int] = {}
        self.calm = False

    async def run(self) -> None:
        """Until cancelled."""
        self.weather()
        while True:
            await asyncio.sleep(self._chance.expovariate(1 / self.every))
            kinds = [
                self.kill,
                self.kill,
                self.pause,
                self.pause,
                self.zombie,
                self.zombie,
                self.drain,
                self.part,
                self.restart,
            ]
            kinds += [self.weather, self.weather, *([self.fail_over] if self._failovers else [])]
            kind = self._chance.choice(kinds)
            self.count[kind.__name__] = self.count.get(kind.__name__, 0) + 1
            kind()

    def _seconds(self, *choices: float) -> float:
        return self._chance.choice(choices) * self._chance.random()

    def _one(self) -> Running | None:
        among = [running for running in self._plant.running if running.kind.startswith(self.kind)]
        return self._chance.choice(among) if among else None

    def _later(self, seconds: float, node: Node) -> None:
        def well() -> None:
            node.resume()
            node.heal()

        self._network.later(seconds, well)

    # ---- kinds

    def kill(self) -> None:
        if running := self._one():
            self._plant.kill(running, after=self._seconds(0.1, 5, 40), same=self._chance.random() < 0.7)

    def pause(self) -> None:
        if running := self._one():
            running.node.pause()
            self._later(self._seconds(2, 5, 10, 60), running.node)

    def zombie(self) -> None:
        """Paused or cut off, replaced under its own name, and back again."""
        if running := self._one():
            if self._chance.random() < 0.5:
                running.node.pause()
            else:
                running.node.part()
            self._plant.replace(running, after=self._seconds(0.1, 20))
            self._later(self._seconds(5, 10, 60), running.node)

    def drain(self) -> None:
        if (running := self._one()) and not running.node.paused:
            running.leave()

    def part(self) -> None:
        if running := self._one():
            running.node.part()
            self._later(self._seconds(1, 10, 60), running.node)

    def weather(self) -> None:
        bad = self._chance.choice([0.01, 0.05, 0.2])
        self._network.weather = Weather(
            latency=self._chance.choice([0.0005, 0.002, 0.05, 0.4]),
            slow=self._chance.choice([0.0, 0.0, 0.01]),
            lost_request=bad * self._chance.random(),
            lost_reply=bad * self._chance.random(),
            late_request=bad * self._chance.random(),
        )

    def restart(self) -> None:
        if self._network.server.up:
            self._network.restart_server(self._seconds(0.2, 10))

    def fail_over(self) -> None:
        """Another server takes over, without the last second."""
        server = self._network.server
        snapshot, since_ms = server.snapshot(), self._network.loop.clock.unix_ms

        def over() -> None:
            if server.up and not self.calm:
                self._network.restart_server(self._seconds(0.2, 5), snapshot)
                self._witness.lost(since_ms, self._network.loop.clock.unix_ms)

        self._network.later(self._chance.random(), over)

    def end(self) -> None:
        """Everybody is well again."""
        self.calm = True
        self._network.weather = CALM
        for node in self._network.nodes:
            if not node.dead:
                node.resume()
                node.heal()
