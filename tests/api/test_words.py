"""Refusals say in plain words what to do."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.api.conftest import Connect
from tests.api.problem import problem

HELLO: dict[str, Any] = {"prompt": "hello"}


async def message(client: httpx.AsyncClient, body: dict[str, Any]) -> str:
    """What is said about the one wrong field."""
    [wrong] = (await client.post("/v1/jobs", json=body)).json()["errors"]
    return wrong["message"]


async def test_an_unknown_field_is_told_the_allowed_ones(client: httpx.AsyncClient) -> None:
    assert "allowed are prompt, messages, model, params," in await message(client, {**HELLO, "promt": 1})
    mock = {**HELLO, "params": {"mock": {"latency": 1}}}
    assert (await message(client, mock)).endswith("allowed are latency_ms, tokens, fail, fail_attempts")


@pytest.mark.parametrize("name", ["temperature", "max_tokens", "seed", "stop", "mock"])
async def test_a_parameter_of_the_model_is_told_its_place(client: httpx.AsyncClient, name: str) -> None:
    assert await message(client, {**HELLO, name: 1}) == (
        f'put it in params, which go to the model: "params": {{"{name}": ...}}'
    )


async def test_an_unknown_parameter_of_a_query_is_called_that(client: httpx.AsyncClient) -> None:
    answer = await client.get("/v1/jobs?state=failed")
    assert problem(answer, 422, "state")["errors"][0]["message"] == "there is no such parameter"


@pytest.mark.parametrize("body", [b"", b" \n"])
async def test_an_empty_body_is_called_empty(client: httpx.AsyncClient, body: bytes) -> None:
    answer = await client.post("/v1/jobs", content=body)
    assert problem(answer, 422, "body")["errors"][0]["message"] == "is empty: send a JSON object"


async def test_a_full_queue_says_when_to_try_again(connect: Connect) -> None:
    client = await connect(max_queue_depth=1)
    await client.post("/v1/jobs", json=HELLO)
    answer = await client.post("/v1/jobs", json=HELLO)
    assert problem(answer, 429)["detail"].endswith(f" Try again in {answer.headers['retry-after']} s.")


async def test_an_unknown_path_is_told_where_the_known_ones_are(client: httpx.AsyncClient) -> None:
    assert "/docs" in problem(await client.get("/v1/job"), 404)["detail"]
