"""Runs faults one after the other, in as few labs as their settings allow."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from common.errors import LabError
from lab.client import Api
from lab.conservation import Conservation
from lab.exits import Exit
from lab.faults.fault import Fault, Observation
from lab.faults.matrix import SETTINGS, WORKERS
from lab.faults.report import Report, Row
from lab.faults.stage import Stage
from lab.run import run_lab
from lab.system import Plan, Ready, System

#: A fault that is not over by then is not as expected.
WITHIN_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Audience:
    """Who is told what happens."""

    begins: Callable[[Fault], None]
    step: Callable[[str], None]
    ended: Callable[[Fault, Observation, Row], None]


@dataclass(slots=True)
class Run:
    audience: Audience
    waiting: deque[Fault]
    rows: list[Row] = field(default_factory=list[Row])
    conservation: Conservation = field(default_factory=Conservation)

    async def lab(self) -> Exit:
        """A fresh lab for the next fault, and for those after it that can share it."""
        settings = self.waiting[0].settings
        plan = Plan(port=0, workers=WORKERS, settings={**SETTINGS, **settings})

        async def work(system: System, ready: Ready) -> Exit:
            kept = Conservation()
            async with Api(ready.api) as api:
                while self.waiting and self.waiting[0].settings == settings:
                    row, kept = await self._fault(self.waiting.popleft(), system, api, kept)
                    # Whatever it has left behind is not the next one's to explain.
                    if not row.good:
                        break
            self.conservation += kept
            return Exit.OK

        return await run_lab(plan, self.audience.step, work, interrupted=Exit.FAILED)

    async def _fault(
        self, fault: Fault, system: System, api: Api, kept: Conservation
    ) -> tuple[Row, Conservation]:
        self.audience.begins(fault)
        stage = Stage(system, api, (await api.stats()).value, self.audience.step)
        try:
            async with asyncio.timeout(WITHIN_S):
                observation = await fault.run(stage)
                await system.whole()
        except (LabError, OSError, TimeoutError) as error:
            seen = " ".join(str(error).split()) or f"not over after {WITHIN_S:g} s"
            observation = Observation(seen=seen, right=False, recovery=timedelta(0))
        account = await stage.books.account()
        row = Row.of(fault, observation, account)
        self.rows.append(row)
        self.audience.ended(fault, observation, row)
        return row, Conservation.of(account.stats) if account.stats else kept


async def run_faults(faults: Sequence[Fault], audience: Audience) -> Report | None:
    """None when somebody interrupted it. Raises what the start of a lab raises."""
    began = time.monotonic()
    run = Run(audience, deque(faults))
    while run.waiting:
        if await run.lab() is not Exit.OK:
            return None
    seconds = round(time.monotonic() - began, 1)
    return Report(faults=run.rows, conservation=run.conservation, seconds=seconds)
