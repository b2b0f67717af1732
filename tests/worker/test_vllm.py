"""The vLLM backend against a real HTTP server."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
import threading
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import httpx
import pytest
import uvloop

from common.job import Cause, JobRequest, JobStatus, Outcome, Usage
from common.settings import Settings
from common.store import Store
from tests.requests import submit
from tests.waiting import wait_until
from tests.worker.engine import (
    Behaviour,
    Engine,
    Exchange,
    breaking_off,
    failing_mid_stream,
    hanging,
    hanging_mid_stream,
    refusing,
    sending,
    speaking,
)
from tests.worker.running import Crew, ended
from worker import readiness
from worker.backends import vllm
from worker.backends.base import BrokenStream, Completion, Refused, Unreachable
from worker.backends.vllm import VllmBackend
from worker.retry import Backoff

ASK = JobRequest(prompt="say it")


@pytest.fixture
def engine() -> Iterator[Engine]:
    running = Engine()
    running.start()
    yield running
    running.stop()


def backend_for(engine: Engine, **settings: Any) -> VllmBackend:
    return VllmBackend(Settings.model_validate({"vllm_url": engine.url} | settings))


@pytest.fixture
async def backend(engine: Engine) -> AsyncIterator[VllmBackend]:
    opened = backend_for(engine)
    yield opened
    await opened.aclose()


async def answer(backend: VllmBackend, request: JobRequest = ASK) -> tuple[list[str], Completion]:
    pieces = [piece async for piece in backend.generate(request, 1)]
    *texts, completion = pieces
    assert isinstance(completion, Completion)
    return [str(text) for text in texts], completion


# ---------------------------------------------------------------- what is asked


async def test_the_answer_comes_in_pieces_and_ends_with_its_usage(
    engine: Engine, backend: VllmBackend
) -> None:
    engine.behaviours.append(speaking("Grüße ", "in \u2028 ", "pieces", finish_reason="length"))
    texts, completion = await answer(backend)
    assert texts == ["Grüße ", "in \u2028 ", "pieces"]
    usage = Usage(prompt_tokens=7, completion_tokens=3)
    assert completion == Completion(finish_reason="length", usage=usage)


async def test_a_prompt_is_one_user_message(engine: Engine, backend: VllmBackend) -> None:
    await answer(backend)
    assert engine.requests == [
        {
            "model": "served-model",
            "messages": [{"role": "user", "content": "say it"}],
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ]


async def test_messages_and_parameters_pass_untouched(engine: Engine, backend: VllmBackend) -> None:
    messages = ({"role": "system", "content": "be kind"}, {"role": "user", "content": [{"type": "text"}]})
    params = {"temperature": 0.5, "seed": 7, "max_tokens": 3, "guided": {"a": [1]}, "stream": False}
    await answer(backend, JobRequest(messages=messages, params={**params, "mock": {"fail": "exit"}}))
    (asked,) = engine.requests
    assert asked["messages"] == list(messages)
    assert {name: asked[name] for name in params} == params | {"stream": True}
    assert "mock" not in asked


@pytest.mark.parametrize(
    ("requested", "setting", "model"),
    [("mine", "theirs", "mine"), (None, "theirs", "theirs"), (None, None, "served-model")],
)
async def test_the_model_is_the_requests_the_settings_or_the_first_served(
    engine: Engine, requested: str | None, setting: str | None, model: str
) -> None:
    backend = backend_for(engine, vllm_model=setting)
    await answer(backend, JobRequest(prompt="x", model=requested))
    assert engine.requests[0]["model"] == model
    await backend.aclose()


async def test_the_key_is_sent_and_never_shown(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    backend = backend_for(engine, vllm_api_key="sk-secret")
    await answer(backend)
    engine.behaviours.append(refusing(401, {"error": {"message": "wrong key"}}))
    with pytest.raises(Refused) as refused:
        await answer(backend)
    assert engine.headers[0]["authorization"] == "Bearer sk-secret"
    assert "sk-secret" not in caplog.text + str(refused.value) + repr(Settings(vllm_api_key="sk-secret"))
    await backend.aclose()


async def test_connections_are_used_again(engine: Engine, backend: VllmBackend) -> None:
    for _ in range(3):
        await answer(backend)
    assert len({headers["host"] for headers in engine.headers}) == 1
    assert len(engine.requests) == 3


# ---------------------------------------------------------------- what goes wrong


REFUSALS = [
    (refusing(400, {"error": {"message": "too long", "code": 400}}), "HTTP 400: too long"),
    (refusing(400, {"object": "error", "message": "too long", "code": 400}), "HTTP 400: too long"),
    (refusing(422, {"message": "no such field"}), "HTTP 422: no such field"),
    (refusing(404, {"error": "no such model"}), "HTTP 404: no such model"),
    (refusing(404, {"detail": "Not Found"}), 'HTTP 404: {"detail": "Not Found"}'),
    (refusing(502, "<html>bad gateway</html>"), "HTTP 502: <html>bad gateway</html>"),
    (refusing(500, ""), "HTTP 500: no message"),
    (refusing(302, "", location="/elsewhere"), "HTTP 302: no message"),
]


@pytest.mark.parametrize(("behaviour", "message"), REFUSALS, ids=[message for _, message in REFUSALS])
async def test_a_refusal_speaks_in_the_servers_words(
    engine: Engine, backend: VllmBackend, behaviour: Behaviour, message: str
) -> None:
    engine.behaviours.append(behaviour)
    with pytest.raises(Refused) as refused:
        await answer(backend)
    assert str(refused.value) == message
    assert not refused.value.mid_stream
    assert len(engine.requests) == 1


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("7", 7), ("0", 0), (None, None), ("soon", None), ("-3", None)],
)
async def test_retry_after_is_heard(
    engine: Engine, backend: VllmBackend, header: str | None, seconds: float | None
) -> None:
    headers = {} if header is None else {"retry_after": header}
    engine.behaviours.append(refusing(429, "busy", **headers))
    with pytest.raises(Refused) as refused:
        await answer(backend)
    assert refused.value.retry_after == (None if seconds is None else timedelta(seconds=seconds))


async def test_retry_after_may_be_a_date(engine: Engine, backend: VllmBackend) -> None:
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=60), usegmt=True)
    engine.behaviours.append(refusing(429, "busy", retry_after=date))
    with pytest.raises(Refused) as refused:
        await answer(backend)
    assert refused.value.retry_after
    assert timedelta(seconds=55) < refused.value.retry_after <= timedelta(seconds=60)


async def test_a_date_to_retry_after_counts_from_the_answers_own(
    engine: Engine, backend: VllmBackend
) -> None:
    """Whatever the worker's clock says (P8)."""
    answered_at = datetime.now(UTC) - timedelta(seconds=300)
    dates = (format_datetime(answered_at + timedelta(seconds=s), usegmt=True) for s in (0, 60))
    engine.behaviours.append(refusing(429, "busy", date=next(dates), retry_after=next(dates)))
    with pytest.raises(Refused) as refused:
        await answer(backend)
    assert refused.value.retry_after == timedelta(seconds=60)


