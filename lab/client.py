"""The HTTP API as `iwl` calls it."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus
from typing import Any, Generic, TypeVar

import httpx
import msgspec

from common.errors import SettingsError
from common.job import JobStatus
from lab.exits import ApiRefused, ApiUnreachable
from lab.records import (
    Accepted,
    DeadPage,
    EventData,
    JobPage,
    JobRecord,
    Problem,
    RedriveReport,
    Scale,
    Stats,
)

T = TypeVar("T")

#: One long poll; the API allows a minute, proxies on the way often only half of that.
POLL = timedelta(seconds=25)
ANSWER_WITHIN = timedelta(seconds=15)
#: How long somebody who waits for a job puts up with an API that restarts.
PATIENCE = timedelta(seconds=15)
RETRY_S = 0.1
#: After a 429 that does not say.
RETRY_AFTER_S = 1.0
LAST_PORT = 65535


@dataclass(frozen=True, slots=True)
class Reply(Generic[T]):
    value: T
    #: The body as it came.
    raw: str


@dataclass(frozen=True, slots=True)
class Event:
    id: str
    kind: str
    data: EventData
    #: The data as it came.
    raw: str


class Api:
    """Raises ApiUnreachable and ApiRefused from every call."""

    def __init__(
        self,
        url: str,
        key: str | None = None,
        *,
        connections: int = 100,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        """`tell` hears once that a wait has met a limit."""
        full = _checked(url)
        #: Without user and password: it is shown.
        self.url = str(full.copy_with(userinfo=b"")).rstrip("/")
        self._tell = tell
        limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections)
        # No proxy from the environment: it could not reach a lab on this machine.
        self._http = httpx.AsyncClient(
            base_url=full,
            headers={"Authorization": f"Bearer {key}"} if key else None,
            timeout=ANSWER_WITHIN.total_seconds(),
            limits=limits,
            trust_env=False,
        )

    async def __aenter__(self) -> Api:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    def patience(self) -> Patience:
        """For one wait."""
        return Patience(self._at_a_limit)

    def _at_a_limit(self, error: ApiRefused) -> None:
        if self._tell:
            self._tell(f"waiting: {error}")
            self._tell = None

    async def ready(self) -> bool:
        try:
            return (await self._http.get("/readyz")).is_success
        except httpx.TransportError:
            return False

    async def submit(self, body: Mapping[str, object]) -> Reply[Accepted]:
        return await self._call(Accepted, "POST", "/v1/jobs", body=body)

    async def job(self, job_id: str, wait: timedelta = timedelta(0)) -> Reply[JobRecord]:
        """The job once it has ended, or as it stands when `wait` is over.

        Who waits does so over restarts of the API and its store."""
        deadline = time.monotonic() + wait.total_seconds()
        patience = self.patience()
        while True:
            left = deadline - time.monotonic()
            query = {"wait": round(min(left, POLL.total_seconds()), 3)} if left > 0 else {}
            try:
                reply = await self._call(JobRecord, "GET", f"/v1/jobs/{job_id}", query=query)
            except (ApiUnreachable, ApiRefused) as error:
                if left <= 0:
                    raise
                await patience.after(error)
                continue
            patience.renew()
            if reply.value.ended or left <= POLL.total_seconds():
                return reply

    async def ended(self, job_id: str) -> Reply[JobRecord]:
        """The job once it has ended, however long that takes."""
        return await self.job(job_id, timedelta.max)

    async def cancel(self, job_id: str) -> Reply[JobRecord]:
        return await self._call(JobRecord, "DELETE", f"/v1/jobs/{job_id}")

    async def jobs(self, status: JobStatus | None, limit: int, before: str | None) -> Reply[JobPage]:
        asked = {"limit": limit, "status": status, "before": before}
        query = {name: value for name, value in asked.items() if value}
        return await self._call(JobPage, "GET", "/v1/jobs", query=query)

    async def dead(self, limit: int, before: str | None) -> Reply[DeadPage]:
        query = {"limit": limit} | ({"before": before} if before else {})
        return await self._call(DeadPage, "GET", "/v1/dlq", query=query)

    async def redrive(
        self, *, ids: Sequence[str], cause: str | None, limit: int, dry_run: bool
    ) -> Reply[RedriveReport]:
        body: dict[str, object] = {"limit": limit, "dry_run": dry_run}
        if ids:
            body["ids"] = list(ids)
        if cause:
            body["cause"] = cause
        return await self._call(RedriveReport, "POST", "/v1/dlq/redrive", body=body)

    async def scale(self) -> Reply[Scale]:
        return await self._call(Scale, "GET", "/v1/scale")

    async def stats(self) -> Reply[Stats]:
        return await self._call(Stats, "GET", "/v1/stats")

    async def events(self, job_id: str) -> AsyncGenerator[Event, None]:
        """All events up to the terminal state, over restarts of the API and its store."""
        patience, last = self.patience(), ""
        while True:
            try:
                async for event in self._stream(job_id, last, patience):
                    last = event.id or last
                    yield event
                    if _final(event):
                        return
                # The gateway closes its streams when it stops, and when its store goes away.
                await asyncio.sleep(RETRY_S)
            except _NoMoreEvents:
                return
            except (ApiUnreachable, ApiRefused) as error:
                await patience.after(error)

    async def _stream(self, job_id: str, after: str, patience: Patience) -> AsyncGenerator[Event, None]:
        headers = {"Last-Event-ID": after} if after else {}
        url = f"/v1/jobs/{job_id}/events"
        try:
            async with self._http.stream("GET", url, headers=headers, timeout=None) as response:
                if not response.is_success:
                    await response.aread()
                    raise _refusal(response)
                if response.status_code == HTTPStatus.NO_CONTENT:
                    raise _NoMoreEvents
                patience.renew()
                async for event in _parse(response):
                    yield event
        except httpx.TransportError as error:
            raise self._unreachable() from error

    async def _call(
        self,
        kind: type[T],
        method: str,
        path: str,
        *,
        body: Mapping[str, object] | None = None,
        query: Mapping[str, Any] | None = None,
    ) -> Reply[T]:
        wait = float((query or {}).get("wait", 0))
        timeout = ANSWER_WITHIN.total_seconds() + wait
        try:
            response = await self._http.request(method, path, json=body, params=query, timeout=timeout)
        except httpx.TransportError as error:
            raise self._unreachable() from error
        if not response.is_success:
            raise _refusal(response)
        try:
            return Reply(msgspec.json.decode(response.content, type=kind), response.text)
        except msgspec.DecodeError as error:
            raise ApiRefused(f"{self.url} is not an Inference Worker Lab: {error}") from error

    def _unreachable(self) -> ApiUnreachable:
        return ApiUnreachable(
            f"No API answers at {self.url}. Is `iwl up` running? IWL_API_URL names another."
        )


class _NoMoreEvents(Exception):
    """The job has ended, and `Last-Event-ID` was the last of its events."""


class Patience:
    """For how long an API that is away may stay away, or say that its store is."""

    def __init__(self, at_a_limit: Callable[[ApiRefused], None] | None = None) -> None:
        self._until = math.inf
        self._at_a_limit = at_a_limit

    def renew(self) -> None:
        """The API is there. A wait for it that comes later begins with the first error."""
        self._until = math.inf

    async def after(self, error: ApiUnreachable | ApiRefused) -> None:
        """Raises the error when time is up, or when it is of the kind that does not pass."""
        if isinstance(error, ApiRefused) and error.status == HTTPStatus.TOO_MANY_REQUESTS:
            if self._at_a_limit:
                self._at_a_limit(error)
            await asyncio.sleep(RETRY_AFTER_S if math.isnan(error.retry_after) else error.retry_after)
            self.renew()
            return
        passes = isinstance(error, ApiUnreachable) or error.status == HTTPStatus.SERVICE_UNAVAILABLE
        now = time.monotonic()
        self._until = min(self._until, now + PATIENCE.total_seconds())
        if not passes or now > self._until:
            raise error
        await asyncio.sleep(RETRY_S)


def _checked(url: str) -> httpx.URL:
    """Raises SettingsError for one that no request could be sent to."""
    try:
        parts = httpx.URL(url)
    except httpx.InvalidURL:
        parts = httpx.URL()
    if parts.scheme not in ("http", "https") or not parts.host or (parts.port or 0) > LAST_PORT:
        # Not which: what cannot be read may have a password in it.
        raise SettingsError("IWL_API_URL: not an http URL")
    return parts


def _final(event: Event) -> bool:
    return event.kind == "state" and event.data.status is not None and JobStatus(event.data.status).terminal


def _refusal(response: httpx.Response) -> ApiRefused:
    try:
        line = msgspec.json.decode(response.content, type=Problem).line
    except msgspec.DecodeError:
        line = response.reason_phrase
    retry_after = math.nan
    with suppress(KeyError, ValueError):
        retry_after = float(response.headers["Retry-After"])
    return ApiRefused(f"{response.status_code}: {line}", status=response.status_code, retry_after=retry_after)


async def _parse(response: httpx.Response) -> AsyncGenerator[Event, None]:
    """Server-sent events, as far as the API uses them: one data line each."""
    fields: dict[str, str] = {}
    async for line in response.aiter_lines():
        if line:
            name, _, value = line.partition(":")
            fields[name] = value.removeprefix(" ")
            continue
        if "data" in fields:
            data = msgspec.json.decode(fields["data"], type=EventData)
            yield Event(fields.get("id", ""), fields.get("event", ""), data, fields["data"])
        fields = {}
