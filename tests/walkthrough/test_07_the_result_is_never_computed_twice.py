"""7. A paused worker comes back after its job was taken over and done. It can no longer write, and nobody
runs a job again that has succeeded."""

from __future__ import annotations

import pytest

from common.store import LeaseState, Settled, Store
from tests.processes import Processes
from tests.requests import submit


@pytest.mark.settings(claim_idle_ms=400)
async def test_the_result_is_never_computed_twice(gateway: Store, processes: Processes) -> None:
    job = await submit(gateway)
    paused = await processes.hire()
    old = await paused.lease(job.job_id)

    other = await processes.hire()
    await other.run(job.job_id, "the answer")

    # The old token is worth nothing now.
    assert await paused.extend(old) is LeaseState.TAKEN
    assert await paused.finish(old, "another answer") is Settled.LOST

    job = await gateway.get(job.job_id)
    assert job.result
    assert job.result.text == "the answer"

    # Nor is there anything left to claim.
    assert (await other.look()).leases == ()
