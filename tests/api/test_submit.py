from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from common.job import job_id_time
from common.store import Store
from tests.api.conftest import Connect
from tests.api.problem import problem
from tests.waiting import wait_until
from tests.workers import Worker

HELLO = {"prompt": "hello"}


async def test_an_accepted_job_says_where_to_look(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/jobs", json=HELLO)
    assert answer.status_code == 202
    body = answer.json()
    assert job_id_time(body["job_id"])
    path = f"/v1/jobs/{body['job_id']}"
    assert answer.headers["location"] == path
    assert "idempotency-replayed" not in answer.headers
    assert body == {
        "job_id": body["job_id"],
        "status": "queued",
        "urls": {"self": path, "events": f"{path}/events", "cancel": path},
        "queue": {"position": 0, "eta_s": None},
    }
    assert (await client.get(path)).json()["status"] == "queued"


async def test_what_was_sent_is_what_the_worker_gets(client: httpx.AsyncClient, worker: Worker) -> None:
    sent = {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "\u00fcn\u00ef"}]}],
        "model": "some/model",
        "params": {"temperature": 0.5, "stop": ["\n"], "seed": 18446744073709551616},
        "timeout_s": 2,
        "expires_in_s": 60.5,
        "stream": True,
        "metadata": {"run": 7, "tags": ["a", None]},
    }
    assert (await client.post("/v1/jobs", json=sent)).status_code == 202
    request = (await worker.lease()).request
    assert request.messages == tuple(sent["messages"])  # pyright: ignore[reportArgumentType]
    assert (request.model, request.params) == (sent["model"], sent["params"])
    assert (request.timeout_s, request.expires_in_s, request.stream) == (2, 60.5, True)
    job = (await client.get("/v1/jobs")).json()["jobs"][0]
    assert job["metadata"] == sent["metadata"]
    assert job["model"] == sent["model"]
    assert job["deadline_at"].endswith("Z")


async def test_position_counts_the_jobs_ahead(client: httpx.AsyncClient) -> None:
    places = [(await client.post("/v1/jobs", json=HELLO)).json()["queue"]["position"] for _ in range(3)]
    assert places == [0, 1, 2]


@pytest.mark.parametrize("by", ["field", "header", "both"])
async def test_the_same_key_gives_the_same_job(client: httpx.AsyncClient, by: str) -> None:
    key = f"key by {by} \u00fc"
    body = HELLO if by == "header" else {**HELLO, "idempotency_key": key}
    headers = {} if by == "field" else {b"Idempotency-Key": key.encode()}
    first = await client.post("/v1/jobs", json=body, headers=headers)
    again = await client.post("/v1/jobs", json=body, headers=headers)
    assert (first.status_code, again.status_code) == (202, 202)
    assert first.json()["job_id"] == again.json()["job_id"]
    assert again.headers["idempotency-replayed"] == "true"
    assert again.json()["queue"] == {"position": None, "eta_s": None}
    assert (await client.get("/v1/stats")).json()["submitted"] == 1


async def test_a_key_means_the_same_in_header_and_field(client: httpx.AsyncClient) -> None:
    first = await client.post("/v1/jobs", json=HELLO, headers={"Idempotency-Key": "one"})
    again = await client.post("/v1/jobs", json={"idempotency_key": "one", **HELLO, "stream": False})
    assert again.headers["idempotency-replayed"] == "true"
    assert first.json()["job_id"] == again.json()["job_id"]


async def test_one_key_for_two_bodies_is_refused(client: httpx.AsyncClient) -> None:
    await client.post("/v1/jobs", json={**HELLO, "idempotency_key": "one"})
    answer = await client.post("/v1/jobs", json={"prompt": "other", "idempotency_key": "one"})
    problem(answer, 422, "idempotency_key")


async def test_a_full_queue_refuses_until_it_has_drained(connect: Connect, worker: Worker) -> None:
    client = await connect(max_queue_depth=2)
    for _ in range(2):
        assert (await client.post("/v1/jobs", json=HELLO)).status_code == 202
    refused = await client.post("/v1/jobs", json=HELLO)
    problem(refused, 429)
    assert refused.headers["retry-after"] == "30"
    await worker.run()
    assert (await client.post("/v1/jobs", json=HELLO)).status_code == 202


