"""Who follows a job goes on over restarts of the API, and over refusals that name a time to come back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from io import StringIO

import msgspec
import pytest
from rich.console import Console

import lab.client
from lab.client import Api
from lab.exits import ApiRefused, ApiUnreachable, Exit
from lab.follow import Screen, follow
from lab.load import Load, load

RETRY_AFTER_S = 0.3
AWAY_S = 1.0
#: Patience for a test, and a silence that is longer.
PATIENCE_S, SILENCE_S = 0.5, 0.8

#: What a stub answers to `GET /path`, with the request's headers; an empty answer breaks the connection.
Answer = Callable[["Stub", str, str], Awaitable[bytes]]


class Stub:
    """An API on a real socket, one request a connection."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._server: asyncio.Server | None = None
        self._port = 0
        #: Each as `GET /path` without the query, with the time it came.
        self.requests: list[tuple[str, float]] = []
        #: What its client told.
        self.told: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    async def listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    def refuse_connections(self) -> None:
        assert self._server
        self._server.close()

    async def restart(self, after_s: float) -> None:
        self.refuse_connections()
        await asyncio.sleep(after_s)
        await self.listen()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        method, target, _ = head.split(" ", 2)
        request = f"{method} {target.partition('?')[0]}"
        self.requests.append((request, time.monotonic()))
        writer.write(await self._answer(self, request, head))
        writer.close()


def answer(status: int, body: str, *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} Answer", f"Content-Length: {len(body)}", "Connection: close", *headers]
    return "\r\n".join([*lines, "", body]).encode()


def job(status: str = "succeeded") -> bytes:
    result = {"text": "one two"} if status == "succeeded" else None
    record = {"job_id": "j", "status": status, "created_at": "2026-01-01T00:00:00.000Z", "result": result}
    return answer(200, msgspec.json.encode(record).decode())


def events(*numbers: int, whole: bool = True) -> bytes:
    """Those of ONE_TWO; a stream that is not whole breaks off after them."""
    text = "".join(ONE_TWO[number - 1] for number in numbers)
    sent = answer(200, text, "Content-Type: text/event-stream")
    return sent if whole else sent.replace(b"Content-Length: ", b"Content-Length: 9")


ONE_TWO = [
    'id: 1\nevent: state\ndata: {"attempt": 1, "status": "running"}\n\n',
    'id: 2\nevent: chunk\ndata: {"attempt": 1, "text": "one "}\n\n',
    'id: 3\nevent: chunk\ndata: {"attempt": 1, "text": "two"}\n\n',
    'id: 4\nevent: state\ndata: {"attempt": 1, "status": "succeeded"}\n\n',
]
ACCEPTED = answer(202, '{"job_id": "j", "status": "queued"}')
AWAY = answer(503, '{"title": "store away"}', "Retry-After: 5")
RATE_EXCEEDED = answer(429, '{"title": "too many requests"}', f"Retry-After: {RETRY_AFTER_S}")
NOTHING_MORE = b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n"


def in_turn(*answers: bytes, late: int | None = None) -> Answer:
    """The last one from then on; the one at `late` is sent after a silence longer than PATIENCE_S."""
    left = list(enumerate(answers))

    async def next_one(stub: Stub, request: str, head: str) -> bytes:
        number, sent = left.pop(0) if len(left) > 1 else left[0]
        if number == late:
            await asyncio.sleep(SILENCE_S)
        return sent

    return next_one


@asynccontextmanager
async def serving(answer: Answer) -> AsyncGenerator[tuple[Stub, Api]]:
    stub = Stub(answer)
    await stub.listen()
    try:
        async with Api(stub.url, tell=stub.told.append) as api:
            yield stub, api
    finally:
        stub.refuse_connections()


def a_patience_of(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab.client, "PATIENCE", timedelta(seconds=seconds))


async def waiting(api: Api) -> bool:
    return (await api.ended("j")).value.succeeded


async def getting(api: Api) -> bool:
    return (await api.job("j", timedelta(seconds=20))).value.succeeded


async def watching(api: Api) -> bool:
    screen = Screen(Console(file=StringIO()), states=True)
    return (await follow(api, "j", screen, as_json=False)).succeeded


async def loading(api: Api) -> bool:
    return await load(api, Load(jobs=3, concurrency=3, prompt="x"), as_json=True) is Exit.OK


async def ids(api: Api) -> list[str]:
    return [event.id async for event in api.events("j")]


@pytest.mark.parametrize("wait", [waiting, getting, watching, loading])
async def test_a_wait_whose_rate_is_used_up_says_so_once_and_comes_back_after_the_time_it_was_told(
    wait: Callable[[Api], Awaitable[bool]],
) -> None:
    """Other processes of the same name use the rate up, whatever is asked first."""
    refused: set[str] = set()

    async def with_a_rate(stub: Stub, request: str, head: str) -> bytes:
        if request not in refused:
            refused.add(request)
            return RATE_EXCEEDED
        if request == "POST /v1/jobs":
            return ACCEPTED
        return events(1, 2, 3, 4) if request.endswith("/events") else job()

    async with serving(with_a_rate) as (stub, api):
        assert await wait(api)
    assert stub.told == ["waiting: 429: too many requests"]
    for request in refused:
        first, *_, last = [at for asked, at in stub.requests if asked == request]
        assert last - first >= RETRY_AFTER_S, request


