"""A job as somebody at a terminal, or a program behind a pipe, follows it to its end."""

from __future__ import annotations

import sys

import msgspec
from rich.console import Console

from lab.client import Api, Event
from lab.records import JobRecord
from lab.show import failure_line


class Screen:
    """Output to standard output, everything else to standard error.

    Behind a pipe the output waits for its end: a failed attempt's would stay in front of the next one's."""

    def __init__(self, err: Console, *, states: bool) -> None:
        self._err = err
        self._states = states
        self._live = sys.stdout.isatty()
        self._mid_line = False
        self._shown = False

    def show(self, event: Event) -> None:
        if event.kind == "chunk":
            self._chunk(event.data.text or "")
        elif event.kind == "attempt" and event.data.attempt > 1:
            self._shown = False
            self._note(f"attempt {event.data.attempt}: the output starts again")
        elif self._states:
            attempt = event.data.attempt
            self._note(f"{event.data.status}, attempt {attempt}" if attempt else f"{event.data.status}")

    def end(self, job: JobRecord) -> None:
        self._new_line()
        if not job.result:
            self._err.print(f"{job.job_id} {failure_line(job)}", markup=False)
        elif not self._shown:
            print(job.result.text)

    def _chunk(self, text: str) -> None:
        if self._live and text:
            self._shown = True
            self._mid_line = not text.endswith("\n")
            print(text, end="", flush=True)

    def _note(self, line: str) -> None:
        self._new_line()
        self._err.print(line, style="dim", markup=False)

    def _new_line(self) -> None:
        if self._mid_line:
            print(flush=True)
        self._mid_line = False


async def follow(api: Api, job_id: str, screen: Screen, *, as_json: bool) -> JobRecord:
    """The job once it has ended."""
    async for event in api.events(job_id):
        if as_json:
            print(_line(event), flush=True)
        else:
            screen.show(event)
    job = (await api.ended(job_id)).value
    if not as_json:
        screen.end(job)
    return job


def _line(event: Event) -> str:
    line = {"id": event.id, "event": event.kind, "data": msgspec.Raw(event.raw.encode())}
    return msgspec.json.encode(line).decode()
