"""A client of the API that repeats what a dead gateway did not answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

import httpx
import msgspec

from tests.chaos.stage import KEY
from tests.chaos.succession import Fault, Succession

Json = dict[str, Any]

ENDED = ("succeeded", "failed", "cancelled", "expired")

LONGEST_WAIT_S = 20
PAUSE_S = 0.01


class Client:
    def __init__(self, gateways: Succession, workers: Succession) -> None:
        self._gateways = gateways
        #: To send them away, and to know what they do.
        self.workers = workers
        self._http = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {KEY}"},
            timeout=LONGEST_WAIT_S + 5,
            verify=False,
            trust_env=False,
        )
        #: Submits that were sent, answered or not.
        self.submits = 0
        #: What the client was told of each job that it was told about: accepted, or how it ended.
        self.told: dict[str, Json] = {}

    async def aclose(self) -> None:
        await self._http.aclose()

    async def ask(self, method: str, path: str, *, expect: int = 200, body: Json | None = None) -> Json:
        """The answer, from the first gateway that gives one."""
        while True:
            url = await self._gateways.url()
            self.submits += (method, path) == ("POST", "/v1/jobs")
            try:
                answer = await self._http.request(method, url + path, json=body)
            except httpx.TransportError:
                await asyncio.sleep(PAUSE_S)
                continue
            if answer.status_code != expect:
                raise Fault(f"{method} {path}: {answer.status_code} {answer.text}")
            return answer.json()

    async def submit(self, **body: Any) -> str:
        job_id = str((await self.ask("POST", "/v1/jobs", expect=202, body=body))["job_id"])
        self.told.setdefault(job_id, {})
        return job_id

    async def end(self, job_id: str) -> Json:
        """The job once it has ended; must be the same whenever it is asked."""
        while True:
            job = await self.ask("GET", f"/v1/jobs/{job_id}?wait={LONGEST_WAIT_S}")
            if job["status"] not in ("queued", "running"):
                self.told[job_id] = job
                return job

    async def running(self, job_id: str) -> None:
        await self.until(f"/v1/jobs/{job_id}", lambda job: job["status"] != "queued")

    async def until(self, path: str, so: Callable[[Json], bool]) -> Json:
        """The first answer that is so."""
        while True:
            answer = await self.ask("GET", path)
            if so(answer):
                return answer
            await asyncio.sleep(PAUSE_S)

    async def follow(self, job_id: str) -> str:
        """The output as its events told it, resumed wherever a stream broke off."""
        text, last, ended = "", "", False
        while not ended:
            try:
                async with aclosing(self._events(job_id, last)) as events:
                    async for kind, ident, data in events:
                        last = ident or last
                        text = "" if kind == "attempt" else text + data.get("text", "")
                        ended = data.get("status") in ENDED
            except httpx.TransportError:
                await asyncio.sleep(PAUSE_S)
        return text

    async def _events(self, job_id: str, after: str) -> AsyncGenerator[tuple[str, str, Json], None]:
        """(kind, id, data) of each event."""
        url = f"{await self._gateways.url()}/v1/jobs/{job_id}/events"
        fields: dict[str, str] = {}
        async with self._http.stream("GET", url, headers={"Last-Event-ID": after} if after else {}) as answer:
            async for line in answer.aiter_lines():
                if line:
                    name, _, value = line.partition(": ")
                    fields[name] = value
                elif "data" in fields:
                    yield fields["event"], fields.get("id", ""), msgspec.json.decode(fields["data"])
                    fields = {}
