"""How the machine is run."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test  # pyright: ignore[reportUnknownVariableType]

from tests.model.machine import Machine
from tests.model.world import World
from tests.servers import Server

#: Somebody's own number of examples (make model EXAMPLES=5000): other ones each time.
GIVEN = os.environ.get("MODEL_EXAMPLES", "")
EXAMPLES = int(GIVEN or 30)
STEPS = 40


def examples(count: int, *, shrink: bool = True) -> settings:
    return settings(
        max_examples=max(1, count),
        stateful_step_count=STEPS,
        deadline=None,
        # The same examples on every machine, unless somebody asked for more of them.
        derandomize=not GIVEN,
        database=None,
        phases=[Phase.generate, *([Phase.shrink] if shrink else [])],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
        report_multiple_bugs=False,
    )


def check(server: Server, world: type[World], how: settings, *, sent_twice: bool = False) -> int:
    """Steps taken. Raises AssertionError where store and model differ, and prints the shortest way there."""

    class Run(Machine):
        pass

    Run.server, Run.world_class, Run.sent_twice = server, world, sent_twice
    run_state_machine_as_test(Run, settings=how)
    return Run.taken
