"""No process may die where it matters: SIGKILL before and after each command that it sends to the store."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import pytest

from tests.chaos.campaign import Tally, points_of, record, try_all
from tests.chaos.scenarios import SCENARIOS
from tests.chaos.spots import STARTING, Side, Spot
from tests.chaos.stage import Stage, stage
from tests.chaos.succession import Fault, Heir
from tests.chaos.trial import TRIES, Point, run_trial
from tests.conftest import REAL, Servers
from tests.servers import EMBEDDED

pytestmark = [pytest.mark.server, pytest.mark.timeout(240)]

#: How long the sample of all other points may go on; `make prove` tries every one.
SAMPLE_S = 15
#: The share of points at which somebody has to die: a clock decides about the others.
MOST = 0.8
#: What a plain job does not do without.
LEAST = {"submit", "watch", "SUBSCRIBE", "XREADGROUP new", "begin", "extend", "finish", "announce"}
AGAIN = "to try one again: python -m tests.chaos.prove NAME OF THE POINT"


@pytest.fixture(scope="module")
def here(request: pytest.FixtureRequest, servers: Servers) -> Iterator[Stage]:
    name = getattr(request, "param", EMBEDDED)
    server = servers.private(name, durable=True, appendfsync="always")
    with stage(server) as ready:
        yield ready
    servers.stop([server])


def report(tally: Tally) -> str:
    faults = "\n\n".join(str(fault) for fault in tally.faults)
    return f"{len(tally.faults)} of {tally.points} crash points failed; {AGAIN}\n\n{faults}"


def in_short_list(point: Point) -> bool:
    """A plain job at every command, and a job with an idempotency key at each of its submits."""
    if point.spot is None or point.heir is not Heir.SAME or point.spot.what.startswith(STARTING):
        return False
    return point.scenario == "success" or point.spot.what == "submit"


async def short_list(here: Stage) -> list[Point]:
    """Recorded again when the job had ended before its gateway could wait for it: on a busy machine."""
    missing = LEAST
    for _ in range(TRIES):
        recorded = await record(here, only=["success", "repeated submit"])
        points = [point for point in recorded if in_short_list(point)]
        missing = LEAST - {point.spot.what for point in points if point.spot}
        if not missing:
            return points
    pytest.fail(f"never sent: {missing}")


@pytest.mark.parametrize("here", REAL, indirect=True, scope="module")
async def test_a_plain_job_survives_a_death_at_every_command(here: Stage) -> None:
    tally = Tally()
    await try_all(here, await short_list(here), tally.add)
    assert not tally.faults, report(tally)
    assert not tally.missed, f"in every recording, and in no trial: {tally.missed}"
    assert len(tally.passed) > MOST * tally.points, f"hardly anybody died: {tally.unreached}"


async def test_a_sample_of_all_crash_points_is_survived(here: Stage) -> None:
    points = await record(here, recordings=1)
    # Seeded for each test by pytest-randomly, which prints the seed: another sample each time.
    random.shuffle(points)
    tally = Tally()
    await try_all(here, points, tally.add, until=time.monotonic() + SAMPLE_S)
    assert not tally.faults, report(tally)
    assert len(tally.passed) > MOST * tally.points, f"hardly anybody died: {tally.unreached}"


@pytest.mark.parametrize(
    "broken",
    [
        Point("success", "worker", Spot("XDEL", 1, Side.AFTER), sabotage="ack_first"),
        Point("success", "worker", None, sabotage="drop_finish"),
        Point("retry", "worker", Spot("XADD", 1, Side.AFTER), sabotage="copy_first"),
        Point("repeated submit", "gateway", Spot("submit", 1, Side.AFTER), sabotage="forget_key"),
    ],
    ids=lambda point: point.sabotage,
)
async def test_a_broken_step_is_found_out(here: Stage, broken: Point) -> None:
    with pytest.raises(Fault) as found:
        await run_trial(here, broken)
    assert "no end within" not in str(found.value)


async def test_a_command_that_is_new_is_a_crash_point(here: Stage) -> None:
    passed = await run_trial(here, Point("success", "worker", None, sabotage="ack_first"))
    points = points_of("success", "worker", [passed.sent])
    for side in Side:
        assert Point("success", "worker", Spot("XDEL", 1, side)) in points


async def test_a_spot_that_is_not_reached_is_told_and_has_not_passed(here: Stage) -> None:
    sent, never = (
        Point("success", "worker", Spot(what, 1, Side.BEFORE), certain=True) for what in ("finish", "redrive")
    )
    tally = Tally()
    await try_all(here, [sent, never], tally.add)
    assert (tally.points, tally.passed, tally.unreached) == (2, [sent], [never])
    assert tally.missed == [never.command]


def test_every_scenario_may_be_hit_in_every_role() -> None:
    assert {role for scenario in SCENARIOS.values() for role in scenario.roles} == {
        "gateway",
        "worker",
        "scaler",
    }
