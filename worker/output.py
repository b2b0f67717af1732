"""The text of one attempt: gathered, measured, and for stream jobs written to the event log."""

from __future__ import annotations

import asyncio
import logging

from common.errors import StoreError, StoreUnavailable
from common.job import Result
from common.patience import Patience
from common.store import Lease, WorkerStore
from worker.backends.base import Completion
from worker.retry import ResultTooLarge

log = logging.getLogger(__name__)


class Output:
    def __init__(self, max_bytes: int, chunks: ChunkLog | None) -> None:
        self._max_bytes = max_bytes
        self._chunks = chunks
        self._bytes = 0
        self._pieces: list[str] = []

    def add(self, text: str) -> None:
        """Raises ResultTooLarge: a result is whole or it is none."""
        self._bytes += len(text) if text.isascii() else len(text.encode())
        if self._bytes > self._max_bytes:
            raise ResultTooLarge(f"The result is larger than {self._max_bytes} bytes.")
        self._pieces.append(text)
        if self._chunks is not None:
            self._chunks.add(text)

    async def written(self) -> None:
        """Returns once the event log has all of it: the end of the job must come after its text."""
        if self._chunks is not None:
            await self._chunks.written()

    def result(self, completion: Completion) -> Result:
        return Result(
            text="".join(self._pieces), finish_reason=completion.finish_reason, usage=completion.usage
        )


class ChunkLog:
    """Appends chunks in order, one call at a time; what comes in meanwhile goes out as one."""

    def __init__(self, store: WorkerStore, lease: Lease) -> None:
        self._store = store
        self._lease = lease
        self._waiting: list[str] = []
        self._seq = 0
        self._lost = False
        # A task of its own, so that closing the model call never cancels a command half way.
        self._writer: asyncio.Task[None] | None = None

    def add(self, text: str) -> None:
        if self._lost or not text:
            return
        self._waiting.append(text)
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write())

    async def written(self) -> None:
        if self._writer is not None:
            await asyncio.shield(self._writer)

    async def _write(self) -> None:
        while self._waiting and not self._lost:
            text = "".join(self._waiting)
            self._waiting.clear()
            self._seq += 1
            self._lost = not await self._append(text)

    async def _append(self, text: str) -> bool:
        patience = Patience("Appending a chunk")
        while True:
            try:
                kept = await self._store.append(self._lease, self._seq, text)
            except StoreUnavailable as error:
                # The same text under the same number again: the first try may have arrived.
                await asyncio.sleep(patience.failed(error))
            except StoreError as error:
                # The event log is damaged; the job itself is not.
                log.error("chunk given up", extra={"job_id": self._lease.job_id, "error": str(error)})
                return False
            else:
                patience.succeeded()
                return kept
