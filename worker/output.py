"""The text of one attempt: gathered, measured, and for stream jobs written to the event log."""

from __future__ import annotations

import asyncio
import logging
from typing import Annotated

import msgspec

from common.errors import StoreError, StoreUnavailable
from common.job import Result, Usage
from common.patience import Patience
from common.store import Lease, WorkerStore
from worker.backends.base import Completion, Malformed
from worker.retry import ResultTooLarge

log = logging.getLogger(__name__)

#: Past it, readers whose numbers are doubles would see another count.
LARGEST_COUNT = 2**53 - 1

Count = Annotated[int, msgspec.Meta(ge=0, le=LARGEST_COUNT)]


class Counts(msgspec.Struct):
    prompt_tokens: Count
    completion_tokens: Count


class Ending(msgspec.Struct):
    """A completion as it can be stored, read back and counted: a backend's own may hold anything."""

    finish_reason: str | None
    usage: Counts


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

    def result(self, completion: object) -> Result:
        """Raises Malformed."""
        ending = _checked(completion)
        reason, counts = ending.finish_reason, ending.usage
        return Result(
            text="".join(self._pieces),
            # Plain values: msgspec encodes no subclass of them, and no lone surrogate.
            finish_reason=None if reason is None else reason.encode().decode(),
            usage=Usage(
                prompt_tokens=int(counts.prompt_tokens), completion_tokens=int(counts.completion_tokens)
            ),
        )


def _checked(completion: object) -> Ending:
    if not isinstance(completion, Completion):
        kind = type(completion).__name__
        raise Malformed(f"The backend yielded {kind}, which is neither str nor Completion.")
    try:
        return msgspec.convert(completion, Ending, from_attributes=True)
    except msgspec.ValidationError as error:
        raise Malformed(f"The backend's Completion cannot be stored: {error}") from error


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
