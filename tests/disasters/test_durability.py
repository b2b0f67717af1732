"""What a killed server and a cut power cord take with them, and that what they leave is whole."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path

import pytest
from redis.exceptions import ResponseError

from common.errors import StoreRefused
from common.job import Job, JobStatus
from common.store import Store
from tests.disasters.history import KEYED, Chapter, Forgetting, View, chronicle, drain
from tests.disasters.machine import Machine, cuts, watched
from tests.disasters.traffic import Traffic
from tests.keyspace import command
from tests.processes import Processes
from tests.requests import submission, submit
from tests.waiting import wait_until

pytestmark = pytest.mark.real_server


async def test_a_killed_server_has_all_that_it_had_answered(machine: Machine, here: Processes) -> None:
    """With `everysec`: the system has what was written, and brings it to the disk later."""
    traffic = Traffic()
    flowing = asyncio.create_task(traffic.flow(here))
    await wait_until(lambda: len(traffic.accepted) > 200 and len(traffic.succeeded) > 20)
    accepted, succeeded = list(traffic.accepted), list(traffic.succeeded)
    await machine.has_written_what_it_answered()
    machine.kill()
    await flowing
    machine.start()
    gateway = await here.open()
    for sent in accepted:
        assert (await gateway.get(sent.job_id)).job_id == sent.job_id
    for job_id in succeeded:
        assert (await gateway.get(job_id)).status is JobStatus.SUCCEEDED


async def test_a_power_cut_takes_back_what_came_after_the_last_sync(
    machine: Machine, here: Processes
) -> None:
    story = Forgetting(await here.open(), await here.hire("pod"))
    await story.until_the_moment()
    kept = await machine.synced_for_the_last_time()
    await story.after_the_moment()
    machine.cut_power(kept)
    machine.start()
    await story.is_over(here)


async def test_a_power_cut_takes_no_job_whose_acceptance_waited_for_the_disk(
    machine: Machine, here: Processes
) -> None:
    """The last jobs come when nothing is synced any more: accepted, they would be lost."""
    gateway = await opened(machine, here, "aof", "always")
    onlooker = await here.open()
    accepted = [(await submit(gateway)).job_id for _ in range(3)]
    kept = await machine.synced_for_the_last_time()
    late = [asyncio.create_task(submit(gateway)) for _ in range(3)]

    async def all_there() -> bool:
        return (await onlooker.depth()).submitted == 6

    await wait_until(all_there)
    # Time enough for acceptances that wait for nothing.
    await asyncio.wait(late, timeout=0.3)
    machine.cut_power(kept)
    machine.start()
    answers = await asyncio.gather(*late, return_exceptions=True)
    accepted += [answer.job_id for answer in answers if isinstance(answer, Job)]
    assert set(accepted) <= {job.job_id for job in await gateway.list_jobs()}


@pytest.mark.parametrize(("durability", "policy"), [("server", "always"), ("aof", "everysec")])
async def test_a_power_cut_takes_no_job_that_was_accepted_after_the_servers_own_sync(
    durability: str, policy: str, machine: Machine, here: Processes
) -> None:
    gateway = await opened(machine, here, durability, policy)
    accepted: list[str] = []
    async with watched(machine.log_file) as disk:
        if not disk.tells:
            pytest.skip("this system does not say what is on its disk")
        for _ in range(3):
            together = [submission() for _ in range(3)]
            await asyncio.gather(*(gateway.submit(sent) for sent in together))
            disk.look()
            accepted += [sent.job_id for sent in together]
    machine.cut_power(disk.synced)
    machine.start()
    assert {job.job_id for job in await gateway.list_jobs()} == set(accepted)


async def opened(machine: Machine, here: Processes, durability: str, policy: str) -> Store:
    """Skips on a server that is refused."""
    await machine.sync_by(policy)
    try:
        return await here.open(durability=durability)
    except StoreRefused as refusal:
        pytest.skip(str(refusal))


@pytest.mark.parametrize("policy", ["always", "everysec"])
async def test_a_server_is_refused_when_it_cannot_wait_for_its_disk_and_only_then(
    policy: str, machine: Machine, here: Processes
) -> None:
    await machine.sync_by(policy)
    refused = False
    try:
        await here.open(durability="aof")
    except StoreRefused:
        refused = True
    # With `always` there is nothing left to wait for.
    assert refused == await cannot_wait_for_its_disk(machine, sync_is_due=policy == "everysec")


async def cannot_wait_for_its_disk(machine: Machine, *, sync_is_due: bool) -> bool:
    """WAITAOF is not known, or answers although the next sync is most of a second away."""
    raw = machine.connect()
    before = time.monotonic()
    try:
        for n in range(3):
            await command(raw, "SET", "n", n)
            await command(raw, "WAITAOF", 1, 0, 2000)
    except ResponseError as error:
        return "unknown command" in str(error)
    finally:
        await raw.aclose()
    # Who waits for three syncs, one each second, takes two seconds at least; who does not, milliseconds.
    return sync_is_due and time.monotonic() - before < 1.5


async def test_wherever_the_log_ends_after_a_power_cut_its_jobs_are_whole(
    machine: Machine, here: Processes, tmp_path: Path
) -> None:
    """Each script's writes are one transaction of the log: none is ever half there (P5)."""
    await machine.synced_for_the_last_time()
    chapters = await chronicle(machine, await here.open(), await here.hire("pod"))
    log = machine.log_file.read_bytes()
    for kept in cuts(log, random.Random(1)):
        twin = machine.twin(tmp_path / f"cut-{kept}", kept)
        twin.start()
        try:
            await survives(twin, here.namespace, chapters, kept)
        finally:
            twin.kill()


async def survives(twin: Machine, namespace: str, chapters: list[Chapter], kept: int) -> None:
    """What is there is what clients knew when the log ended here, and it goes on from there."""
    before = [chapters[0], *(chapter for chapter in chapters if chapter.written <= kept)][-1]
    after = next(chapter for chapter in chapters if chapter.written >= kept)
    afterwards = Processes(twin, namespace, {"claim_idle_ms": 1000})
    try:
        gateway = await afterwards.open()
        await afterwards.assert_promises_kept()
        found = await View.of(gateway)
        if kept == before.written:
            assert found == before.view
        else:
            assert found.jobs in (before.view.jobs, after.view.jobs)
            assert found.dead in (before.view.dead, after.view.dead)
        known = {job.job_id for job in found.jobs}
        for key in KEYED:
            again = await gateway.submit(submission(key, idempotency_key=key, owner="somebody"))
            assert again.replayed == (again.job.job_id in known)
        # A restart of the worker that was there takes back at once what it held.
        await drain(gateway, await afterwards.hire("pod"))
        await afterwards.assert_promises_kept()
        ended = [job for job in found.jobs if job.status.terminal]
        assert ended == [job for job in await gateway.list_jobs() if job in ended]
        assert known <= {job.job_id for job in await gateway.list_jobs()}
    finally:
        await afterwards.close()
