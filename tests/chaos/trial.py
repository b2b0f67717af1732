"""One trial: one scenario, one process that dies at one spot, and the verdict."""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import uuid4

from tests.chaos.client import Client
from tests.chaos.scenarios import SCENARIOS, Scenario
from tests.chaos.spots import Spot
from tests.chaos.stage import Stage
from tests.chaos.succession import Fault, Heir, Life, Succession
from tests.chaos.verdict import demand, pass_verdict
from tests.instant import wrong_now
from tests.keyspace import clear

#: Of one trial. Most take less than one second; a busy machine may pause for many.
WITHIN_S = 60

#: Heartbeats and time keeping run by the clock: a spot that does not come in one run may come in the next.
TRIES = 5

#: Leases of 600 ms: short enough to wait for, long enough for a busy machine.
SETTINGS = {
    "host": "127.0.0.1",
    "port": "0",
    "metrics_port": "0",
    "claim_idle_ms": "600",
    "max_attempts": "3",
    "retry_backoff_ms": "40",
    "retry_backoff_max_ms": "40",
    "drain_ms": "1000",
    "scale_interval_ms": "100",
}


@dataclass(frozen=True)
class Point:
    """A crash point: who dies where, in which scenario, and who comes after."""

    scenario: str
    role: str
    spot: Spot | None
    heir: Heir = Heir.SAME
    sabotage: str | None = None
    #: The first of what every recording sent, so that trials must come to it too.
    certain: bool = field(default=False, compare=False)

    def __str__(self) -> str:
        where = self.spot or "nowhere"
        return f"{self.scenario}: {self.role} {where}, {self.heir} heir"

    @property
    def command(self) -> str:
        return f"{self.scenario}: {self.role} {self.spot.what if self.spot else 'nothing'}"


@dataclass(frozen=True)
class Passed:
    #: Whether the process died at its spot; if not, it never came there in this run.
    struck: bool
    seconds: float
    #: What the process sent to the store.
    sent: Sequence[str]


async def run_trial(stage: Stage, point: Point) -> Passed:
    """Raises Fault."""
    trial = _Trial(stage, point)
    began = time.monotonic()
    try:
        async with asyncio.timeout(WITHIN_S):
            await trial.run()
    except TimeoutError:
        raise Fault(f"{point}: no end within {WITHIN_S} s\n{trial.logs()}") from None
    except Exception as error:
        what = error if isinstance(error, Fault) else "".join(traceback.format_exception(error))
        raise Fault(f"{point}: {what}\n{trial.logs()}") from error
    finally:
        await clear(stage.server, trial.namespace)
    return Passed(trial.watched.struck, time.monotonic() - began, trial.watched.sent)


class _Trial:
    def __init__(self, stage: Stage, point: Point) -> None:
        self.namespace = f"chaos-{uuid4().hex[:12]}"
        self._point = point
        self._scenario: Scenario = SCENARIOS[point.scenario]
        self._settings = {
            **SETTINGS,
            **self._scenario.settings,
            "redis_url": stage.server.url,
            "api_keys_file": stage.keys_file,
            "namespace": self.namespace,
        }
        self._raw = stage.server.connect(decode_responses=True)
        self._stage = stage
        roles = {"gateway", "worker", *self._scenario.roles}
        self._cast = {role: self._succession(role) for role in sorted(roles)}

    @property
    def watched(self) -> _Watched:
        before = len(self._scenario.before) if self._point.role == "worker" else 0
        process = self._cast[self._point.role].processes[before]
        return _Watched(process.struck, list(process.sent))

    async def run(self) -> None:
        keeping = [asyncio.create_task(part.keep()) for part in self._cast.values()]
        playing = asyncio.create_task(self._play())
        try:
            await asyncio.wait([*keeping, playing], return_when=asyncio.FIRST_COMPLETED)
            for task in keeping:
                if task.done():
                    task.result()
            await playing
        finally:
            playing.cancel()
            for part in self._cast.values():
                part.close()
            await asyncio.gather(*keeping, playing, return_exceptions=True)
            await self._raw.aclose()

    def logs(self) -> str:
        lines = [
            f"  {role}-{number}: {line}"
            for role, part in self._cast.items()
            for number, process in enumerate(part.processes)
            for line in [*process.log[-8:], f"sent {process.sent[-12:]}", f"struck {process.struck}"]
        ]
        return "\n".join(lines)

    async def _play(self) -> None:
        client = Client(self._cast["gateway"], self._cast["worker"])
        try:
            await self._scenario.play(client)
            await pass_verdict(
                client,
                self._raw,
                self.namespace,
                budget=int(self._settings["max_attempts"]),
                deaths=self._cast["worker"].deaths,
            )
        finally:
            await client.aclose()

    async def _look(self) -> None:
        wrong = await wrong_now(self._raw, self.namespace)
        demand(not wrong, "right after the death:", wrong)

    def _succession(self, role: str) -> Succession:
        lives = self._scenario.before if role == "worker" else ()
        if role == self._point.role:
            lives += (Life(spot=self._point.spot, heir=self._point.heir, sabotage=self._point.sabotage),)
        return Succession(self._stage, role, self._settings, lives, self._look)


@dataclass(frozen=True)
class _Watched:
    struck: bool
    sent: list[str]


async def try_trial(stage: Stage, point: Point) -> Passed:
    """Again when the process did not come to its spot, a few times. Raises Fault."""
    for _ in range(TRIES - 1):
        passed = await run_trial(stage, point)
        if passed.struck:
            return passed
    return await run_trial(stage, point)
