"""One simulation: a seed in, what happened out. The same seed is the same run."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast
from unittest.mock import patch

import fakeredis
from redis.asyncio import Redis

from common.errors import StoreError
from common.job import JobStatus
from common.redis_store.keys import Keys
from common.store import Store
from tests.api.keyring import line, write_keys
from tests.keyspace import leaks
from tests.simulation.clients import CALLERS, Clients, Surroundings
from tests.simulation.clock import Clock, VirtualLoop
from tests.simulation.faults import Faults
from tests.simulation.network import Network, Node
from tests.simulation.plant import Plant
from tests.simulation.server import SimulatedServer, unwatched
from tests.simulation.witness import View, Violation, Witness, expect, view

NAMESPACE = "sim"
#: How long things go wrong, in seconds.
SECONDS = 30.0
#: Seconds in which everything must have ended once the faults are over.
DRAINED_WITHIN = 1200.0


@dataclass(frozen=True, kw_only=True)
class Report:
    seed: int
    digest: str
    #: Seconds of virtual time.
    lasted: float
    commands: int
    jobs: int
    samples: int
    faults: dict[str, int]
    violation: str | None = None


def simulate(seed: int, *, seconds: float = SECONDS, harsh: bool = False) -> Report:
    """Never raises a violation: it is in the report.

    `harsh`: short leases, and a fault of some worker about twice a second."""
    with TemporaryDirectory() as folder, seeded(seed), unwatched():
        keys = write_keys(Path(folder) / "keys.jsonl", *map(line, CALLERS))
        return Simulation(seed, seconds, harsh, keys).run()


def replay_command(seed: int, seconds: float) -> str:
    return f'make simulate ARGS="--seed {seed} --seconds {seconds:g}"'


@contextmanager
def seeded(seed: int) -> Generator[None]:
    """Everything random in this process comes from the seed: ids, tokens, jitter."""
    state, entropy = random.getstate(), random.Random(f"entropy {seed}")
    random.seed(seed)
    with (
        patch.object(os, "urandom", entropy.randbytes),
        # The function that `secrets` draws from was imported by name.
        patch.object(random, "_urandom", entropy.randbytes),
    ):
        try:
            yield
        finally:
            random.setstate(state)


class Simulation:
    def __init__(self, seed: int, seconds: float, harsh: bool, keys: Path) -> None:
        self._seed = seed
        self._seconds = seconds
        chance = random.Random(seed)
        self._chance = chance
        self._clock = Clock()
        self._loop = VirtualLoop(self._clock)
        with self._clock.installed():
            self._server = SimulatedServer(self._loop)
        self._network = Network(self._loop, self._server, random.Random(f"network {seed}"))
        settings: dict[str, Any] = drawn_settings(chance) | {"api_keys_file": keys}
        if harsh:
            settings |= {"claim_idle_ms": 600, "worker_concurrency": 4}
        self._plant = Plant(self._network, settings, random.Random(f"plant {seed}"))
        self._witness = Witness(settings["max_attempts"])
        self._faults = Faults(self._network, self._plant, self._witness, random.Random(f"faults {seed}"))
        if harsh:
            self._faults.every, self._faults.kind = 0.5, "worker"
        chance = random.Random(f"clients {seed}")
        self._clients = Clients(Surroundings(self._plant.doors, self._witness, chance, self._clock))
        self._crashed: list[str] = []
        #: What goes wrong, and who comes, as long as that lasts.
        self._tasks: list[asyncio.Task[None]] = []
        self._loop.set_exception_handler(self._unhandled)

    def run(self) -> Report:
        violation: str | None = None
        try:
            self._loop.run(self._play())
        except Violation as broken:
            violation = str(broken)
        except Exception as error:
            violation = f"{type(error).__name__}: {error}"
        finally:
            self._loop.run(self._clear_up())
            self._loop.run(self._loop.shutdown_asyncgens())
            self._loop.close()
        return Report(
            seed=self._seed,
            digest=self._server.digest,
            lasted=self._clock.now,
            commands=self._server.commands,
            jobs=self._clients.sent,
            samples=self._witness.samples,
            faults=self._faults.count,
            violation=violation,
        )

    # ---- phases

    async def _play(self) -> None:
        for number in range(self._chance.randint(2, 4)):
            self._plant.start("worker", f"instance-{number}")
        for number in range(self._chance.randint(1, 2)):
            self._plant.start("scaler", f"scaler-{number}")
        for number in range(2):
            self._plant.start("gateway", f"gateway-{number}")
        observer = self._plant.node("witness", sheltered=True)
        store = self._plant.store(observer)
        works = (self._faults.run(), self._clients.run(self._chance.choice([0.5, 1.5, 4.0])))
        self._tasks = [asyncio.create_task(work) for work in works]
        while self._clock.now < self._seconds:
            await asyncio.sleep(0.5 + self._chance.random())
            await self._sample(store)
        for task in self._tasks:
            task.cancel()
        self._faults.end()
        await self._drain(store)
        await self._account(store)
        # Also of whoever came last, and ended after the last sample.
        self._check()

    async def _sample(self, store: Store) -> None:
        self._check()
        known = list(self._witness.accepted)
        with suppress(StoreError):
            await self._witness.sample(store, self._chance.sample(known, min(3, len(known))))

    def _check(self) -> None:
        for error in self._plant.broken:
            raise Violation(f"a process died of {error!r}") from error
        expect(not self._crashed, f"unhandled: {self._crashed}")
        for task in [*self._tasks, *self._clients.tasks]:
            if task.done() and not task.cancelled() and (error := task.exception()):
                raise error
        self._clients.tasks = [task for task in self._clients.tasks if not task.done()]

    async def _drain(self, store: Store) -> None:
        until = self._clock.now + DRAINED_WITHIN
        while True:
            await asyncio.sleep(2)
            await self._sample(store)
            with suppress(StoreError):
                if (backlog := await store.depth()).unfinished == 0 and not self._clients.busy:
                    return
                expect(self._clock.now < until, f"never drained: {backlog}")

    async def _account(self, store: Store) -> None:
        """Every accepted job has ended, no request became two jobs, and nothing is left over."""
        for job_id in sorted(self._witness.accepted):
            await self._witness.look(store, job_id)
        names: set[str] = set()
        for job in await self._listed(store):
            self._witness.saw(job)
            expect(JobStatus(job["status"]).terminal, f"never ended: {job}")
            if "redrive_of" not in job:
                name = job["metadata"]["name"]
                expect(name not in names, f"P4: {name} was accepted twice: {job}")
                names.add(name)
        raw = fakeredis.FakeAsyncRedis(server=self._server.fake, protocol=2, decode_responses=True)
        left = await leaks(cast(Redis, raw), NAMESPACE, Keys(NAMESPACE).permanent)
        await raw.aclose()
        expect(not left, f"P7: {left}")
        backlog = await store.depth()
        expect(backlog.pending in (0, None), f"deliveries of no job: {backlog}")

    async def _listed(self, store: Store) -> list[View]:
        """All jobs that there are, whoever was told of them."""
        jobs: list[View] = []
        page = await store.list_jobs(limit=100)
        while page:
            jobs += map(view, page)
            page = await store.list_jobs(limit=100, before=page[-1].job_id)
        return jobs

    async def _clear_up(self) -> None:
        """Lets every task of every process end, the killed ones too."""
        self._plant.closed = True
        for node in self._network.nodes:
            self._revive(node)
        me = asyncio.current_task()
        while tasks := sorted((task for task in asyncio.all_tasks() if task is not me), key=hash):
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=10)
            # Asked for, so that the loop does not complain of it.
            for task in tasks:
                if task.done() and not task.cancelled():
                    task.exception()

    def _revive(self, node: Node) -> None:
        node.cut = True
        node.dead = False
        self._loop.resume(node)

    def _unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self._crashed.append(f"{context.get('message')}: {context.get('exception')!r}")


def drawn_settings(chance: random.Random) -> dict[str, Any]:
    return {
        "redis_url": "redis://simulated/0",
        "namespace": NAMESPACE,
        "claim_idle_ms": chance.choice([1_000, 3_000, 6_000]),
        "max_attempts": chance.choice([1, 2, 3, 3, 4]),
        "worker_concurrency": chance.choice([1, 2, 4]),
        "retry_backoff_ms": chance.choice([0, 200, 2_000]),
        "retry_backoff_max_ms": 5_000,
        "job_timeout_ms": 15_000,
        "drain_ms": chance.choice([100, 3_000]),
        "min_workers": chance.choice([0, 1]),
        "max_workers": 4,
        "scale_down_window_ms": 3_000,
    }
