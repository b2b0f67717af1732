"""The `iwl` command."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated

import typer

from common import VERSION
from common.errors import LabError, SettingsError, StoreRefused
from common.settings import PREFIX
from lab import commands, dead
from lab.demo import demo as run_demo
from lab.exits import EXITS, ApiUnreachable, ChildRefused, Exit
from lab.faults.command import faults
from lab.output import complain, shown
from lab.system import Plan
from lab.up import up as run_up

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    epilog=EXITS,
    help="Inference Worker Lab on this machine: run it, break it, ask it. IWL_API_URL names the API.",
)


def _show_version(asked: bool) -> None:
    if asked:
        print(f"iwl {VERSION}")
        raise typer.Exit


@app.callback()
def iwl(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show it and exit.")
    ] = False,
) -> None:
    pass


@app.command(epilog=EXITS)
def up(
    port: Annotated[
        int,
        typer.Option(min=0, max=65535, envvar=f"{PREFIX}PORT", help="Of the API; 0 picks a free one."),
    ] = 8080,
    workers: Annotated[int, typer.Option(min=1, max=64, help="How many, at most.")] = 2,
    redis_url: Annotated[
        str | None,
        typer.Option(envvar=f"{PREFIX}REDIS_URL", help="Redis 7 or newer; else an embedded server."),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Keep data and logs here; else they go at the end.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One line when ready: api, redis, pids.")] = False,
) -> None:
    """Run the whole system until Ctrl-C."""
    plan = Plan(port=port, workers=workers, redis_url=redis_url, data=data)
    raise typer.Exit(asyncio.run(run_up(plan, as_json=as_json)))


@app.command(epilog=EXITS)
def demo(
    as_json: Annotated[bool, typer.Option("--json", help="Only the figures, as one object.")] = False,
) -> None:
    """Run 80 jobs, kill a worker in the middle, and account for every job. Exit code 1 if one is missing."""
    raise typer.Exit(asyncio.run(run_demo(as_json=as_json)))


app.command(epilog=EXITS)(faults)
app.add_typer(commands.app)
app.add_typer(dead.app, name="dlq", epilog=EXITS)


def main() -> None:
    with shown():
        for word in sys.argv[1:]:
            if _has_surrogates(word):
                complain(f"{word!r} is not UTF-8")
                sys.exit(Exit.USAGE)
        try:
            app()
        except LabError as error:
            complain(error)
            sys.exit(_code(error))


def _has_surrogates(word: str) -> bool:
    """Bytes of the command line that are no UTF-8: they cannot be sent as JSON."""
    return any("\ud800" <= char <= "\udfff" for char in word)


def _code(error: LabError) -> Exit:
    match error:
        case SettingsError() | StoreRefused() | ChildRefused():
            return Exit.USAGE
        case ApiUnreachable():
            return Exit.UNREACHABLE
        case _:
            return Exit.FAILED
