"""What the engine says is what the client reads, through gateway, queue and worker."""

from __future__ import annotations

import asyncio
import time

import pytest

from common.job import Cause, Outcome
from lab.records import JobRecord
from tests.vllm.trial import Trial, tokens

pytestmark = pytest.mark.vllm

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is a queue?"}]


def text_of(job: JobRecord) -> str:
    assert job.result, job
    return job.result.text


async def test_a_chat_completion_is_the_engines_own_answer(trial: Trial) -> None:
    params = tokens(40, seed=7, temperature=0.8)
    job = await trial.ended(await trial.submit(prompt=None, messages=MESSAGES, params=params))
    straight = await trial.engine.ask(messages=MESSAGES, **params)
    assert job.result
    assert text_of(job) == straight["choices"][0]["message"]["content"]
    assert job.result.finish_reason == straight["choices"][0]["finish_reason"]
    assert job.result.usage.prompt_tokens == straight["usage"]["prompt_tokens"]
    assert job.result.usage.completion_tokens == straight["usage"]["completion_tokens"] == 40


async def test_a_prompt_is_completed_as_one_message_of_a_user(trial: Trial) -> None:
    params = tokens(30, seed=3)
    prompted = await trial.ended(await trial.submit(prompt="Why wait?", params=params))
    message = {"role": "user", "content": "Why wait?"}
    chatted = await trial.ended(await trial.submit(prompt=None, messages=[message], params=params))
    assert text_of(prompted)
    assert text_of(prompted) == text_of(chatted)


async def test_tokens_are_streamed_as_they_come(trial: Trial) -> None:
    job_id = await trial.submit(stream=True, params=tokens(6000, seed=1))
    chunks: list[tuple[float, str]] = []
    looked: asyncio.Task[JobRecord] | None = None
    async for event in trial.api.events(job_id):
        if event.kind == "chunk":
            chunks.append((time.monotonic(), event.data.text or ""))
            # Not waited for here: the chunks that come meanwhile would be read late, and as one.
            looked = looked or asyncio.create_task(trial.job(job_id))
    job = await trial.ended(job_id)
    assert looked
    assert (await looked).status == "running", "the first tokens came when the job was over"
    assert "".join(text for _, text in chunks) == text_of(job)
    assert job.started_at
    assert job.finished_at
    # Not more often than that: an engine that has no core to spare lets go of its tokens in lumps.
    moments = {int(at * 10) for at, _ in chunks}
    assert len(moments) >= 5, "the text came in one go"
    ran_s = (job.finished_at - job.started_at).total_seconds()
    assert chunks[-1][0] - chunks[0][0] > ran_s / 2


async def test_the_seed_decides_the_text(trial: Trial) -> None:
    async def said(seed: int) -> str:
        params = tokens(40, seed=seed, temperature=1.0)
        return text_of(await trial.ended(await trial.submit(params=params)))

    first, again, other = await said(11), await said(11), await said(12)
    assert first == again
    assert first != other


@pytest.mark.parametrize("count", [1, 17])
async def test_the_length_asked_for_is_the_length_that_comes(trial: Trial, count: int) -> None:
    job = await trial.ended(await trial.submit(params=tokens(count)))
    assert job.result
    assert (job.result.finish_reason, job.result.usage.completion_tokens) == ("length", count)


@pytest.mark.parametrize(
    ("prompt", "model", "params"),
    [
        pytest.param("too long " * 4000, None, {}, id="a prompt longer than the context"),
        pytest.param("x", None, {"max_tokens": 1 << 24}, id="more tokens than the context holds"),
        pytest.param("x", "no-such-model", {}, id="a model that is not served"),
        pytest.param("x", None, {"temperature": -1}, id="a parameter out of range"),
    ],
)
async def test_a_request_at_fault_fails_at_once_in_the_engines_words(
    trial: Trial, prompt: str, model: str | None, params: dict[str, object]
) -> None:
    job = await trial.ended(await trial.submit(prompt=prompt, model=model, params=params))
    messages = [{"role": "user", "content": prompt}]
    refused = {"model": model or trial.engine.model, "messages": messages, "stream": True}
    error = (await trial.engine.ask(**refused, **params))["error"]
    assert [attempt.outcome for attempt in job.attempts] == [Outcome.PERMANENT]
    assert job.error
    assert job.error.cause is Cause.PERMANENT
    assert job.error.message == f"HTTP {error['code']}: {error['message']}"
