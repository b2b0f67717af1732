"""The event loop's pulse: a loop that was held up shows it, and the watch ends with its bell."""

from __future__ import annotations

import asyncio

from prometheus_client import CollectorRegistry, Gauge

from common.patience import Bell
from common.pulse import beats, watch_loop
from tests.waiting import hold_up_the_loop, wait_until


def gauge(registry: CollectorRegistry) -> Gauge:
    return Gauge("lag", "Of a test.", registry=registry)


async def test_a_loop_that_was_held_up_is_late_by_the_rest_of_it() -> None:
    registry = CollectorRegistry()
    asyncio.get_running_loop().call_soon(hold_up_the_loop, 0.2)
    late = await anext(beats(gauge(registry), Bell(), every_s=0.05))
    assert late >= 0.1
    assert registry.get_sample_value("lag") == late


async def test_the_watch_ends_with_its_bell() -> None:
    bell = Bell()
    watch = asyncio.create_task(watch_loop(gauge(CollectorRegistry()), bell, every_s=60))
    bell.stop()
    await wait_until(watch.done)
