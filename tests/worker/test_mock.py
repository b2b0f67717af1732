"""The model that is not there."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from common.job import JobRequest, Usage
from common.settings import Settings
from worker.backends.base import BrokenStream, Completion, Refused
from worker.backends.mock import MockBackend


def ask(request: JobRequest, attempt: int = 1, **settings: Any) -> Any:
    told = Settings.model_validate({"mock_latency_ms": 0} | settings)
    return MockBackend(told).generate(request, attempt)


async def answer(request: JobRequest, attempt: int = 1, **settings: Any) -> tuple[list[str], Completion]:
    pieces = [piece async for piece in ask(request, attempt, **settings)]
    *texts, completion = pieces
    return texts, completion


def with_orders(**orders: object) -> JobRequest:
    return JobRequest(prompt="one two three", params={"mock": orders})


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (JobRequest(prompt="  one\ntwo  three "), "one two three"),
        (JobRequest(prompt=""), ""),
        (
            JobRequest(
                messages=(
                    {"role": "system", "content": "be kind"},
                    {"role": "user", "content": "first"},
                    {"role": "assistant", "content": "yes?"},
                    {"role": "user", "content": "last words"},
                )
            ),
            "last words",
        ),
        (JobRequest(messages=({"role": "user", "content": [{"type": "text", "text": "a part"}]},)), "a part"),
        (JobRequest(messages=({"role": "user", "content": 7},)), ""),
        (JobRequest(messages=({"role": "system", "content": "nobody asks"},)), ""),
        (with_orders(tokens=5), "one two three one two"),
        (with_orders(tokens=2), "one two"),
        (with_orders(tokens=0), ""),
        (JobRequest(prompt="", params={"mock": {"tokens": 2}}), "token token"),
    ],
)
async def test_it_echoes_the_tokens_asked_for(request_: JobRequest, text: str) -> None:
    texts, completion = await answer(request_)
    assert "".join(texts) == text
    assert completion.finish_reason == "stop"
    assert completion.usage.completion_tokens == len(text.split())


async def test_streamed_or_not_the_text_is_the_same() -> None:
    whole, _ = await answer(JobRequest(prompt="one two three"))
    pieces, completion = await answer(JobRequest(prompt="one two three", stream=True))
    assert (whole, pieces) == (["one two three"], ["one", " two", " three"])
    assert completion.usage == Usage(prompt_tokens=3, completion_tokens=3)


@pytest.mark.parametrize("stream", [False, True])
async def test_it_takes_its_latency(stream: bool) -> None:
    request = JobRequest(prompt="a b c d e f g h", stream=stream, params={"mock": {"latency_ms": 100}})
    started = time.monotonic()
    await answer(request, mock_latency_ms=60_000)
    assert 0.095 <= time.monotonic() - started < 0.5


@pytest.mark.parametrize(
    ("fail", "error"), [("error", BrokenStream), ("permanent", Refused)], ids=["error", "permanent"]
)
async def test_it_fails_when_told(fail: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        await answer(with_orders(fail=fail))
    with pytest.raises(error):
        await answer(with_orders(fail=fail, fail_attempts=2), attempt=2)
    texts, _ = await answer(with_orders(fail=fail, fail_attempts=2), attempt=3)
    assert texts == ["one two three"]


async def test_a_stream_that_fails_has_begun() -> None:
    request = JobRequest(prompt="a b c d", stream=True, params={"mock": {"fail": "error"}})
    heard: list[str] = []

    async def listen() -> None:
        async for piece in ask(request):
            heard.append(piece)

    with pytest.raises(BrokenStream):
        await listen()
    assert heard == ["a", " b"]


async def test_it_hangs_when_told() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await answer(with_orders(fail="hang"))


@pytest.mark.parametrize("orders", [{"fail": "explode"}, {"tokens": "many"}, 7])
async def test_orders_that_make_no_sense_are_the_requests_fault(orders: object) -> None:
    with pytest.raises(Refused) as refused:
        await answer(JobRequest(prompt="x", params={"mock": orders}))
    assert refused.value.status == 422


async def test_with_faults_off_orders_are_ignored() -> None:
    texts, _ = await answer(with_orders(fail="exit", tokens=1), mock_faults=False)
    assert texts == ["one two three"]
