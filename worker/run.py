"""One attempt of one job: call the model, gather its output, say what came of it."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import aclosing

from common.errors import LabError
from common.settings import Settings
from common.store import Finished, Lease, Released, Settlement, WorkerStore
from worker.backends.base import Backend, BrokenStream
from worker.hold import GONE, Hold, Stop, Stopped
from worker.output import ChunkLog, Output
from worker.retry import Backoff, LeaseStale, settle_error
from worker.tally import Tally

log = logging.getLogger(__name__)


class Attempts:
    """Runs attempts. What one attempt is about lives in its own `Output` and `Hold` only."""

    def __init__(self, settings: Settings, store: WorkerStore, backend: Backend, tally: Tally) -> None:
        self._store = store
        self._backend = backend
        self._tally = tally
        self._backoff = Backoff.of(settings)
        self._max_bytes = settings.max_result_bytes
        self._longest_s = settings.job_timeout_ms / 1000
        self._loop = asyncio.get_running_loop()

    def hold(self, lease: Lease) -> Hold:
        asked = lease.request.timeout_s
        limit_s = self._longest_s if asked is None else min(asked, self._longest_s)
        return Hold(lease, limit_s, self._loop)

    async def run(self, hold: Hold) -> Settlement | None:
        """What to settle, or None when the lease is gone."""
        output = self._output(hold.lease)
        try:
            outcome = await self._outcome(hold, output)
            await output.written()
        except Exception as error:
            # Let through, it would end the worker, and every other job with it.
            outcome = self._failed(hold.lease, error)
        hold.ended = time.monotonic()
        return outcome

    async def _outcome(self, hold: Hold, output: Output) -> Settlement | None:
        try:
            completion = await self._call(hold, output)
            return Finished(lease=hold.lease, result=output.result(completion))
        except Stopped as stopped:
            return self._stopped(hold, stopped.why)
        except Exception as error:
            return self._failed(hold.lease, error)

    def _failed(self, lease: Lease, error: Exception) -> Settlement:
        if not isinstance(error, LabError | TimeoutError):
            # Somebody's own backend: where in it, only the traceback says.
            about = {"job_id": lease.job_id, "attempt": lease.attempt}
            log.error("the backend raised", extra=about, exc_info=error)
        return settle_error(lease, error, self._backoff)

    async def _call(self, hold: Hold, output: Output) -> object:
        """What came after the last text; whether that is a completion, `Output.result` says."""
        lease = hold.lease
        with hold:
            self._tally.called()
            async with aclosing(self._backend.generate(lease.request, lease.attempt)) as pieces:
                async for piece in pieces:
                    if not isinstance(piece, str):
                        return piece
                    output.add(piece)
        raise BrokenStream("the backend ended without a completion")

    def _stopped(self, hold: Hold, why: Stop) -> Settlement | None:
        lease = hold.lease
        if why in GONE:
            return None
        if why is Stop.DRAIN:
            return Released(lease=lease)
        if why is Stop.STALE:
            return settle_error(lease, LeaseStale(), self._backoff)
        error = TimeoutError(f"The attempt took longer than {hold.limit_s:g} s.")
        return settle_error(lease, error, self._backoff)

    def _output(self, lease: Lease) -> Output:
        chunks = ChunkLog(self._store, lease) if lease.request.stream else None
        return Output(self._max_bytes, chunks)
