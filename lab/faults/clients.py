"""Clients as the guarantees ask for them: an idempotency key, and the same call again after an error."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from uuid import uuid4

from lab.client import Api, Patience
from lab.exits import ApiRefused, ApiUnreachable

CLIENTS = 8
#: Between two jobs of one client, so that a fault finds them at it.
PAUSE_S = 0.01


def job_body(latency_ms: int, **orders: object) -> dict[str, object]:
    """A submission; `orders` are for the mock model."""
    return {"prompt": "What survives?", "params": {"mock": {"latency_ms": latency_ms, **orders}}}


class Clients:
    def __init__(self, api: Api, jobs: int, latency_ms: int) -> None:
        self.accepted: list[str] = []
        #: Calls that failed, by HTTP status; 0 is no answer.
        self.failures: Counter[int] = Counter()
        self._api = api
        self._numbers: Iterator[int] = iter(range(jobs))
        self._latency_ms = latency_ms
        #: When the first call was accepted that had failed before.
        self.served_again_at: datetime | None = None
        self._more = asyncio.Event()

    async def run(self) -> None:
        """Until every job is accepted. Raises ApiUnreachable and ApiRefused when patience ends."""
        await asyncio.gather(*(self._client() for _ in range(CLIENTS)))

    async def have(self, count: int) -> None:
        """Returns once so many jobs are accepted."""
        while len(self.accepted) < count:
            self._more.clear()
            await self._more.wait()

    async def failed_with(self, status: int) -> None:
        """Returns once a call has failed like that."""
        while not self.failures[status]:
            self._more.clear()
            await self._more.wait()

    async def _client(self) -> None:
        for _ in self._numbers:
            await self._submit({**job_body(self._latency_ms), "idempotency_key": uuid4().hex})
            await asyncio.sleep(PAUSE_S)

    async def _submit(self, body: dict[str, object]) -> None:
        patience, failed = Patience(), False
        while True:
            try:
                accepted = (await self._api.submit(body)).value
            except (ApiUnreachable, ApiRefused) as error:
                failed = True
                self.failures[error.status if isinstance(error, ApiRefused) else 0] += 1
                self._more.set()
                await patience.after(error)
            else:
                break
        self.accepted.append(accepted.job_id)
        if failed and self.served_again_at is None:
            self.served_again_at = datetime.now(UTC)
        self._more.set()
