"""The store against a plain model of the lifecycle, over random calls by several processes.

Each example is a sequence of steps; Hypothesis shortens the one that fails. `make model EXAMPLES=5000` runs
as many as you like."""

from __future__ import annotations

import pytest

from tests.model.examples import EXAMPLES, GIVEN, check, examples
from tests.model.world import RealWorld, VirtualWorld
from tests.servers import Server


@pytest.mark.timeout(0 if GIVEN else 900)
@pytest.mark.parametrize("twice", [False, True], ids=["once", "sent-twice"])
def test_store_and_model_agree_after_every_step(server: Server, twice: bool) -> None:
    # Fewer where time has to pass, and where every script runs twice.
    how = examples(EXAMPLES // (1 + server.real + twice))
    steps = check(server, RealWorld if server.real else VirtualWorld, how, sent_twice=twice)
    print(f"{steps} steps")