async def test_a_draining_queue_says_when_to_come_back(connect: Connect, worker: Worker) -> None:
    client = await connect(max_queue_depth=5)
    for _ in range(5):
        await client.post("/v1/jobs", json=HELLO)

    async def drains() -> bool:
        stats = (await client.get("/v1/stats")).json()
        return bool(stats["drain_rate"])

    await worker.run()
    await wait_until(drains)
    accepted = (await client.post("/v1/jobs", json=HELLO)).json()
    assert accepted["queue"]["eta_s"] > 0
    refused = await client.post("/v1/jobs", json=HELLO)
    problem(refused, 429)
    assert 1 <= int(refused.headers["retry-after"]) < 30


async def test_no_limit_means_no_limit(connect: Connect) -> None:
    client = await connect(max_queue_depth=0)
    for _ in range(3):
        assert (await client.post("/v1/jobs", json=HELLO)).status_code == 202


class TestBodySize:
    LIMIT = 1000

    @pytest.fixture
    async def client(self, connect: Connect) -> httpx.AsyncClient:
        return await connect(max_body_bytes=self.LIMIT)

    def body(self, size: int) -> bytes:
        frame = b'{"prompt":"%b"}'
        return frame % (b"x" * (size - len(frame) + 2))

    async def test_a_body_of_just_the_limit_is_accepted(self, client: httpx.AsyncClient) -> None:
        assert (await client.post("/v1/jobs", content=self.body(self.LIMIT))).status_code == 202

    @pytest.mark.parametrize("path", ["/v1/jobs", "/v1/dlq/redrive"])
    async def test_one_byte_more_is_refused(self, client: httpx.AsyncClient, path: str) -> None:
        problem(await client.post(path, content=self.body(self.LIMIT + 1)), 413)

    async def test_an_endless_body_without_a_length_is_read_to_the_limit(
        self, client: httpx.AsyncClient
    ) -> None:
        read = 0

        async def endless() -> AsyncIterator[bytes]:
            nonlocal read
            while True:
                read += 100
                yield b"x" * 100

        problem(await client.post("/v1/jobs", content=endless()), 413)
        assert read <= self.LIMIT + 100

    async def test_a_body_in_pieces_is_put_together(self, client: httpx.AsyncClient) -> None:
        async def pieces() -> AsyncIterator[bytes]:
            for byte in b'{"prompt": "in pieces"}':
                yield bytes([byte])

        assert (await client.post("/v1/jobs", content=pieces())).status_code == 202


async def test_a_body_that_does_not_arrive_is_not_waited_for(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.answers.BODY_TIMEOUT_S", 0.05)

    async def stalled() -> AsyncIterator[bytes]:
        yield b'{"prompt":'
        await asyncio.Event().wait()

    problem(await client.post("/v1/jobs", content=stalled()), 408)


async def test_refusals_are_counted_by_reason(connect: Connect, gateway: Store) -> None:
    client = await connect(max_queue_depth=1, max_body_bytes=100)
    await client.post("/v1/jobs", json={**HELLO, "idempotency_key": "k"})
    await client.post("/v1/jobs", json={**HELLO, "idempotency_key": "k"})
    await client.post("/v1/jobs", json=HELLO)
    await client.post("/v1/jobs", json={"prompt": "other", "idempotency_key": "k"})
    await client.post("/v1/jobs", json={})
    await client.post("/v1/jobs", json={"prompt": "x" * 100})
    lines = (await client.get("/metrics")).text.splitlines()
    for reason in ("full", "conflict", "invalid", "too_large"):
        assert f'iwl_jobs_refused_total{{reason="{reason}"}} 1.0' in lines
    assert "iwl_jobs_submitted_total 1.0" in lines
    assert "iwl_jobs_replayed_total 1.0" in lines