async def test_a_refusal_for_the_rate_uses_up_no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    a_patience_of(RETRY_AFTER_S / 2, monkeypatch)
    async with serving(in_turn(AWAY, RATE_EXCEEDED, RATE_EXCEEDED, AWAY, job())) as (_, api):
        assert await waiting(api)


async def test_a_submit_that_finds_the_queue_full_is_refused_at_once() -> None:
    async with serving(in_turn(RATE_EXCEEDED, ACCEPTED)) as (stub, api):
        with pytest.raises(ApiRefused, match="429: too many requests"):
            await api.submit({"prompt": "x"})
    assert len(stub.requests) == 1


@pytest.mark.parametrize(
    ("sent", "error"),
    [(RATE_EXCEEDED, ApiRefused), (AWAY, ApiRefused), (b"", ApiUnreachable)],
    ids=["rate used up", "store away", "no answer"],
)
async def test_who_does_not_wait_is_told_at_once(sent: bytes, error: type[Exception]) -> None:
    async with serving(in_turn(sent, job())) as (stub, api):
        with pytest.raises(error):
            await api.job("j")
    assert len(stub.requests) == 1


@pytest.mark.parametrize("whole", [True, False], ids=["ended cleanly", "broken off"])
async def test_events_go_on_over_a_restart_of_the_api(whole: bool) -> None:
    restarts: list[asyncio.Task[None]] = []

    async def stopping(stub: Stub, request: str, head: str) -> bytes:
        if not request.endswith("/events"):
            return job()
        if not restarts:
            restarts.append(asyncio.create_task(stub.restart(AWAY_S)))
            await asyncio.sleep(0)  # It listens no more when the stream ends.
            return events(1, 2, whole=whole)
        assert "last-event-id: 2\r\n" in head.lower()
        return events(3, 4)

    async with serving(stopping) as (stub, api):
        assert await ids(api) == ["1", "2", "3", "4"]
        await asyncio.gather(*restarts)
    (_, stopped), (_, started) = stub.requests
    assert started - stopped >= AWAY_S


async def test_events_go_on_over_an_outage_of_the_store() -> None:
    async with serving(in_turn(events(1, 2), AWAY, AWAY, events(3, 4))) as (_, api):
        assert await ids(api) == ["1", "2", "3", "4"]


async def test_a_watch_whose_last_question_meets_an_outage_goes_on() -> None:
    async with serving(in_turn(events(1, 2, 3, 4), AWAY, job())) as (_, api):
        assert await watching(api)


async def test_all_events_come_of_a_job_that_ends_while_its_stream_is_down() -> None:
    """Its record alone does not say that they have."""
    streams = in_turn(events(1, 2), events(3, 4))

    async def ended(stub: Stub, request: str, head: str) -> bytes:
        return await streams(stub, request, head) if request.endswith("/events") else job()

    async with serving(ended) as (_, api):
        assert await ids(api) == ["1", "2", "3", "4"]


async def test_events_of_which_no_more_will_come_end() -> None:
    async with serving(in_turn(events(1, 2), NOTHING_MORE)) as (_, api):
        assert await ids(api) == ["1", "2"]


@pytest.mark.parametrize(
    ("follower", "answers"),
    [
        (waiting, (b"", AWAY, job())),
        (getting, (b"", AWAY, job())),
        (watching, (events(), AWAY, events(1, 2, 3, 4), job())),
        (watching, (events(whole=False), AWAY, events(1, 2, 3, 4), job())),
    ],
    ids=["poll broken off", "question broken off", "stream ended", "stream broken off"],
)
async def test_patience_begins_with_the_outage_and_not_with_the_wait_before_it(
    follower: Callable[[Api], Awaitable[bool]], answers: tuple[bytes, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job may be silent for longer than an API may be away."""
    a_patience_of(PATIENCE_S, monkeypatch)
    async with serving(in_turn(*answers, late=0)) as (_, api):
        assert await follower(api)


@pytest.mark.parametrize("whole", [True, False], ids=["ended cleanly", "broken off"])
async def test_a_stream_without_an_event_ends_an_outage(whole: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    a_patience_of(PATIENCE_S, monkeypatch)
    answers = AWAY, events(whole=whole), AWAY, events(1, 2, 3, 4), job()
    async with serving(in_turn(*answers, late=1)) as (_, api):
        assert await watching(api)


@pytest.mark.parametrize(
    ("sent", "error"), [(AWAY, ApiRefused), (b"", ApiUnreachable)], ids=["store away", "no answer"]
)
@pytest.mark.parametrize("follower", [waiting, getting, watching])
async def test_patience_ends(
    follower: Callable[[Api], Awaitable[bool]],
    sent: bytes,
    error: type[Exception],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a_patience_of(PATIENCE_S, monkeypatch)
    async with serving(in_turn(sent)) as (stub, api):
        with pytest.raises(error):
            await follower(api)
    (_, first), *_, (_, last) = stub.requests
    assert last - first >= PATIENCE_S


async def test_an_api_that_is_another_is_named_without_its_password() -> None:
    async with (
        serving(in_turn(answer(200, "something else"))) as (stub, _),
        Api(stub.url.replace("//", "//ann:secret@")) as api,
    ):
        with pytest.raises(ApiRefused, match=f"^{stub.url} is not an Inference Worker Lab: "):
            await api.stats()
