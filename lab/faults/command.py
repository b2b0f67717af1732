"""`iwl faults` as a command: which faults, shown how, and the exit code."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from lab.exits import Exit
from lab.faults.fault import Fault
from lab.faults.matrix import FAULTS, SETTINGS
from lab.faults.show import WIDTH, list_lines, show_nothing, show_story, show_table

#: Four heartbeats of these labs.
SHORTEST_MS = 4 * int(SETTINGS["heartbeat_ms"])
BY_NAME = {fault.name: fault for fault in FAULTS}


def faults(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Only these; one is explained.")
    ] = None,
    only_list: Annotated[bool, typer.Option("--list", help="Show which faults there are.")] = False,
    idle_ms: Annotated[
        int | None, typer.Option(min=SHORTEST_MS, help="How long a lease lasts without renewal; else 2000.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One object, at the end.")] = False,
) -> None:
    """Break everything that can break, and account for every job. Exit code 1 if one was lost, counted twice,
    or anything was not as promised."""
    chosen = [_fault(name) for name in names] if names else list(FAULTS)
    if idle_ms is not None:
        chosen = [
            replace(fault, settings={"claim_idle_ms": str(idle_ms), **fault.settings}) for fault in chosen
        ]
    if only_list:
        print(_listed_json(chosen) if as_json else "\n".join(list_lines(chosen)))
        return
    raise typer.Exit(asyncio.run(_run(chosen, explain=bool(names) and len(chosen) == 1, as_json=as_json)))


async def _run(chosen: list[Fault], *, explain: bool, as_json: bool) -> Exit:
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=WIDTH)
    if as_json:
        report = await show_nothing(chosen)
    elif explain:
        report = await show_story(console, chosen[0])
    else:
        report = await show_table(console, chosen)
    if report is None:
        return Exit.FAILED
    if as_json:
        print(msgspec.json.encode(report).decode(), flush=True)
    return report.exit


def _fault(name: str) -> Fault:
    if name not in BY_NAME:
        raise typer.BadParameter(f"{name!r}: there are {', '.join(BY_NAME)}", param_hint="NAME")
    return BY_NAME[name]


def _listed_json(chosen: list[Fault]) -> str:
    listed = [{"fault": fault.name, "title": fault.title, "expected": fault.expected} for fault in chosen]
    return msgspec.json.encode({"faults": listed}).decode()