BROKEN = {
    "the stream ends": breaking_off("half", politely=True),
    "the stream ends before it begins": breaking_off(politely=True),
    "the connection breaks": breaking_off("half", politely=False),
    "the engine is stopped": speaking("half", finish_reason="abort"),
    "not JSON": sending(b"data: {oops\n\n"),
    "not what was agreed": sending(b'data: {"choices": 7}\n\n'),
    "not a stream": sending(b'{"choices": [{"message": {"content": "whole"}}]}'),
}


@pytest.mark.parametrize("behaviour", BROKEN.values(), ids=BROKEN)
async def test_half_an_answer_is_none(engine: Engine, backend: VllmBackend, behaviour: Behaviour) -> None:
    engine.behaviours.append(behaviour)
    with pytest.raises(BrokenStream):
        await answer(backend)
    assert len(engine.requests) == 1


@pytest.mark.parametrize(
    ("event", "status"),
    [
        ({"error": {"message": "boom", "type": "BadRequestError", "code": 400}}, 400),
        ({"error": {"message": "boom", "code": "internal_error"}}, 500),
        ({"error": {"message": "boom"}}, 500),
        ({"object": "error", "message": "boom", "code": 503}, 503),
    ],
)
async def test_an_error_in_the_stream_is_an_error(
    engine: Engine, backend: VllmBackend, event: object, status: int
) -> None:
    engine.behaviours.append(failing_mid_stream(event))
    with pytest.raises(Refused) as refused:
        await answer(backend)
    assert (refused.value.status, refused.value.detail, refused.value.mid_stream) == (status, "boom", True)


