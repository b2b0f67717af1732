from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry
from starlette.types import Message

from api.events import KEEP_ALIVE, EventStream
from api.gateway import Gateway
from common.store import JobEvent, Store
from common.telemetry import GatewayMetrics
from tests.processes import Processes
from tests.requests import submit
from tests.waiting import wait_until
from tests.workers import Worker


def events(body: str) -> list[tuple[str, str, dict[str, Any]]]:
    """(id, event, data) of each event in a stream."""
    parsed: list[tuple[str, str, dict[str, Any]]] = []
    for block in body.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if "event" in fields:
            parsed.append((fields.get("id", ""), fields["event"], json.loads(fields["data"])))
    return parsed


async def follow(client: httpx.AsyncClient, job_id: str, after: str | None = None) -> httpx.Response:
    headers = {} if after is None else {"Last-Event-ID": after}
    return await client.get(f"/v1/jobs/{job_id}/events", headers=headers)


async def streamed(gateway: Store, worker: Worker) -> str:
    """A job that ended on its second attempt, with two chunks on each."""
    job = await submit(gateway, stream=True)
    for attempt in (1, 2):
        lease = await worker.lease(job.job_id)
        await gateway.append(lease, 1, f"{attempt}: one\n")
        await gateway.append(lease, 2, "two")
        await (worker.fail(lease) if attempt == 1 else worker.finish(lease))
    return job.job_id


async def test_a_stream_tells_the_whole_story(
    client: httpx.AsyncClient, gateway: Store, worker: Worker
) -> None:
    answer = await follow(client, await streamed(gateway, worker))
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-store"
    told = events(answer.text)
    chunks = [(data["attempt"], data["text"]) for _, kind, data in told if kind == "chunk"]
    assert chunks == [(1, "1: one\n"), (1, "two"), (2, "2: one\n"), (2, "two")]
    kinds = [kind for _, kind, _ in told]
    assert kinds.index("attempt", kinds.index("chunk") + 1) < len(kinds) - 1
    states = [data["status"] for _, kind, data in told if kind == "state"]
    assert (states[0], states[-1]) == ("queued", "succeeded")


async def test_the_last_event_holds_the_whole_job(
    client: httpx.AsyncClient, gateway: Store, worker: Worker
) -> None:
    job_id = await streamed(gateway, worker)
    _, kind, data = events((await follow(client, job_id)).text)[-1]
    assert (kind, data["status"], data["attempt"]) == ("state", "succeeded", 2)
    assert data["job"] == (await client.get(f"/v1/jobs/{job_id}")).json()


async def test_a_stream_goes_on_after_any_event(
    client: httpx.AsyncClient, gateway: Store, worker: Worker
) -> None:
    job_id = await streamed(gateway, worker)
    told = events((await follow(client, job_id)).text)
    for place, (event_id, _, _) in enumerate(told[:-1]):
        assert events((await follow(client, job_id, event_id)).text) == told[place + 1 :]


async def test_after_the_last_event_there_is_nothing_to_come_back_for(
    client: httpx.AsyncClient, gateway: Store, worker: Worker
) -> None:
    job_id = await streamed(gateway, worker)
    last = events((await follow(client, job_id)).text)[-1][0]
    assert (await follow(client, job_id, last)).status_code == 204


async def test_without_stream_the_state_is_told_and_then_the_end(
    client: httpx.AsyncClient, gateway: Store, worker: Worker
) -> None:
    job = await submit(gateway)
    await worker.run()
    [(event_id, kind, data)] = events((await follow(client, job.job_id)).text)
    assert (event_id, kind, data["status"]) == ("", "state", "succeeded")


async def test_a_silent_stream_is_kept_alive(
    processes: Processes, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.events.KEEP_ALIVE_S", 0.02)
    store = await processes.open()
    registry = CollectorRegistry()
    gateway = Gateway(
        store=store, settings=processes.settings(), registry=registry, metrics=GatewayMetrics(registry)
    )
    job = await submit(store)
    told: list[bytes] = []

    async def send(message: Message) -> None:
        told.append(message.get("body", b""))

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    stream = EventStream(gateway, job.job_id, aiter_of(store, job.job_id))
    following = asyncio.create_task(stream({"type": "http"}, receive, send))
    await wait_until(lambda: told.count(KEEP_ALIVE) >= 2)
    await worker.run(job.job_id)
    await following
    assert b"succeeded" in told[-2]


async def aiter_of(store: Store, job_id: str) -> AsyncGenerator[JobEvent]:
    async for event in store.events(job_id):
        yield event
