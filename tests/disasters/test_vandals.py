"""Somebody empties the server of a system at work: what was there is gone, and all else goes on by itself."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from tests.disasters.machine import Machine
from tests.disasters.system import running

pytestmark = pytest.mark.real_server

SERVICES = ("api", "scaler", "worker-1", "worker-2")


async def test_after_flushall_under_load_the_system_goes_on(machine: Machine, tmp_path: Path) -> None:
    async with running(machine.url, tmp_path, *SERVICES) as system:
        client = system.client
        async with client.busy():
            await client.has(100)
            flushed = list(client.accepted)
            await machine.tell("FLUSHALL")
            emptied_at = time.monotonic()
            await client.has(100)
        for accepted in flushed:
            assert await client.end(accepted.job_id) is None
        later = [accepted for accepted in client.accepted if accepted.sent_at > emptied_at]
        for accepted in later:
            job = await client.end(accepted.job_id)
            assert job is not None
            assert job["status"] == "succeeded"
        stats = await client.stats()
        assert stats["unaccounted"] == 0
        assert len(later) <= stats["submitted"] == stats["succeeded"] <= len(client.accepted) - len(flushed)
        assert not client.refused


async def test_after_flushall_nobody_asks_in_a_hot_loop_or_fills_the_log(
    machine: Machine, tmp_path: Path
) -> None:
    async with running(machine.url, tmp_path, *SERVICES) as system:
        await system.client.submit("the first")
        quiet = await commands_per_second(machine)
        await machine.tell("FLUSHALL")
        assert await commands_per_second(machine) < 2 * quiet
        await system.client.submit("the next")
        warnings = [line for service in system.services.values() for line in service.warnings]
        assert [line["message"] for line in warnings] == ["consumer group was missing, created it"]


async def commands_per_second(machine: Machine) -> float:
    before = int(await machine.info("total_commands_processed"))  # pyright: ignore[reportArgumentType]
    await asyncio.sleep(1)
    return int(await machine.info("total_commands_processed")) - before  # pyright: ignore[reportArgumentType]
