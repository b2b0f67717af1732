"""10. A job submitted with `stream` shows its output while it runs. A reader may leave and come back."""

from __future__ import annotations

from common.job import JobStatus
from common.store import EventKind, Store
from tests.requests import submit
from tests.workers import Worker


async def test_streaming_events(gateway: Store, worker: Worker) -> None:
    job = await submit(gateway, "Name a river.", stream=True)
    lease = await worker.lease()
    for seq, text in enumerate(["Rh", "ine"], start=1):
        await worker.store.append(lease, seq, text)
    await worker.finish(lease, "Rhine")

    events = [event async for event in gateway.events(job.job_id)]
    assert "".join(event.text or "" for event in events) == "Rhine"
    assert [event.status for event in events if event.kind is EventKind.STATE] == [
        JobStatus.QUEUED,
        JobStatus.RUNNING,
        JobStatus.SUCCEEDED,
    ]

    # After the first chunk the connection broke: the id of the last event seen is the way back in.
    first_chunk = next(event for event in events if event.text == "Rh")
    rest = [event async for event in gateway.events(job.job_id, after=first_chunk.id)]
    assert "".join(event.text or "" for event in rest) == "ine"
