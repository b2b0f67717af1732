"""The event loop's pulse. A loop that is late for its beats renews, decides and answers late, too."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator

from prometheus_client import Gauge

from common.patience import Bell

BEAT_S = 1.0


async def beats(lag: Gauge, bell: Bell, every_s: float = BEAT_S) -> AsyncGenerator[float]:
    """The delay of each beat, in seconds, which the gauge shows too. Ends when the bell is stopped."""
    due = time.monotonic() + every_s
    while await bell.rest(due - time.monotonic()):
        late = max(0.0, time.monotonic() - due)
        lag.set(late)
        yield late
        due = time.monotonic() + every_s


async def watch_loop(lag: Gauge, bell: Bell, every_s: float = BEAT_S) -> None:
    async for _ in beats(lag, bell, every_s):
        pass
