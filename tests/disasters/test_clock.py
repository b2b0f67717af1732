"""Clocks five minutes wrong, each process in its own direction: nothing comes early or late."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from common.job import new_job_id
from tests.disasters.machine import Machine
from tests.disasters.system import Client, System, running
from tests.waiting import wait_until

pytestmark = pytest.mark.real_server

WRONG_BY_S = {
    "api-1": 300,
    "api-2": -300,
    "scaler": 300,
    "worker-1": 300,
    "worker-2": -300,
    "worker-3": 300,
}
SLOTS = 20
SETTINGS = {
    "worker_concurrency": str(SLOTS),
    "min_workers": "3",
    "claim_idle_ms": "1000",
    "heartbeat_ms": "250",
    "retry_backoff_ms": "200",
    "retry_backoff_max_ms": "200",
}
#: What a busy machine may add, in seconds.
SLACK = 3.0


@pytest.fixture
async def wrong(machine: Machine, tmp_path: Path) -> AsyncIterator[System]:
    """A system in which no process has the server's time."""
    path = str(Path(__file__).parent / "wrong_clock")
    environments = {name: {"PYTHONPATH": path, "WRONG_BY_S": str(by)} for name, by in WRONG_BY_S.items()}
    async with running(machine.url, tmp_path, *WRONG_BY_S, environments=environments, **SETTINGS) as system:
        for name, by in WRONG_BY_S.items():
            logged_at = instant((await system.services[name].said())["time"])
            assert abs(logged_at - datetime.now(UTC) - timedelta(seconds=by)) < timedelta(seconds=60)
        yield system


async def test_wrong_clocks_bring_nothing_on_and_put_nothing_off(wrong: System) -> None:
    began = datetime.now(UTC)
    jobs = await asyncio.gather(
        *(play(client) for client in wrong.clients.values() for play in (expires, retried, outlasts_a_lease))
    )
    for job in jobs:
        assert began <= instant(job["created_at"]) <= instant(job["finished_at"]) <= datetime.now(UTC)
    for client in wrong.clients.values():
        assert [await client.end(job["job_id"]) for job in jobs] == jobs
        assert await client.end(new_job_id()) is None


async def test_what_a_worker_with_a_wrong_clock_held_is_taken_over_when_its_lease_is_over(
    wrong: System,
) -> None:
    client = wrong.clients["api-1"]
    for ahead_or_behind in ("worker-1", "worker-2"):
        job_id = await held_by(ahead_or_behind, client)
        await asyncio.sleep(1.5)  # Longer than a lease: it is renewed.
        wrong.services[ahead_or_behind].kill()
        killed_at = datetime.now(UTC)
        crashed, again = (await client.end(job_id) or {})["attempts"]
        assert crashed["outcome"] == "crash"
        assert 0.7 < seconds(killed_at, again["started_at"]) < 1 + SLACK


async def held_by(worker: str, client: Client) -> str:
    """A job that hangs at this worker; others may hang elsewhere."""
    for n in range(SLOTS):
        job_id = (
            await client.submit(f"{worker} {n}", params={"mock": {"fail": "hang", "fail_attempts": 1}})
        ).job_id

        async def name() -> str | None:
            return (await client.look(job_id))["worker"]  # noqa: B023

        await wait_until(name)
        if await name() == worker:
            return job_id
    raise AssertionError(f"{worker} took none of {SLOTS} jobs")


async def expires(client: Client) -> dict[str, Any]:
    job = await run(client, "expires", expires_in_s=1, params={"mock": {"latency_ms": 60_000}})
    assert job["status"] == "expired"
    assert seconds(job["created_at"], job["deadline_at"]) == 1
    assert 1 <= seconds(job["created_at"], job["finished_at"]) < 1 + SLACK
    return job


async def retried(client: Client) -> dict[str, Any]:
    job = await run(client, "retried", params={"mock": {"fail": "error", "fail_attempts": 1}})
    first, second = job["attempts"]
    assert (first["outcome"], second["outcome"]) == ("error", "succeeded")
    assert 0 <= seconds(first["ended_at"], second["started_at"]) < 0.2 + SLACK
    return job


async def outlasts_a_lease(client: Client) -> dict[str, Any]:
    job = await run(client, "long", params={"mock": {"latency_ms": 2500}})
    assert [attempt["outcome"] for attempt in job["attempts"]] == ["succeeded"]
    return job


async def run(client: Client, key: str, **body: object) -> dict[str, Any]:
    accepted = await client.submit(f"{key} {id(client)}", **body)
    job = await client.end(accepted.job_id)
    assert job
    return job


def instant(text: str) -> datetime:
    return datetime.fromisoformat(text)


def seconds(since: str | datetime, until: str | datetime) -> float:
    begin, end = (instant(moment) if isinstance(moment, str) else moment for moment in (since, until))
    return (end - begin).total_seconds()
