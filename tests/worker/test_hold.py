"""Closing a model call from outside, without ending the runner that makes it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from common.store import Lease
from tests.requests import request
from tests.waiting import wait_until
from worker.hold import Hold, Holdings, Stop, Stopped


def hold(token: str = "token", limit_s: float = 60.0) -> Hold:
    lease = Lease(job_id="job", token=token, attempt=1, request=request(), receipt="1-0")
    return Hold(lease, limit_s, asyncio.get_running_loop())


async def for_ever() -> None:
    await asyncio.get_running_loop().create_future()


class Runner:
    """Runs one call after the other in one task, as a worker's runner does."""

    def __init__(self, *calls: tuple[Hold, Callable[[], Awaitable[None]]]) -> None:
        self.ends: list[object] = []
        self.task = asyncio.create_task(self._run(calls))

    async def _run(self, calls: tuple[tuple[Hold, Callable[[], Awaitable[None]]], ...]) -> None:
        for held, call in calls:
            try:
                with held:
                    await call()
            except Stopped as stopped:
                self.ends.append(stopped.why)
            except Exception as error:
                self.ends.append(type(error))
            else:
                self.ends.append("done")


@pytest.mark.parametrize("why", list(Stop))
async def test_a_closed_call_ends_and_the_runner_goes_on(why: Stop) -> None:
    first, second = hold(), hold()
    runner = Runner((first, for_ever), (second, lambda: asyncio.sleep(0.01)))
    await asyncio.sleep(0)
    first.close(why)
    await runner.task
    assert runner.ends == [why, "done"]
    assert runner.task.cancelling() == 0


async def test_a_call_that_takes_too_long_ends_by_itself() -> None:
    runner = Runner((hold(limit_s=0.01), for_ever))
    await runner.task
    assert runner.ends == [Stop.TIMEOUT]


async def test_a_call_closed_before_it_began_does_not_begin() -> None:
    called: list[bool] = []

    async def call() -> None:
        called.append(True)

    held = hold()
    held.close(Stop.CANCELLED)
    runner = Runner((held, call))
    await runner.task
    assert (runner.ends, called) == ([Stop.CANCELLED], [])


async def test_closing_after_the_call_changes_nothing() -> None:
    held = hold()
    runner = Runner((held, lambda: asyncio.sleep(0)), (hold(), lambda: asyncio.sleep(0.01)))
    await wait_until(lambda: runner.ends, every=0)
    held.close(Stop.TAKEN)
    await runner.task
    assert (runner.ends, held.stop) == (["done", "done"], None)


async def test_the_first_reason_counts() -> None:
    held = hold()
    runner = Runner((held, for_ever))
    await asyncio.sleep(0)
    held.close(Stop.EXPIRED)
    held.close(Stop.DRAIN)
    await runner.task
    assert runner.ends == [Stop.EXPIRED]


async def test_closing_in_the_moment_of_the_answer_still_closes() -> None:
    """The future that the call waits for is done, but the task has not run yet."""
    answer = asyncio.get_running_loop().create_future()
    held = hold()

    async def call() -> None:
        await answer

    runner = Runner((held, call), (hold(), lambda: asyncio.sleep(0.01)))
    await asyncio.sleep(0)
    answer.set_result(None)
    held.close(Stop.TAKEN)
    await runner.task
    assert runner.ends == [Stop.TAKEN, "done"]


async def test_a_real_cancellation_ends_the_runner() -> None:
    runner = Runner((hold(), for_ever), (hold(), for_ever))
    await asyncio.sleep(0)
    runner.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await runner.task
    assert runner.ends == []


async def test_a_real_cancellation_wins_over_closing() -> None:
    held = hold()
    runner = Runner((held, for_ever), (hold(), for_ever))
    await asyncio.sleep(0)
    held.close(Stop.CANCELLED)
    runner.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await runner.task


async def test_a_backend_that_cancels_itself_fails_its_attempt_only() -> None:
    async def call() -> None:
        raise asyncio.CancelledError

    runner = Runner((hold(), call), (hold(), lambda: asyncio.sleep(0)))
    await runner.task
    assert runner.ends == [RuntimeError, "done"]


async def test_an_error_while_closing_does_not_hide_the_reason() -> None:
    async def call() -> None:
        try:
            await for_ever()
        finally:
            raise ValueError

    held = hold()
    runner = Runner((held, call))
    await asyncio.sleep(0)
    held.close(Stop.TAKEN)
    await runner.task
    assert runner.ends == [Stop.TAKEN]


async def test_slots_are_freed_by_the_outcome_and_bounded_by_the_commit() -> None:
    holdings = Holdings(2, asyncio.Event())
    holds = [hold(f"token {n}") for n in range(4)]
    for held in holds[:2]:
        holdings.take(held)
    assert (holdings.free, len(holdings)) == (0, 2)
    for held in holds[:2]:
        holdings.hand_over(held)
    assert (holdings.free, len(holdings), holdings.running) == (2, 2, [])
    for held in holds[2:]:
        holdings.take(held)
        holdings.hand_over(held)
    assert (holdings.free, len(holdings)) == (0, 4)
    holdings.drop(holds[0])
    assert holdings.free == 1
