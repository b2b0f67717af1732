"""One part, played by one process after another: when it dies, the next takes over."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from tests.chaos.spots import Spot
from tests.chaos.stage import Process, Stage
from tests.chaos.zygote import Order


class Heir(StrEnum):
    """Who comes after a dead process."""

    #: The same container, restarted.
    SAME = "same"
    #: Another one: it has to wait until the dead one's leases have run out.
    STRANGER = "stranger"


class Fault(AssertionError):
    """A promise was broken, or a process did what none should do."""


@dataclass(frozen=True, kw_only=True)
class Life:
    spot: Spot | None = None
    heir: Heir = Heir.SAME
    sabotage: str | None = None


class Succession:
    def __init__(
        self,
        stage: Stage,
        service: str,
        settings: Mapping[str, str],
        lives: tuple[Life, ...],
        on_death: Callable[[], Awaitable[None]],
    ) -> None:
        """Lives are lived in order, all later ones without a spot. `on_death` looks at what is left."""
        self._stage = stage
        self._service = service
        self._settings = settings
        self._lives = lives
        self._on_death = on_death
        self._dismissed: Process | None = None
        self._closing = False
        self._changed = asyncio.Event()
        self.processes: list[Process] = []
        self.deaths = 0

    async def keep(self) -> None:
        """Until closed. Raises Fault."""
        instance, number = 0, 0
        while not self._closing:
            life = self._lives[number] if number < len(self._lives) else Life()
            await self._live(life, f"{self._service}-{instance}")
            number += 1
            instance += life.heir is Heir.STRANGER

    async def url(self) -> str:
        """Where the gateway of the day listens."""
        while True:
            self._changed.clear()
            process = self.processes[-1] if self.processes else None
            if process and not process.ended.is_set() and (url := await asyncio.shield(process.url)):
                return url
            await self._changed.wait()

    def dismiss(self) -> None:
        """SIGTERM for the first process, if it is still there."""
        if len(self.processes) == 1 and not self.processes[0].ended.is_set():
            self._dismissed = self.processes[0]
            self._dismissed.signal(signal.SIGTERM)

    async def left(self) -> None:
        """Once the process that was dismissed has gone."""
        if self._dismissed is not None:
            await self._dismissed.ended.wait()

    def close(self) -> None:
        self._closing = True
        for process in self.processes[-1:]:
            process.signal(signal.SIGKILL)

    async def _live(self, life: Life, instance: str) -> None:
        settings = {**self._settings, "instance": instance}
        order = Order(service=self._service, settings=settings, spot=life.spot, sabotage=life.sabotage)
        process, watching = self._stage.start(order)
        self.processes.append(process)
        self._changed.set()
        try:
            await process.born.wait()
            if self._closing:
                process.signal(signal.SIGKILL)
            await watching
        finally:
            process.signal(signal.SIGKILL)
            watching.cancel()
        if self._closing:
            return
        self.deaths += process.struck
        if not process.struck and not (process is self._dismissed and process.status == 0):
            raise Fault(f"{self._service} ended by itself: {process.status}\n" + "\n".join(process.log[-5:]))
        await self._on_death()
