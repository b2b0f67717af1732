"""`iwl up`: the lab until somebody stops it."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.status import Status

from common.errors import StoreError
from common.fleet import Backlog, ScaleView
from common.settings import set_by_the_user
from lab.exits import Exit
from lab.run import run_lab
from lab.system import Plan, Ready, System

LOOK_EVERY_S = 1.0
#: So often the same before it is said.
STEADY_LOOKS = 3
DEFAULT_API = "http://127.0.0.1:8080"
#: Settings that each child gets from here, whatever the environment says.
OWN = ("max_workers", "metrics_port", "worker_id", "instance")


async def up(plan: Plan, *, as_json: bool) -> Exit:
    """Runs until SIGINT, SIGTERM or SIGHUP. With `as_json` one line on standard output when ready."""
    console = Console(stderr=as_json, highlight=False, soft_wrap=True)

    def tell(line: str) -> None:
        console.print(escape(line), style="dim")

    async def stay(system: System, ready: Ready) -> Exit:
        if as_json:
            print(msgspec.json.encode(ready).decode(), flush=True)
        else:
            _welcome(console, system, ready)
        await _watch(system, console, show_status=console.is_terminal and not as_json)
        return Exit.OK

    if unused := set_by_the_user(*OWN):
        print(f"iwl: not used by `iwl up`, which sets it itself: {', '.join(unused)}", file=sys.stderr)
    if not as_json:
        workers = "1 worker" if plan.workers == 1 else f"{plan.workers} workers"
        tell(f"Starting server, gateway, scaler and {workers} ...")
    try:
        code = await run_lab(plan, tell, stay, interrupted=Exit.OK)
        tell("stopped")
        return code
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
    console.print(f'           {invoked()} submit "hello" --wait', markup=False)
    console.print(f"  kill     kill -9 {pid}   ({worker}: no job is lost, and its next pid is said here)")
    console.print(f"  queue    {ready.redis}{_kept(system)}", markup=False)
    console.print(f"  logs     {system.folder.path}/*.log\n", markup=False)


def _kept(system: System) -> str:
    """What becomes of the queue when the lab is stopped."""
    if system.server_port is None:
        return ""
    if system.folder.fresh:
        return ", gone when the lab stops (--data DIR keeps it)"
    return ", kept when the lab stops"


def invoked() -> str:
    """This command as a shell here understands it."""
    script = Path(sys.argv[0])
    if script.name == "__main__.py":
        return f"{sys.executable} -m lab"
    found = shutil.which(script.name)
    return script.name if found and Path(found).resolve() == script.resolve() else sys.argv[0]


async def _watch(system: System, console: Console, *, show_status: bool) -> None:
    readiness = Readiness(lambda line: console.print(line, style="yellow"), system.settings.backend)
    status = console.status("")
    with status if show_status else nullcontext():
        while True:
            try:
                fleet, backlog, pids = await system.fleet(), await system.backlog(), await system.pids()
            except StoreError as error:
                status.update(f"[yellow]{escape(str(error))}[/]")
            else:
                readiness.look(fleet)
                _show(status, fleet, backlog, pids)
            await asyncio.sleep(LOOK_EVERY_S)


class Readiness:
    """Says which workers read nothing because their backend does not answer, and when that is over."""

    def __init__(self, tell: Callable[[str], None], backend: str) -> None:
        self._tell = tell
        self._backend = backend
        self._seen: list[str] = []
        self._times = 0
        self._told: list[str] = []

    def look(self, fleet: ScaleView) -> None:
        waiting = sorted(worker.worker for worker in fleet.workers if not worker.ready)
        self._times = self._times + 1 if waiting == self._seen else 1
        self._seen = waiting
        # A worker that has just started, or whose call has just failed, asks its backend first, and says so
        # for up to a heartbeat.
        if self._times < STEADY_LOOKS or waiting == self._told:
            return
        who = ", ".join(waiting)
        self._tell(
            f"backend {self._backend} is not ready: {who} will read nothing until it is"
            if waiting
            else f"backend {self._backend} is ready"
        )
        self._told = waiting


def _show(status: Status, fleet: ScaleView, backlog: Backlog, pids: dict[str, int]) -> None:
    workers = ", ".join(f"{name} {pid}" for name, pid in pids.items() if name.startswith("worker-"))
    desired = fleet.decision.desired if fleet.decision else "?"
    counts = f"queued {backlog.queued + backlog.retrying}  running {backlog.running}"
    ended = f"succeeded {backlog.succeeded}  failed {backlog.failed}"
    status.update(f"{counts}  {ended}  unaccounted {backlog.unaccounted}\n  desired {desired}: {workers}")
