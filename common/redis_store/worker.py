"""The worker's part of the port: renewing, appending and settling. Claiming is in claims.py."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta

from common.errors import StoreUnavailable
from common.job import MAX_REFUNDS
from common.redis_store import records
from common.redis_store.claims import Claims
from common.redis_store.scripts import Scripts
from common.settings import Settings
from common.store import Claimed, Failed, Finished, Lease, LeaseState, Released, Settled, Settlement


class WorkerPart:
    _settings: Settings
    _scripts: Scripts
    _claims: Claims

    async def claim(self, limit: int, wait: timedelta, *, fresh: bool = True) -> Claimed:
        return await self._claims.claim(limit, wait, fresh=fresh)

    async def interrupt(self) -> None:
        await self._claims.interrupt()

    async def extend(self, leases: Sequence[Lease]) -> list[LeaseState]:
        if not leases:
            return []
        items = [(lease.job_id, lease.token) for lease in leases]
        words = await self._scripts.extend(worker=self._claims.worker, leases=items)
        states = [LeaseState(word) for word in words]
        self._claims.let_go(
            lease for lease, state in zip(leases, states, strict=True) if state is not LeaseState.HELD
        )
        return states

    async def append(self, lease: Lease, seq: int, text: str) -> bool:
        return await self._scripts.append(job_id=lease.job_id, token=lease.token, seq=seq, text=text) == "ok"

    async def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        finished = [item for item in settlements if isinstance(item, Finished)]
        failed = [item for item in settlements if isinstance(item, Failed)]
        released = [item for item in settlements if isinstance(item, Released)]
        try:
            words = await asyncio.gather(self._finish(finished), self._fail(failed), self._release(released))
        except StoreUnavailable:
            raise
        except Exception:
            # Whoever gives up on it must be able to get the job again.
            self._claims.let_go(item.lease for item in settlements)
            raise
        self._claims.let_go(item.lease for item in settlements)
        by_kind = {
            kind: iter(answers) for kind, answers in zip((Finished, Failed, Released), words, strict=True)
        }
        return [Settled(next(by_kind[type(item)])) for item in settlements]

    async def _finish(self, items: Sequence[Finished]) -> list[str]:
        leases = [
            (
                item.lease.job_id,
                item.lease.token,
                records.encode_result(item.result),
                records.encode_shown(item.lease.request),
            )
            for item in items
        ]
        return await self._scripts.finish(leases=leases) if leases else []

    async def _fail(self, items: Sequence[Failed]) -> list[str]:
        leases = [
            (
                item.lease.job_id,
                item.lease.token,
                -1 if item.retry_in is None else round(item.retry_in.total_seconds() * 1000),
                item.error.cause.value,
                records.encode_text(item.error.message),
            )
            for item in items
        ]
        attempts = self._settings.max_attempts
        return await self._scripts.fail(max_attempts=attempts, leases=leases) if leases else []

    async def _release(self, items: Sequence[Released]) -> list[str]:
        leases = [(item.lease.job_id, item.lease.token) for item in items]
        if not leases:
            return []
        return await self._scripts.release(
            max_attempts=self._settings.max_attempts, max_refunds=MAX_REFUNDS, leases=leases
        )
