"""What the lab does with a child that dies, refuses to run, or does not stop."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path

import pytest

from common.settings import child_environment
from lab.folder import last_lines
from lab.supervisor import Child, Program, Supervisor, restart_delay
from tests.e2e.labs import alive
from tests.waiting import wait_until

GRACE = timedelta(seconds=0.3)

Raise = Callable[[str], Child]


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
async def supervisor(told: list[str]) -> AsyncIterator[Supervisor]:
    supervisor = Supervisor(told.append)
    yield supervisor
    await supervisor.stop(list(supervisor.children), GRACE)


@pytest.fixture
def run(supervisor: Supervisor, tmp_path: Path) -> Raise:
    """Runs some Python code as a child."""

    def add(code: str) -> Child:
        command = (sys.executable, "-I", "-S", "-c", code)
        log = tmp_path / "child.log"
        return supervisor.add(
            Program(name="child", command=command, environment=child_environment(), log=log)
        )

    return add


def test_restarts_come_at_once_and_then_ever_later() -> None:
    delays = [restart_delay(deaths).total_seconds() for deaths in (1, 2, 3, 4, 7, 8, 1000)]
    assert delays == [0, 0.1, 0.2, 0.4, 3.2, 5, 5]


async def test_a_child_that_always_dies_is_no_hot_loop(run: Raise, told: list[str]) -> None:
    run("raise SystemExit(7)")
    deaths = "child exited with 7; restarting it"
    await wait_until(lambda: told.count(deaths) >= 3)
    assert all(line == deaths or line.startswith("child runs again, pid ") for line in told)
    await asyncio.sleep(0.3)
    assert told.count(deaths) <= 5


async def test_a_killed_child_comes_back_under_a_new_pid(run: Raise, told: list[str]) -> None:
    child = run("import time; time.sleep(60)")
    await wait_until(lambda: child.pid)
    first = child.pid
    child.signal(9)  # pyright: ignore[reportArgumentType]
    await wait_until(lambda: child.pid not in (None, first))
    assert told == ["child was killed (SIGKILL); restarting it", f"child runs again, pid {child.pid}"]


async def test_children_that_are_killed_for_good_are_not_restarted(
    run: Raise, supervisor: Supervisor, told: list[str]
) -> None:
    child = run("import time; time.sleep(60)")
    await wait_until(lambda: child.pid)
    supervisor.kill()
    await asyncio.wait_for(child.kept, 5)
    assert told == []


async def test_a_child_stays_dead_while_it_is_not_to_be_restarted(run: Raise, told: list[str]) -> None:
    child = run("import time; time.sleep(60)")
    await wait_until(lambda: child.pid)
    with child.not_restarted():
        child.signal(signal.SIGKILL)
        await wait_until(lambda: told == ["child was killed (SIGKILL); not restarting it"])
        await asyncio.sleep(0.2)
        assert child.pid is None
    await wait_until(lambda: child.pid)


async def test_a_child_that_refuses_its_settings_is_not_restarted(run: Raise, supervisor: Supervisor) -> None:
    child = run("import sys; print('a line', flush=True); sys.exit(print('IWL_X: no', file=sys.stderr) or 2)")
    refusal = await asyncio.wait_for(supervisor.refused, 5)
    assert str(refusal) == "IWL_X: no"
    assert child.pid is None


async def test_a_child_that_ignores_the_signal_is_killed(run: Raise, told: list[str], tmp_path: Path) -> None:
    child = run(
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "print('deaf', flush=True); time.sleep(60)"
    )
    await wait_until(lambda: last_lines(tmp_path / "child.log", 1) == ["deaf"])
    pid = child.pid
    assert pid
    await child.stop(GRACE)
    assert not alive(pid)
    assert told == ["child did not stop in time and was killed"]
