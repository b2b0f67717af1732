"""Clients that submit, and a worker played by hand, as long as the store is there."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from common.errors import StoreUnavailable
from common.job import Submission
from common.store import Settled, Store
from tests.processes import Processes
from tests.requests import submission
from tests.workers import Worker, finished

CLIENTS = 3


class Traffic:
    """What was answered before the store went away."""

    def __init__(self) -> None:
        #: Submissions that were accepted.
        self.accepted: list[Submission] = []
        #: Jobs whose result was stored.
        self.succeeded: list[str] = []

    async def flow(self, here: Processes) -> None:
        """Until the store is away for everybody."""
        gateways = [await here.open() for _ in range(CLIENTS)]
        worker = await here.hire()
        async with asyncio.TaskGroup() as tasks:
            for gateway in gateways:
                tasks.create_task(self._submit(gateway))
            tasks.create_task(self._work(worker))

    async def _submit(self, gateway: Store) -> None:
        with suppress(StoreUnavailable):
            while True:
                sent = submission(idempotency_key=f"key {len(self.accepted)} {id(gateway)}")
                await gateway.submit(sent)
                self.accepted.append(sent)

    async def _work(self, worker: Worker) -> None:
        """Finishes every other job, and holds on to the rest."""
        with suppress(StoreUnavailable):
            while True:
                leases = (await worker.look(limit=4)).leases[::2]
                answers = await worker.store.settle([finished(lease) for lease in leases])
                assert set(answers) <= {Settled.SUCCEEDED}
                self.succeeded += [lease.job_id for lease in leases]
