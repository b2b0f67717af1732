"""Every field a client can get wrong is refused by name."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from api.intake import MAX_METADATA_BYTES, MAX_METADATA_FIELDS, MAX_NESTING
from api.problems import MAX_ERRORS
from common.job import new_job_id
from tests.api.conftest import Connect
from tests.api.problem import problem

HELLO: dict[str, Any] = {"prompt": "hello"}


def nested(levels: int) -> object:
    value: object = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        ({}, ["prompt", "messages"]),
        ({"prompt": "a", "messages": [{"role": "user", "content": "b"}]}, ["prompt", "messages"]),
        ({"prompt": None}, ["prompt", "messages"]),
        ({"prompt": ""}, ["prompt"]),
        ({"prompt": 3}, ["prompt"]),
        ({"messages": []}, ["messages"]),
        ({"messages": {}}, ["messages"]),
        ({"messages": ["hello"]}, ["messages.0"]),
        ({"messages": [{"role": "user", "content": "a"}, {"content": "b"}]}, ["messages.1"]),
        ({**HELLO, "model": ""}, ["model"]),
        ({**HELLO, "model": 1}, ["model"]),
        ({**HELLO, "params": []}, ["params"]),
        ({**HELLO, "params": "x"}, ["params"]),
        ({**HELLO, "params": nested(1)}, ["params"]),
        ({**HELLO, "params": {"deep": nested(MAX_NESTING)}}, ["params"]),
        ({**HELLO, "metadata": {"deep": nested(MAX_NESTING)}}, ["metadata"]),
        ({**HELLO, "metadata": []}, ["metadata"]),
        ({**HELLO, "metadata": {"x": "y" * MAX_METADATA_BYTES}}, ["metadata"]),
        ({**HELLO, "metadata": {str(n): n for n in range(MAX_METADATA_FIELDS + 1)}}, ["metadata"]),
        ({**HELLO, "timeout_s": 0}, ["timeout_s"]),
        ({**HELLO, "timeout_s": -1}, ["timeout_s"]),
        ({**HELLO, "timeout_s": 1e9}, ["timeout_s"]),
        ({**HELLO, "timeout_s": "1"}, ["timeout_s"]),
        ({**HELLO, "timeout_s": True}, ["timeout_s"]),
        ({**HELLO, "expires_in_s": 0}, ["expires_in_s"]),
        ({**HELLO, "expires_in_s": -0.5}, ["expires_in_s"]),
        ({**HELLO, "expires_in_s": 1e12}, ["expires_in_s"]),
        ({**HELLO, "stream": "yes"}, ["stream"]),
        ({**HELLO, "stream": 1}, ["stream"]),
        ({**HELLO, "idempotency_key": ""}, ["idempotency_key"]),
        ({**HELLO, "idempotency_key": "x" * 256}, ["idempotency_key"]),
        ({**HELLO, "idempotency_key": "line\nbreak"}, ["idempotency_key"]),
        ({**HELLO, "idempotency_key": 5}, ["idempotency_key"]),
        ({**HELLO, "promt": "typo"}, ["promt"]),
        ({**HELLO, "upload": {}}, ["upload"]),
        ({**HELLO, "timeout_s": 0, "stream": 2, "x": 1}, ["timeout_s", "stream", "x"]),
        ({**HELLO, "params": {"mock": 1}}, ["params.mock"]),
        ({**HELLO, "params": {"mock": {"fail": "sometimes"}}}, ["params.mock.fail"]),
        ({**HELLO, "params": {"mock": {"fail_attempts": -1}}}, ["params.mock.fail_attempts"]),
        ({**HELLO, "params": {"mock": {"latency_ms": "5"}}}, ["params.mock.latency_ms"]),
        ({**HELLO, "params": {"mock": {"tokens": 1.5}}}, ["params.mock.tokens"]),
        ({**HELLO, "params": {"mock": {"crash": 1}}}, ["params.mock.crash"]),
    ],
)
async def test_a_wrong_field_of_a_job_is_named(
    client: httpx.AsyncClient, body: dict[str, Any], fields: list[str]
) -> None:
    problem(await client.post("/v1/jobs", json=body), 422, *fields)
    assert (await client.get("/v1/stats")).json()["submitted"] == 0


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"prompt=hello",
        b"[]",
        b'"hello"',
        b"null",
        b'{"prompt": "hello"',
        b'{"prompt": "hello"} {}',
        b'{"prompt": "hello", "timeout_s": NaN}',
        b'{"prompt": "hello", "params": {"x": Infinity}}',
        b'{"prompt": "hello", "params": {"x": 1e999}}',
        b'{"prompt": "\xff"}',
        b'{"prompt": "\\ud800"}',
        b"[" * 100_000,
        b'{"prompt":"a","params":' + b'{"a":' * 100_000,
    ],
)
async def test_what_is_not_a_json_object_is_refused(client: httpx.AsyncClient, body: bytes) -> None:
    problem(await client.post("/v1/jobs", content=body), 422, "body")


@pytest.mark.parametrize("body", [HELLO, {"messages": [{"role": "user", "content": "x"}]}])
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"model": None, "params": None, "metadata": None, "timeout_s": None, "idempotency_key": None},
        {"params": {"deep": nested(MAX_NESTING - 2)}},
        {"params": {"mock": {}}},
        {"params": {"mock": {"latency_ms": 0, "tokens": 3, "fail": "error", "fail_attempts": 1}}},
        {"timeout_s": 0.001, "expires_in_s": 86400},
        {"idempotency_key": "x" * 255},
    ],
)
async def test_what_is_right_is_accepted(
    client: httpx.AsyncClient, body: dict[str, Any], more: dict[str, Any]
) -> None:
    answer = await client.post("/v1/jobs", json={**body, **more})
    assert answer.status_code == 202, answer.text


@pytest.mark.parametrize("key", [b"", b"x" * 256, b"\xff"])
async def test_a_wrong_key_in_the_header_is_named(client: httpx.AsyncClient, key: bytes) -> None:
    answer = await client.post("/v1/jobs", json=HELLO, headers={b"Idempotency-Key": key})
    problem(answer, 422, "Idempotency-Key")


async def test_keys_that_disagree_are_refused(client: httpx.AsyncClient) -> None:
    body = {**HELLO, "idempotency_key": "one"}
    answer = await client.post("/v1/jobs", json=body, headers={"Idempotency-Key": "two"})
    problem(answer, 422, "idempotency_key")
    headers = [("Idempotency-Key", "one"), ("Idempotency-Key", "two")]
    problem(await client.post("/v1/jobs", json=HELLO, headers=headers), 422, "Idempotency-Key")


async def test_faults_on_request_can_be_switched_off(connect: Connect) -> None:
    client = await connect(mock_faults=False)
    body = {**HELLO, "params": {"mock": {"latency_ms": 1}}}
    problem(await client.post("/v1/jobs", json=body), 422, "params.mock")
    assert (await client.post("/v1/jobs", json={**HELLO, "params": {"x": 1}})).status_code == 202


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        ({"ids": []}, ["ids"]),
        ({"ids": ["x", new_job_id()]}, ["ids.0"]),
        ({"cause": "bad luck"}, ["cause"]),
        ({"limit": 0}, ["limit"]),
        ({"limit": 1001}, ["limit"]),
        ({"dry_run": "no"}, ["dry_run"]),
        ({"all": True}, ["all"]),
        ({"ids": [new_job_id()], "cause": "error"}, ["cause"]),
    ],
)
async def test_a_wrong_field_of_a_redrive_is_named(
    client: httpx.AsyncClient, body: dict[str, Any], fields: list[str]
) -> None:
    problem(await client.post("/v1/dlq/redrive", json=body), 422, *fields)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/jobs?status=done", ["status"]),
        ("/v1/jobs?limit=0", ["limit"]),
        ("/v1/jobs?limit=101", ["limit"]),
        ("/v1/jobs?limit=x", ["limit"]),
        ("/v1/jobs?before=x", ["before"]),
        ("/v1/jobs?state=failed", ["state"]),
        ("/v1/dlq?limit=-1", ["limit"]),
        ("/v1/dlq?before=x", ["before"]),
        ("/v1/dlq?before=0-0", ["before"]),
        (f"/v1/jobs/{new_job_id()}?wait=-1", ["wait"]),
        (f"/v1/jobs/{new_job_id()}?wait=61", ["wait"]),
        (f"/v1/jobs/{new_job_id()}?wait=nan", ["wait"]),
        (f"/v1/jobs/{new_job_id()}?timeout=5", ["timeout"]),
    ],
)
async def test_a_wrong_parameter_is_named(client: httpx.AsyncClient, path: str, fields: list[str]) -> None:
    problem(await client.get(path), 422, *fields)


async def test_a_resume_point_that_nobody_gave_out_is_refused(client: httpx.AsyncClient) -> None:
    job_id = (await client.post("/v1/jobs", json=HELLO)).json()["job_id"]
    answer = await client.get(f"/v1/jobs/{job_id}/events", headers={"Last-Event-ID": "yesterday"})
    problem(answer, 422, "last-event-id")


MANY = 30_000


FIELDS = {f"field-{n}": n for n in range(MANY)}
WRONG: dict[str, dict[str, Any]] = {
    "items": {"messages": [1] * MANY},
    "messages": {"messages": [HELLO] * MANY},
    "fields": FIELDS,
    "orders": {**HELLO, "params": {"mock": FIELDS}},
    "metadata": {**HELLO, "metadata": FIELDS},
    "a name": {**HELLO, "x" * 500_000: 1},
    "names": {f"{'x' * 10_000}{n}": n for n in range(50)},
}


@pytest.mark.parametrize("body", WRONG.values(), ids=WRONG)
async def test_a_refusal_is_short_however_much_is_wrong(client: httpx.AsyncClient, body: object) -> None:
    response = await client.post("/v1/jobs", json=body)
    assert response.status_code == 422
    assert 1 <= len(response.json()["errors"]) <= MAX_ERRORS
    assert len(response.content) < 20_000


async def test_a_refusal_of_a_thousand_parameters_is_short(client: httpx.AsyncClient) -> None:
    response = await client.get("/v1/jobs", params={f"p{n}": n for n in range(2_000)})
    assert response.status_code == 422
    assert len(response.json()["errors"]) == MAX_ERRORS
    assert response.json()["detail"].endswith("and 1980 more")


async def test_redriving_thousands_of_wrong_ids_is_refused_in_a_line(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/dlq/redrive", json={"ids": ["x"] * MANY})
    problem(response, 422, "ids.0")
