"""A short run of `make endure`."""

from __future__ import annotations

import pytest

from tests.endurance.bounds import faults
from tests.endurance.run import Plan, endure

pytestmark = pytest.mark.server


@pytest.mark.timeout(180)
async def test_killed_workers_lose_no_job_and_leave_nothing_behind() -> None:
    plan = Plan(jobs=2_000, kills=6, workers=3)
    account = await endure(plan, lambda _: None)
    assert faults(plan, account) == []
    assert account.ends == {"succeeded": plan.jobs}
    assert account.started_again > 0
    assert account.samples.taken > 5
