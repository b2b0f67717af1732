"""A primary and its replica, reached by clients through an address that stays over a failover."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from tests.disasters.machine import Machine
from tests.keyspace import command
from tests.relay import Relay, relayed
from tests.waiting import wait_until


class Pair:
    def __init__(self, primary: Machine, replica: Machine, front: Relay, link: Relay) -> None:
        self.primary = primary
        self.replica = replica
        #: The clients' address.
        self.front = front
        #: What lies between the replica and its primary.
        self.link = link

    async def follow(self, leader: Machine, port: int, follower: Machine) -> None:
        """Through this port. Returns once the follower has all, and the leader knows."""
        await follower.tell("REPLICAOF", "127.0.0.1", port)

        async def linked() -> bool:
            return await follower.info("master_link_status") == "up"

        await wait_until(linked, timeout=10)
        await self.in_step(leader)

    async def in_step(self, leader: Machine) -> None:
        """Until its replica has all that was written so far."""
        raw = leader.connect()
        await command(raw, "SET", "in-step", 1, "PX", 1)
        assert await command(raw, "WAIT", 1, 5000) == 1
        await raw.aclose()

    def part(self) -> None:
        """The replica hears nothing more, and the primary goes on."""
        self.link.part()

    async def promote(self) -> None:
        await self.replica.tell("REPLICAOF", "NO", "ONE")

    async def swap(self) -> None:
        """Primary and replica change places, and lose nothing: as an operator does it."""
        await self.primary.tell("FAILOVER", "TIMEOUT", 5000)

        async def swapped() -> bool:
            roles = [await machine.info("role") for machine in (self.primary, self.replica)]
            return roles == ["slave", "master"]

        await wait_until(swapped, timeout=10)

    async def fail_over(self) -> None:
        """The replica takes over with what it has. Its primary is gone for good."""
        await self.promote()
        self.front.lead_to(self.replica.port)
        self.front.cut()
        self.primary.kill()


@asynccontextmanager
async def paired(primary: Machine, replica: Machine) -> AsyncGenerator[Pair]:
    """Both run; the replica follows."""
    async with relayed(primary.port) as front, relayed(primary.port) as link:
        pair = Pair(primary, replica, front, link)
        for machine in (primary, replica):
            # By default a primary waits five seconds for more replicas before it sends its data.
            await machine.tell("CONFIG", "SET", "repl-diskless-sync-delay", 0)
        await pair.follow(primary, link.port, replica)
        yield pair
