"""What the engine says is what the client reads, through gateway, queue and worker."""

from __future__ import annotations

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
    job_id = await trial.submit(stream=True, params=tokens(600, seed=1))
    chunks: list[tuple[float, str]] = []
    status = ""
    async for event in trial.api.events(job_id):
        if event.kind == "chunk":
            chunks.append((time.monotonic(), event.data.text or ""))
            status = status or (await trial.job(job_id)).status
    job = await trial.ended(job_id)
    assert status == "running", "the first tokens came when the job was over"
    assert "".join(text for _, text in chunks) == text_of(job)
    assert len(chunks) > 10
    assert job.started_at
    assert job.finished_at
    ran_s = (job.finished_at - job.started_at).total_seconds()
    times = [at for at, _ in chunks]
    assert times[-1] - times[0] > ran_s / 2
    # Of an even flow half has come at half time; of one that was held back, nothing.
    early = [at for at in times if at - times[0] < ran_s / 2]
    assert len(chunks) / 5 < len(early) < len(chunks)


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
    "body",
    [
        pytest.param({"prompt": "too long " * 4000}, id="a prompt longer than the context"),
        pytest.param({"params": {"max_tokens": 1 << 24}}, id="more tokens than the context holds"),
        pytest.param({"model": "no-such-model"}, id="a model that is not served"),
        pytest.param({"params": {"temperature": -1}}, id="a parameter out of range"),
    ],
)
async def test_a_request_at_fault_fails_at_once_in_the_engines_words(
    trial: Trial, body: dict[str, object]
) -> None:
    job = await trial.ended(await trial.submit(**body))
    prompt = body.get("prompt", "What survives?")
    refused = {"messages": [{"role": "user", "content": prompt}], "stream": True}
    if "model" in body:
        refused["model"] = body["model"]
    params = body.get("params", {})
    assert isinstance(params, dict)
    error = (await trial.engine.ask(**refused, **params))["error"]
    assert [attempt.outcome for attempt in job.attempts] == [Outcome.PERMANENT]
    assert job.error
    assert job.error.cause is Cause.PERMANENT
    assert job.error.message == f"HTTP {error['code']}: {error['message']}"
