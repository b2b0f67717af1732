"""Many trials: recording runs find the crash points, and a few lanes try them side by side."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field

from tests.chaos.scenarios import SCENARIOS, STARTS
from tests.chaos.spots import BY_CHANCE, STARTING, spots_of
from tests.chaos.stage import Stage
from tests.chaos.succession import Fault, Heir
from tests.chaos.trial import Passed, Point, run_trial, try_trial

#: Trials mostly wait for a lease or a model call.
LANES = 4

Done = Callable[[Point, Passed | Fault], None]


@dataclass
class Tally:
    """Of one scenario, or of all."""

    #: Where the process died, and every promise was kept.
    passed: list[Point] = field(default_factory=list[Point])
    #: The process ended its part without coming to the spot, in each of several trials.
    unreached: list[Point] = field(default_factory=list[Point])
    faults: list[Fault] = field(default_factory=list[Fault])
    seconds: float = 0.0
    longest: float = 0.0

    def add(self, point: Point, outcome: Passed | Fault) -> None:
        if isinstance(outcome, Fault):
            self.faults.append(outcome)
        elif outcome.struck:
            self.passed.append(point)
            self.seconds += outcome.seconds
            self.longest = max(self.longest, outcome.seconds)
        else:
            self.unreached.append(point)

    @property
    def points(self) -> int:
        return len(self.passed) + len(self.unreached) + len(self.faults)

    @property
    def missed(self) -> list[str]:
        """What every recording sent, and at the first of which nobody died: neither before it nor after."""
        died = {point.command for point in self.passed if point.certain}
        return sorted({point.command for point in self.unreached if point.certain} - died)


async def record(stage: Stage, recordings: int = 2, only: Iterable[str] = SCENARIOS) -> list[Point]:
    """Every crash point of these scenarios: whatever the processes send when nobody dies. Raises Fault.

    Scenarios that the server is not able to play are left out."""
    able = [name for name in only if stage.durable or not SCENARIOS[name].durable]
    parts = [(scenario, role) for scenario in able for role in SCENARIOS[scenario].roles]
    runs = [Point(scenario, role, None) for scenario, role in parts for _ in range(recordings)]
    sent: dict[tuple[str, str], list[Sequence[str]]] = {}

    def heard(point: Point, outcome: Passed | Fault) -> None:
        if isinstance(outcome, Fault):
            raise outcome
        sent.setdefault((point.scenario, point.role), []).append(outcome.sent)

    await try_all(stage, runs, heard, run_trial)
    return [point for scenario, role in parts for point in points_of(scenario, role, sent[scenario, role])]


def points_of(scenario: str, role: str, recordings: Sequence[Sequence[str]]) -> list[Point]:
    """What was sent in any recording, and again as often as it was in all of them."""
    counts = [Counter(sent) for sent in recordings]
    names = list(dict.fromkeys(what for sent in recordings for what in sent))
    always = {what for what in names if all(count[what] for count in counts)}
    sent = [what for what in names for _ in range(max(1, min(count[what] for count in counts)))]
    points: list[Point] = []
    for spot in spots_of(sent):
        starting = spot.what.startswith(STARTING)
        if starting and STARTS[role] != scenario:
            continue
        # A stranger makes a difference only to what a dead worker held.
        heirs = Heir if role == "worker" and not starting else (Heir.SAME,)
        certain = spot.nth == 1 and spot.what in always - BY_CHANCE
        points += [Point(scenario, role, spot, heir, certain=certain) for heir in heirs]
    return points


async def try_all(
    stage: Stage,
    points: Sequence[Point],
    done: Done,
    trial: Callable[[Stage, Point], Awaitable[Passed]] = try_trial,
    *,
    until: float = float("inf"),
) -> None:
    """Tries points in order, LANES at a time; none is begun after `until` (monotonic)."""
    waiting = iter(points)

    async def lane() -> None:
        for point in waiting:
            if time.monotonic() > until:
                return
            try:
                outcome: Passed | Fault = await trial(stage, point)
            except Fault as fault:
                outcome = fault
            done(point, outcome)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(LANES):
            tasks.create_task(lane())
