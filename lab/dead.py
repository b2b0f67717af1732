"""`iwl dlq`: the jobs that failed for good, and another try for them."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer

from common.job import Cause
from lab.client import Api
from lab.commands import Before, Json, call, err, print_lines
from lab.exits import EXITS, Exit
from lab.records import DeadPage
from lab.show import dead_lines, redrive_lines

#: As many as the API gives at once.
PAGE = 100

app = typer.Typer(no_args_is_help=True, help="Jobs that failed for good, and another try for them.")


@app.command("list", epilog=EXITS)
def list_dead(
    cause: Annotated[Cause | None, typer.Option(help="Only those that died of this.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=PAGE)] = 50,
    before: Before = None,
    as_json: Json = False,
) -> None:
    """Show dead jobs, newest first."""

    async def work(api: Api) -> Exit:
        if cause is None:
            raw = (await api.dead(limit, before)).raw
        else:
            raw = await _of_cause(api, cause, limit, before)
        page = msgspec.json.decode(raw, type=DeadPage)
        print_lines([raw] if as_json else dead_lines(page), none="no dead jobs")
        if page.next and not as_json:
            err.print(f"more: --before {page.next}", style="dim")
        return Exit.OK

    call(work)


async def _of_cause(api: Api, cause: Cause, limit: int, before: str | None) -> str:
    """A page as the API would give it, if it could choose by cause."""
    found: list[dict[str, Any]] = []
    while True:
        page: dict[str, Any] = msgspec.json.decode((await api.dead(PAGE, before)).raw)
        found += [job for job in page["jobs"] if job["cause"] == cause]
        before = page["next"]
        if len(found) > limit or (len(found) == limit and before):
            found, before = found[:limit], found[limit - 1]["cursor"]
            break
        if before is None:
            break
    return msgspec.json.encode({"jobs": found, "next": before}).decode()


@app.command(epilog=EXITS)
def redrive(
    ids: Annotated[list[str] | None, typer.Argument(metavar="ID", help="Dead jobs.")] = None,
    cause: Annotated[Cause | None, typer.Option(help="All that died of this.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All dead jobs, up to the limit.")] = False,
    limit: Annotated[int, typer.Option(min=1)] = 100,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be queued.")] = False,
    as_json: Json = False,
) -> None:
    """Queue dead jobs again as new jobs: those named, those of a cause, or all."""
    if bool(ids) + bool(cause) + everything != 1:
        raise typer.BadParameter("name dead jobs, or give --cause, or --all: one of them", param_hint="ID")

    async def work(api: Api) -> Exit:
        reply = await api.redrive(ids=ids or [], cause=cause, limit=limit, dry_run=dry_run)
        report = reply.value
        done = {*report.unusable, *(job.job_id for job in report.jobs)}
        left = [job_id for job_id in dict.fromkeys(ids or []) if job_id not in done]
        print_lines(
            [reply.raw] if as_json else redrive_lines(report, left), none="no dead jobs to queue again"
        )
        return Exit.FAILED if report.unusable or left else Exit.OK

    call(work)