async def test_an_engine_that_is_not_there_was_not_asked(engine: Engine, backend: VllmBackend) -> None:
    await answer(backend)
    engine.stop()
    with pytest.raises(Unreachable):
        await answer(backend)
    engine.models = ["another-model"]
    engine.start()
    await answer(backend)
    assert engine.requests[-1]["model"] == "another-model"


# ---------------------------------------------------------------- readiness


def test_an_engine_that_resets_connections_as_they_are_made_is_not_there() -> None:
    """As a worker runs: under uvloop, and busy, so that the reset is there before the connection is used."""

    async def tried(port: int) -> set[type[Exception]]:
        backend = VllmBackend(Settings.model_validate({"vllm_url": f"http://127.0.0.1:{port}/v1"}))
        seen: set[type[Exception]] = set()

        async def keep_busy() -> None:
            while True:
                time.sleep(0.001)  # noqa: ASYNC251
                await asyncio.sleep(0)

        busy = asyncio.create_task(keep_busy())
        for _ in range(50):
            assert not await backend.ready()
            try:
                await answer(backend, JobRequest(prompt="p", model="m"))
            except (Unreachable, BrokenStream) as error:
                seen.add(type(error))
        busy.cancel()
        await backend.aclose()
        return seen

    with resetting() as port, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert Unreachable in runner.run(tried(port))


