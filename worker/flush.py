"""Group commit: whatever outcomes have gathered go to the store in one call."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from datetime import timedelta

from common.errors import StoreError, StoreUnavailable
from common.patience import Patience
from common.store import Failed, Settled, Settlement, WorkerStore
from worker.admission import Admission
from worker.hold import Hold
from worker.tally import Tally

log = logging.getLogger(__name__)

#: As much as a store takes in one call.
LARGEST_BATCH = 256

Outcomes = Sequence[tuple[Hold, Settlement]]


class Flusher:
    """A batch sizes itself: alone, an outcome waits for nobody; while one call is out, the rest gathers."""

    def __init__(
        self,
        store: WorkerStore,
        admission: Admission,
        tally: Tally,
        on_retry: Callable[[timedelta], None],
    ) -> None:
        self._store = store
        self._admission = admission
        self._holdings = admission.holdings
        self._tally = tally
        self._on_retry = on_retry
        self._gathered: list[tuple[Hold, Settlement]] = []
        self._arrived = asyncio.Event()
        self._patience = Patience("Storing outcomes")

    def hand_over(self, hold: Hold, settlement: Settlement) -> None:
        self._holdings.hand_over(hold)
        self._gathered.append((hold, settlement))
        self._arrived.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._arrived.wait()
            batch = self._gathered[:LARGEST_BATCH]
            del self._gathered[:LARGEST_BATCH]
            if not self._gathered:
                self._arrived.clear()
            self._committed(batch, await self._answers(batch))

    async def _answers(self, batch: Outcomes) -> Sequence[Settled | None]:
        """Goes on until the store has answered; settling twice is safe. None: it cannot be stored."""
        while True:
            try:
                answers = await self._store.settle([settlement for _, settlement in batch])
            except StoreUnavailable as error:
                self._admission.commits(False)
                await asyncio.sleep(self._patience.failed(error))
            except Exception as error:
                # Also what no store means to raise: one outcome that breaks it must not end the worker.
                return await self._singly(batch, error)
            else:
                self._answered()
                return answers

    async def _singly(self, batch: Outcomes, error: Exception) -> Sequence[Settled | None]:
        """One outcome that cannot be stored must not keep the others back."""
        if len(batch) > 1:
            return [answer for outcome in batch for answer in await self._answers([outcome])]
        lease = batch[0][0].lease
        traceback = None if isinstance(error, StoreError) else error
        about = {"job_id": lease.job_id, "error": str(error)}
        log.error("outcome given up", extra=about, exc_info=traceback)
        # The store did answer. Left as away, it would never be asked again: no claims, so no outcomes.
        self._answered()
        return [None]

    def _answered(self) -> None:
        self._admission.commits(True)
        self._patience.succeeded()

    def _committed(self, batch: Outcomes, answers: Sequence[Settled | None]) -> None:
        self._tally.settled(batch, answers)
        for (hold, settlement), answer in zip(batch, answers, strict=True):
            self._holdings.drop(hold)
            if answer is Settled.RETRYING and isinstance(settlement, Failed) and settlement.retry_in:
                self._on_retry(settlement.retry_in)
