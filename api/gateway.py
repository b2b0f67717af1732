"""What every request shares, and the task that keeps it fresh."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry

from api.drain import DrainRate
from api.problems import NotReady
from common.errors import LabError, StoreRefused, StoreUnavailable
from common.settings import Settings
from common.store import Store
from common.telemetry import GatewayMetrics

log = logging.getLogger(__name__)

SAMPLE_EVERY_S = 1.0


@dataclass(slots=True, kw_only=True)
class Gateway:
    store: Store
    settings: Settings
    registry: CollectorRegistry
    metrics: GatewayMetrics
    drain: DrainRate = field(default_factory=DrainRate)
    #: Set when the process is told to stop: nobody may go on waiting.
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    #: Whether the store has been seen to keep its promises; until then no job is accepted.
    trusted: bool = False

    async def trust(self) -> None:
        """Raises StoreRefused, StoreUnavailable."""
        if not self.trusted:
            await self.store.start()
            self.trusted = True

    def must_be_trusted(self) -> None:
        """Raises StoreUnavailable: a 202 is a promise, and this store has not been checked yet."""
        if not self.trusted:
            raise StoreUnavailable

    async def ready(self) -> None:
        """Raises StoreUnavailable, NotReady."""
        if self.closing.is_set():
            raise NotReady("The gateway is shutting down.")
        self.must_be_trusted()
        await self.store.ping()


async def keep_watch(gateway: Gateway, on_refused: Callable[[StoreRefused], None]) -> None:
    """Reads the backlog every second, and checks a store that was away when the gateway started."""
    away = not gateway.trusted
    while True:
        try:
            await gateway.trust()
            backlog = await gateway.store.depth()
        except StoreRefused as error:
            on_refused(error)
            return
        except LabError as error:
            if not away:
                log.warning("store away", extra={"error": str(error)})
            away = True
            gateway.metrics.backlog.show_unknown()
        else:
            if away:
                log.info("store back")
            away = False
            gateway.drain.sample(backlog)
            gateway.metrics.backlog.show(backlog)
        await asyncio.sleep(SAMPLE_EVERY_S)
