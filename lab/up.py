"""`iwl up`: the lab until somebody stops it."""

from __future__ import annotations

import asyncio
import sys

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.status import Status

from common.errors import StoreError
from lab.exits import Exit
from lab.run import run_lab
from lab.system import Plan, Ready, System

STATUS_EVERY_S = 1.0
DEFAULT_API = "http://127.0.0.1:8080"


async def up(plan: Plan, *, as_json: bool) -> Exit:
    """Runs until SIGINT, SIGTERM or SIGHUP. With `as_json` one line on standard output when ready."""
    console = Console(stderr=as_json, highlight=False)

    async def stay(system: System, ready: Ready) -> Exit:
        if as_json:
            print(msgspec.json.encode(ready).decode(), flush=True)
        else:
            _welcome(console, system, ready)
        if as_json or not console.is_terminal:
            await asyncio.Event().wait()
        await _show_status(console, system)
        return Exit.OK

    if not as_json:
        console.print(f"Starting server, gateway, scaler and {plan.workers} workers ...", style="dim")
    try:
        return await run_lab(plan, lambda line: console.print(line, style="dim"), stay, interrupted=Exit.OK)
    finally:
        sys.stdout.flush()


def _welcome(console: Console, system: System, ready: Ready) -> None:
    worker, pid = next((name, pid) for name, pid in ready.pids.items() if name.startswith("worker-"))
    console.print("\n[bold green]The lab is up.[/] Ctrl-C stops everything.\n")
    console.print(f"  [bold]{ready.api}/docs[/]      try the API out")
    console.print(f"  [bold]{ready.api}/v1/scale[/]  the fleet, and why it has its size\n")
    if ready.api != DEFAULT_API:
        console.print(f"  first    export IWL_API_URL={ready.api}")
    console.print(f"""  submit   curl -s {ready.api}/v1/jobs -d '{{"prompt": "hello"}}'""", markup=False)
    console.print('           iwl submit "hello" --wait')
    console.print(f"  kill     kill -9 {pid}   ({worker}: it comes back, and no job is lost)")
    console.print(f"  logs     {system.folder.path}/*.log\n")


async def _show_status(console: Console, system: System) -> None:
    with console.status("") as status:
        while True:
            await _update(status, system)
            await asyncio.sleep(STATUS_EVERY_S)


async def _update(status: Status, system: System) -> None:
    try:
        fleet, backlog, pids = await system.fleet(), await system.backlog(), await system.pids()
    except StoreError as error:
        status.update(f"[yellow]{escape(str(error))}[/]")
        return
    workers = ", ".join(f"{name} {pid}" for name, pid in pids.items() if name.startswith("worker-"))
    desired = fleet.decision.desired if fleet.decision else "?"
    counts = f"queued {backlog.queued + backlog.retrying}  running {backlog.running}"
    ended = f"succeeded {backlog.succeeded}  failed {backlog.failed}"
    fleet_line = f"desired {desired}: {workers}"
    status.update(f"{counts}  {ended}  unaccounted {backlog.unaccounted}\n  {fleet_line}")
