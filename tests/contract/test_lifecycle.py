"""Lifecycle: every transition of the state machine happens as listed, and nothing leaves a terminal state."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, replace

import pytest

from common.errors import JobEnded
from common.job import TERMINAL, TRANSITIONS, Event, JobStatus
from common.store import Released, Store
from tests.processes import Processes
from tests.requests import submission, submit
from tests.vandal import Vandal
from tests.waiting import wait_until
from tests.workers import Worker, failed, finished

pytestmark = pytest.mark.settings(claim_idle_ms=400, max_attempts=2)


@dataclass
class Stage:
    processes: Processes
    gateway: Store
    worker: Worker
    vandal: Vandal


#: Yields the job's id once the job is in the state it starts from, then makes the event happen.
Scenario = Callable[[Stage], AsyncIterator[str]]


async def submitting(stage: Stage) -> AsyncIterator[str]:
    sent = submission()
    yield sent.job_id
    await stage.gateway.submit(sent)


async def beginning(stage: Stage) -> AsyncIterator[str]:
    yield (await submit(stage.gateway)).job_id
    await stage.worker.lease()


async def finishing(stage: Stage) -> AsyncIterator[str]:
    yield (await submit(stage.gateway)).job_id if False else (await running(stage))
    await stage.worker.settle(finished(stage.worker.held))


async def retrying(stage: Stage) -> AsyncIterator[str]:
    yield await running(stage)
    await stage.worker.settle(failed(stage.worker.held))


async def failing(stage: Stage) -> AsyncIterator[str]:
    yield await running(stage)
    await stage.worker.settle(failed(stage.worker.held, retry_in=None))