@contextmanager
def resetting() -> Generator[int]:
    """The port of a server that resets each connection at once."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


async def test_it_is_ready_when_healthy_and_serving(engine: Engine, backend: VllmBackend) -> None:
    assert await backend.ready()
    engine.health = 503
    assert not await backend.ready()
    engine.health = 404
    assert await backend.ready()
    engine.models = []
    assert not await backend.ready()
    engine.models = ["served-model"]
    assert await backend.ready()
    engine.stop()
    assert not await backend.ready()
    engine.start()
    assert await backend.ready()


# ---------------------------------------------------------------- through a worker


PROMPT: dict[str, Any] = {"claim_idle_ms": 2_000, "heartbeat_ms": 50}

through_a_worker = pytest.mark.settings(retry_backoff_ms=0, retry_backoff_max_ms=0)


@pytest.mark.parametrize("behaviour", [hanging, hanging_mid_stream])
async def test_a_cancelled_job_is_aborted_in_the_engine(
    engine: Engine, crew: Crew, gateway: Store, behaviour: Behaviour
) -> None:
    engine.behaviours.append(behaviour)
    await crew.start(backend_for(engine), **PROMPT)
    job = await submit(gateway)
    await wait_until(lambda: engine.requests)
    await gateway.cancel(job.job_id)
    await wait_until(engine.aborted.is_set)


@through_a_worker
async def test_a_hanging_call_is_aborted_by_its_time_limit(
    engine: Engine, crew: Crew, gateway: Store
) -> None:
    engine.behaviours.append(hanging)
    await crew.start(backend_for(engine))
    job = await ended(gateway, (await submit(gateway, timeout_s=0.2)).job_id)
    assert [attempt.outcome for attempt in job.attempts] == [Outcome.TIMEOUT, Outcome.SUCCEEDED]
    assert engine.aborted.is_set()


@through_a_worker
async def test_the_engines_words_are_in_the_job(engine: Engine, crew: Crew, gateway: Store) -> None:
    engine.behaviours.append(refusing(400, {"error": {"message": "maximum context length is 4096"}}))
    await crew.start(backend_for(engine))
    job = await ended(gateway, (await submit(gateway)).job_id)
    assert job.error
    assert job.error.cause is Cause.PERMANENT
    assert "maximum context length is 4096" in job.error.message


@through_a_worker
async def test_an_engine_that_restarts_costs_no_attempt(
    engine: Engine, crew: Crew, gateway: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readiness, "PROBE_PERIOD_S", 0.05)
    running = await crew.start(backend_for(engine), max_attempts=1, **PROMPT)
    await ended(gateway, (await submit(gateway)).job_id)
    engine.stop()
    await wait_until(lambda: running.count("iwl_worker_ready") == 0)
    job = await submit(gateway, "while it is away")
    await asyncio.sleep(0.2)  # Nothing happens, which no condition shows.
    assert (await gateway.get(job.job_id)).status is JobStatus.QUEUED
    engine.start()
    record = await ended(gateway, job.job_id)
    # A claim that was waiting just then may have brought it, and given it back.
    counted = [attempt.outcome for attempt in record.attempts if attempt.outcome is not Outcome.RELEASED]
    assert counted == [Outcome.SUCCEEDED]


def dying(engine: Engine) -> Behaviour:
    """The error that vLLM sends on its way out; from then on it is not healthy."""

    async def die(exchange: Exchange) -> None:
        engine.health = 503
        await refusing(500, {"error": {"message": "EngineCore encountered an issue.", "code": 500}})(exchange)

    return die


def freezing(engine: Engine) -> Behaviour:
    """From then on nothing answers, not even the probe."""

    async def freeze(exchange: Exchange) -> None:
        engine.hangs = True
        await hanging(exchange)

    return freeze


def a_little_later(*_: object) -> timedelta:
    return timedelta(seconds=0.3)


@through_a_worker
@pytest.mark.parametrize(("behaviour", "outcome"), [(dying, Outcome.ERROR), (freezing, Outcome.TIMEOUT)])
async def test_after_a_failure_nothing_is_read_before_the_engine_has_answered_a_probe(
    engine: Engine,
    crew: Crew,
    gateway: Store,
    monkeypatch: pytest.MonkeyPatch,
    behaviour: Callable[[Engine], Behaviour],
    outcome: Outcome,
) -> None:
    monkeypatch.setattr(vllm, "PROBE", httpx.Timeout(0.2))
    # Sooner than the next probe would be, and later than a claim that waits is interrupted.
    monkeypatch.setattr(Backoff, "delay", a_little_later)
    engine.behaviours.append(behaviour(engine))
    await crew.start(backend_for(engine), **PROMPT)
    job = await submit(gateway, timeout_s=0.2)

    async def due_again() -> bool:
        backlog = await gateway.depth()
        return bool((await gateway.get(job.job_id)).attempts) and backlog.lag == 1

    await wait_until(due_again)
    await asyncio.sleep(0.2)  # Nothing happens, which no condition shows.
    assert len((await gateway.get(job.job_id)).attempts) == 1
    engine.health, engine.hangs = 200, False
    record = await ended(gateway, job.job_id)
    assert [attempt.outcome for attempt in record.attempts] == [outcome, Outcome.SUCCEEDED]


@through_a_worker
async def test_a_request_at_fault_casts_no_doubt_on_the_engine(
    engine: Engine, crew: Crew, gateway: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readiness, "PROBE_PERIOD_S", 60)
    engine.behaviours.append(refusing(400, {"error": {"message": "too long"}}))
    running = await crew.start(backend_for(engine), **PROMPT)
    await wait_until(lambda: running.count("iwl_worker_ready") == 1)
    engine.health = 503
    await ended(gateway, (await submit(gateway)).job_id)
    assert running.count("iwl_worker_ready") == 1


@through_a_worker
async def test_a_slow_answer_is_no_failure(engine: Engine, crew: Crew, gateway: Store) -> None:
    engine.behaviours.append(speaking(*["word "] * 20, every_s=0.02))
    await crew.start(backend_for(engine), **PROMPT)
    job = await ended(gateway, (await submit(gateway, stream=True)).job_id)
    assert job.result
    assert (job.result.text, len(job.attempts)) == ("word " * 20, 1)
