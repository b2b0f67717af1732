"""8. A client does not know whether its submit arrived, and sends it again under the same key."""

from __future__ import annotations

import pytest

from common.errors import IdempotencyConflict
from common.store import Store
from tests.requests import submission


async def test_idempotency(gateway: Store) -> None:
    first = await gateway.submit(submission("Name a river.", idempotency_key="order-17"))
    again = await gateway.submit(submission("Name a river.", idempotency_key="order-17"))

    assert (first.replayed, again.replayed) == (False, True)
    assert again.job.job_id == first.job.job_id
    assert (await gateway.depth()).submitted == 1

    # The same key with another body is a mistake, and says so.
    with pytest.raises(IdempotencyConflict):
        await gateway.submit(submission("Name a lake.", idempotency_key="order-17"))
