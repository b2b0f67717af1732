"""A short run of `make endure`."""

from __future__ import annotations

import pytest

from tests.endurance.run import Plan, endure
from tests.endurance.samples import MIB

pytestmark = pytest.mark.server


@pytest.mark.timeout(180)
async def test_killed_workers_lose_no_job_and_leave_nothing_behind() -> None:
    plan = Plan(jobs=2_000, kills=6, workers=3)
    account = await endure(plan, lambda _: None)
    assert account.faults == []
    assert account.ends == {"succeeded": plan.jobs}
    assert account.kills == plan.kills
    assert account.started_again > 0
    seen = account.samples
    assert seen.taken > 5
    assert seen.consumers <= plan.workers
    # DESIGN: at most 500 bytes for an ended job beyond a key that holds only its result.
    assert seen.server_at_last - seen.server_at_first < plan.jobs * 800
    assert max(seen.rss.values()) < 200 * MIB
