"""The check that each test ends with: a script that leaves something behind is found out."""

from __future__ import annotations

from datetime import timedelta

import pytest

from common.store import Store
from tests.processes import Processes
from tests.requests import submit
from tests.sabotage import broken_script
from tests.workers import Worker


@pytest.mark.vandal
@pytest.mark.parametrize(
    ("file", "line", "told"),
    [
        ("include/ending.lua", "redis.call('ZREM', DEADLINES, job.id)", "deadline of"),
        ("include/ending.lua", "redis.call('ZREM', RETRIES, job.id)", "retry of"),
        ("include/ending.lua", "count_open(job.owner, -1)", "count of the owner"),
        ("include/ending.lua", "count('running', -1)", "counted as running"),
        ("include/ending.lua", "drop_entry(job.entry)", "is a stray"),
        (
            "include/slots.lua",
            "if idle then redis.call('XGROUP', 'DELCONSUMER', JOBS, GROUP, slot) end",
            "has neither slot nor job",
        ),
    ],
)
async def test_what_a_script_leaves_behind_is_found_out(
    processes: Processes, file: str, line: str, told: str
) -> None:
    with broken_script(file, line, ""):
        await some_lives(await processes.open(), await processes.hire())
        with pytest.raises(AssertionError, match=told):
            await processes.assert_promises_kept()


async def test_a_store_without_faults_passes(gateway: Store, worker: Worker) -> None:
    await some_lives(gateway, worker)


async def some_lives(gateway: Store, worker: Worker) -> None:
    """One job succeeds, one is cancelled while it waits to be tried again, and the worker leaves."""
    await submit(gateway, owner="ann", expires_in_s=600)
    await worker.run()
    job = await submit(gateway, owner="ann", expires_in_s=600)
    await worker.fail(await worker.lease(), retry_in=timedelta(minutes=1))
    await gateway.cancel(job.job_id)
    await worker.store.retire()
