"""The `iwl` commands that are clients of the HTTP API."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console

from common.errors import LabError
from common.job import JobStatus
from common.settings import load_client_settings
from lab import load as loading
from lab.client import Api
from lab.exits import EXITS, Exit
from lab.follow import Screen, follow
from lab.records import JobRecord
from lab.show import failure_line, job_lines, job_table, scale_table, stats_table

#: A century: what is longer is no time that somebody waits.
LONGEST_S = 100 * 366 * 86_400.0


def _seconds(value: float | None) -> float | None:
    if value is not None and not abs(value) <= LONGEST_S:
        raise typer.BadParameter(f"{value} is not a number of seconds")
    return value


Json = Annotated[bool, typer.Option("--json", help="The API's answer as JSON.")]
Before = Annotated[str | None, typer.Option(help="`next` of the page before.")]
JobId = Annotated[str, typer.Argument(metavar="ID", help="Job id.")]

app = typer.Typer(epilog=EXITS)

out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)


def call(work: Callable[[Api], Awaitable[Exit]], *, tell: bool = False) -> None:
    """Does `work` with the API that the environment names, and exits with its code.

    With `tell`, a limit that it waits for is told."""

    async def run() -> Exit:
        settings = load_client_settings()
        async with Api(settings.api_url, settings.api_key, tell=_tell if tell else None) as api:
            return await work(api)

    raise typer.Exit(asyncio.run(run()))


def _tell(line: str) -> None:
    # Not by `err`, which would write into a progress bar.
    print(line, file=sys.stderr)


def _ended(job: JobRecord) -> Exit:
    """An ended job that did not succeed is a failure; one that lives is not."""
    return Exit.FAILED if job.ended and not job.succeeded else Exit.OK


def _param(text: str) -> tuple[list[str], object]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise typer.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--param")
    with suppress(msgspec.DecodeError):
        return name.split("."), msgspec.json.decode(value)
    return name.split("."), value


def nested(params: list[str]) -> dict[str, object]:
    """`mock.tokens=3` is `{"mock": {"tokens": 3}}`; a value that is not JSON is a string."""
    root: dict[str, Any] = {}
    for path, value in map(_param, params):
        place = root
        for name in path[:-1]:
            if not isinstance(place.setdefault(name, {}), dict):
                raise typer.BadParameter(f"{name!r} is a value and a group", param_hint="--param")
            place = place[name]
        place[path[-1]] = value
    return root


def print_lines(lines: list[str], *, none: str) -> None:
    """`none` tells a person that there are none; a program behind a pipe gets no line."""
    for line in lines:
        print(line)
    if not lines:
        err.print(none, style="dim")


@contextmanager
def _goes_on(what: str, commands: str) -> Generator[None]:
    """Tells who stops waiting, or has to, how to find again what goes on without them."""
    try:
        yield
    except (asyncio.CancelledError, LabError):
        err.print(f"\n{what} goes on: {commands}", style="dim")
        raise


@app.command(epilog=EXITS)
def submit(
    prompt: Annotated[str, typer.Argument(help="What the model is asked.")],
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the end and print the result.")] = False,
    stream: Annotated[bool, typer.Option("--stream", help="Print the output while it comes.")] = False,
    param: Annotated[
        list[str] | None, typer.Option(help="Model parameter, as in temperature=0 or mock.latency_ms=200.")
    ] = None,
    idempotency_key: Annotated[str | None, typer.Option(help="The same key gives the same job.")] = None,
    timeout_s: Annotated[float | None, typer.Option(callback=_seconds, help="Limit of one attempt.")] = None,
    expires_in_s: Annotated[
        float | None, typer.Option(callback=_seconds, help="Limit of the whole job.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Model name.")] = None,
    as_json: Json = False,
) -> None:
    """Submit a job and print its id, or with --wait or --stream its result."""
    optional = {
        "idempotency_key": idempotency_key,
        "timeout_s": timeout_s,
        "expires_in_s": expires_in_s,
        "model": model,
    }
    body: dict[str, object] = {"prompt": prompt, "params": nested(param or []), "stream": stream}
    body |= {name: value for name, value in optional.items() if value is not None}

    async def work(api: Api) -> Exit:
        accepted = await api.submit(body)
        job_id = accepted.value.job_id
        with _goes_on(job_id, f"iwl watch {job_id}, iwl cancel {job_id}"):
            if stream:
                return _ended(await follow(api, job_id, Screen(err, states=False), as_json=as_json))
            if wait:
                reply = await api.ended(job_id)
                _print_result(reply.value) if not as_json else print(reply.raw)
                return _ended(reply.value)
        print(accepted.raw if as_json else job_id)
        return Exit.OK

    call(work, tell=not as_json)


def _print_result(job: JobRecord) -> None:
    if job.result:
        print(job.result.text)
    else:
        err.print(f"{job.job_id} {failure_line(job)}", markup=False)


@app.command(epilog=EXITS)
def get(
    job_id: JobId,
    wait: Annotated[
        float, typer.Option(min=0, callback=_seconds, help="Seconds to wait for the job's end.")
    ] = 0,
    as_json: Json = False,
) -> None:
    """Show a job. Exit code 1 when it has ended without success, or is not known."""

    async def work(api: Api) -> Exit:
        reply = await api.job(job_id, timedelta(seconds=wait))
        print(reply.raw) if as_json else out.print(job_table(reply.value))
        return _ended(reply.value)

    call(work, tell=not as_json)


@app.command("list", epilog=EXITS)
def list_jobs(
    status: Annotated[JobStatus | None, typer.Option(help="Only those in this state.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=100)] = 20,
    before: Before = None,
    as_json: Json = False,
) -> None:
    """Show recent jobs, newest first."""

    async def work(api: Api) -> Exit:
        reply = await api.jobs(status, limit, before)
        print_lines([reply.raw] if as_json else job_lines(reply.value), none="no jobs")
        if reply.value.next and not as_json:
            err.print(f"more: --before {reply.value.next}", style="dim")
        return Exit.OK

    call(work)


@app.command(epilog=EXITS)
def watch(job_id: JobId, as_json: Json = False) -> None:
    """Follow a job to its end. Exit code 1 when it does not succeed."""

    async def work(api: Api) -> Exit:
        return _ended(await follow(api, job_id, Screen(err, states=True), as_json=as_json))

    call(work, tell=not as_json)


@app.command(epilog=EXITS)
def cancel(job_id: JobId, as_json: Json = False) -> None:
    """Cancel a job that has not ended."""

    async def work(api: Api) -> Exit:
        reply = await api.cancel(job_id)
        print(reply.raw if as_json else f"{reply.value.job_id} {reply.value.status}")
        return Exit.OK

    call(work)


@app.command(epilog=EXITS)
def scale(as_json: Json = False) -> None:
    """Show how many workers there should be, and why."""

    async def work(api: Api) -> Exit:
        reply = await api.scale()
        print(reply.raw) if as_json else out.print(scale_table(reply.value))
        return Exit.OK

    call(work)


@app.command(epilog=EXITS)
def stats(as_json: Json = False) -> None:
    """Show where all jobs are. Exit code 1 when one is unaccounted for."""

    async def work(api: Api) -> Exit:
        reply = await api.stats()
        print(reply.raw) if as_json else out.print(stats_table(reply.value))
        return Exit.FAILED if reply.value.unaccounted else Exit.OK

    call(work)


@app.command(epilog=EXITS)
def load(
    jobs: Annotated[int, typer.Option(min=1)] = 100,
    concurrency: Annotated[int, typer.Option(min=1, help="Clients at once, each with one job.")] = 8,
    prompt: Annotated[str, typer.Option()] = "What survives a crash?",
    latency_ms: Annotated[int | None, typer.Option(min=0, help="Latency of the mock model.")] = None,
    as_json: Json = False,
) -> None:
    """Submit many jobs, wait for all, and show throughput and latency."""
    plan = loading.Load(jobs=jobs, concurrency=concurrency, prompt=prompt, latency_ms=latency_ms)

    async def work(api: Api) -> Exit:
        with _goes_on("what was submitted", "iwl list"):
            return await loading.load(api, plan, as_json=as_json)

    call(work, tell=not as_json)
