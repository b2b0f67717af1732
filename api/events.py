"""One job's state changes and chunks as server-sent events."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from dataclasses import dataclass

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from api.gateway import Gateway
from api.shapes import JobView, job_view
from api.while_wanted import client_gone, stop
from common.errors import LabError
from common.job import JobStatus
from common.store import EventKind, JobEvent

log = logging.getLogger(__name__)

#: Proxies close a connection that has been silent for 30 to 60 s.
KEEP_ALIVE_S = 15.0
KEEP_ALIVE = b": keep-alive\n\n"
#: A browser whose stream broke comes back after this many milliseconds.
HEAD = b"retry: 1000\n\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class StateData:
    status: JobStatus | None
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalData(StateData):
    job: JobView


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkData:
    attempt: int
    text: str


class EventStream(Response):
    """Ends after the job's terminal state, when the client hangs up, and when the gateway closes."""

    media_type = "text/event-stream"

    def __init__(self, gateway: Gateway, job_id: str, events: AsyncGenerator[JobEvent]) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["Content-Length"]
        self._gateway = gateway
        self._job_id = job_id
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._gateway.metrics.streams.track_inprogress():
            pump = asyncio.create_task(self._pump(send))
            gone = asyncio.create_task(client_gone(receive))
            try:
                await asyncio.wait([pump, gone], return_when=asyncio.FIRST_COMPLETED)
                if pump.done():
                    pump.result()
            finally:
                await stop(pump, gone)

    async def _pump(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": HEAD, "more_body": True})
        lines = self._lines()
        try:
            async for line in lines:
                await send({"type": "http.response.body", "body": line, "more_body": True})
        finally:
            await lines.aclose()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _lines(self) -> AsyncGenerator[bytes, None]:
        closing = self._gateway.closing
        closed = asyncio.create_task(closing.wait())
        coming = asyncio.create_task(self._next())
        try:
            while not closing.is_set():
                done, _ = await asyncio.wait(
                    [coming, closed], timeout=KEEP_ALIVE_S, return_when=asyncio.FIRST_COMPLETED
                )
                if coming in done:
                    event = coming.result()
                    if event is None:
                        return
                    yield await self._line(event)
                    coming = asyncio.create_task(self._next())
                elif not done:
                    yield KEEP_ALIVE
        finally:
            await stop(coming, closed)
            await self._events.aclose()

    async def _next(self) -> JobEvent | None:
        """None at the end, also when the store goes away: the client resumes with `Last-Event-ID`."""
        try:
            return await anext(self._events, None)
        except LabError as error:
            log.warning("event stream broke off", extra={"job_id": self._job_id, "error": str(error)})
            return None

    async def _line(self, event: JobEvent) -> bytes:
        ident = f"id: {event.id}\n".encode() if event.id else b""
        data = msgspec.json.encode(await self._data(event))
        return b"%bevent: %b\ndata: %b\n\n" % (ident, event.kind.encode(), data)

    async def _data(self, event: JobEvent) -> StateData | ChunkData:
        if event.kind is EventKind.CHUNK:
            return ChunkData(attempt=event.attempt, text=event.text or "")
        if event.status is not None and event.status.terminal:
            try:
                job = job_view(await self._gateway.store.get(self._job_id))
                return FinalData(status=event.status, attempt=event.attempt, job=job)
            except LabError:
                log.info("ended job could not be read", extra={"job_id": self._job_id})
        return StateData(status=event.status, attempt=event.attempt)
