"""The whole system on one machine: server, gateway, scaler and workers, started and stopped in order."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import msgspec

from common.errors import LabError, SettingsError, StoreUnavailable
from common.fleet import Backlog, ScaleView
from common.settings import PREFIX, Durability, Settings, child_environment, load_settings
from common.store import Store
from common.stores import open_store
from lab.client import Api
from lab.exits import ChildRefused, NotStarted
from lab.folder import Folder
from lab.ports import free_port, is_free
from lab.server import server_answers, server_binary, server_command, server_url, without_password
from lab.supervisor import Child, Program, Supervisor

START_WITHIN = timedelta(seconds=30)
POLL_S = 0.02

#: Together with the drain time they stay within the ten seconds that a stop may take longer.
STORE_GRACE = timedelta(seconds=0.5)
API_GRACE = timedelta(seconds=3)
DRAIN_MARGIN = timedelta(seconds=2.5)
SCALER_GRACE = timedelta(seconds=2)
SERVER_GRACE = timedelta(seconds=1.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    #: 0 picks a free one.
    port: int = 8080
    workers: int = 2
    #: A server of the user's own; None runs the embedded one.
    redis_url: str | None = None
    #: Where data and logs stay; None is a fresh folder that goes with the lab.
    data: Path | None = None
    #: Settings of all children, without the `IWL_` prefix.
    settings: Mapping[str, str] = field(default_factory=dict[str, str])
    #: Whether scaler and workers serve their metrics, each on a free port (`System.metrics`).
    metrics: bool = False


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """What `iwl up --json` prints."""

    api: str
    redis: str
    #: By the names that job records show.
    pids: dict[str, int]


class System:
    """Raises SettingsError when the plan cannot work, ChildRefused and NotStarted from `start`."""

    def __init__(self, plan: Plan, tell: Callable[[str], None]) -> None:
        self._plan = plan
        #: Of the embedded server.
        self.server_port = None if plan.redis_url else free_port()
        redis_url = plan.redis_url or server_url(self.server_port or 0)
        host = load_settings(max_workers=plan.workers).host
        port = plan.port or free_port(host)
        if not is_free(port, host):
            raise SettingsError(f"Port {port} is in use: choose another with --port (0 picks a free one).")
        self._overrides = {
            **plan.settings,
            "redis_url": redis_url,
            "port": str(port),
            "max_workers": str(plan.workers),
        }
        self.settings: Settings = load_settings(**self._overrides)
        if self.server_port is not None and self.settings.durability is Durability.REPLICA:
            raise SettingsError("IWL_DURABILITY=replica: the embedded server has none; give --redis-url.")
        self.api = f"http://{_reachable(host)}:{port}"
        self._store: Store = open_store(self.settings)
        self.folder = Folder(plan.data)
        #: Where children serve their metrics, by the names of `Child.program`.
        self.metrics: dict[str, int] = {}
        self._tell = tell
        self._supervisor = Supervisor(tell)

    @property
    def refused(self) -> asyncio.Future[ChildRefused]:
        """Done as soon as a child cannot run with its settings."""
        return self._supervisor.refused

    async def start(self) -> Ready:
        if self.server_port is not None:
            await self._start_server(self.server_port)
        await self._check_server()
        self._add("api")
        self._add("scaler")
        # One after the other, so that child and slot of the same number belong together.
        for number in range(1, self._plan.workers + 1):
            self._add(f"worker-{number}", "worker")
            await self._until(f"worker-{number}", lambda count=number: self._seated(count))
        await self._until("scaler", self._decided)
        async with Api(self.api) as api:
            await self._until("api", api.ready)
        return Ready(api=self.api, redis=without_password(self.settings.redis_url), pids=await self.pids())

    async def stop(self) -> None:
        """Gateway, workers, scaler, server: nothing is accepted that nobody would run."""
        await asyncio.gather(self._supervisor.stop(["api"], API_GRACE), self._say_what_is_waited_for())
        with suppress(LabError, TimeoutError):
            async with asyncio.timeout(STORE_GRACE.total_seconds()):
                await self._store.aclose()
        workers = [name for name in self._supervisor.children if name.startswith("worker-")]
        await self._supervisor.stop(workers, self.settings.drain + DRAIN_MARGIN)
        await self._supervisor.stop(["scaler"], SCALER_GRACE)
        await self._supervisor.stop(["redis"], SERVER_GRACE)
        self.folder.close()

    async def _say_what_is_waited_for(self) -> None:
        with suppress(LabError, TimeoutError):
            async with asyncio.timeout(API_GRACE.total_seconds()):
                running = (await self.backlog()).running
            if running:
                jobs = "1 job" if running == 1 else f"{running} jobs"
                self._tell(f"draining {jobs}, up to {self.settings.drain.total_seconds():g} s")

    def kill(self) -> None:
        """For somebody who does not want to wait for `stop`."""
        self._supervisor.kill()

    async def children(self) -> dict[str, Child]:
        """All of them, workers by the slot that they hold at this moment."""
        slots = {worker.instance: worker.worker for worker in (await self.fleet()).workers}
        children = self._supervisor.children.items()
        return {slots.get(self._instance(name), name): child for name, child in children}

    async def pids(self) -> dict[str, int]:
        """Process ids, by the names of `children`."""
        named = {name: child.pid for name, child in (await self.children()).items()}
        return {name: pid for name, pid in named.items() if pid is not None}

    async def whole(self) -> None:
        """Returns once every part runs again after some died. For the embedded server: it has our clock.

        Raises NotStarted."""
        for name, child in self._supervisor.children.items():
            await self._until(name, lambda child=child: _alive(child))
        async with Api(self.api) as api:
            await self._until("api", api.ready)
        for number in range(1, self._plan.workers + 1):
            await self._until(f"worker-{number}", lambda name=f"worker-{number}": self._seated_again(name))

    async def fleet(self) -> ScaleView:
        return await self._store.scale()

    async def backlog(self) -> Backlog:
        return await self._store.depth()

    def _add(self, name: str, module: str | None = None) -> None:
        if self._plan.metrics and name != "api":
            self.metrics[name] = free_port()
        own = {"instance": self._instance(name), "metrics_port": str(self.metrics.get(name, 0))}
        environment = child_environment(**self._overrides, **own)
        # An id of the user's own would be claimed by every worker at once.
        environment.pop(f"{PREFIX}WORKER_ID", None)
        # -P: a folder named `api` or `common` where the user happens to stand is not ours.
        command = (sys.executable, "-P", "-m", module or name)
        self._launch(name, command, environment)

    def _launch(self, name: str, command: tuple[str, ...], environment: Mapping[str, str]) -> None:
        log = self.folder.log(name)
        self._supervisor.add(Program(name=name, command=command, environment=environment, log=log))

    def _instance(self, name: str) -> str:
        return f"{self.folder.name}-{name}"

    async def _start_server(self, port: int) -> None:
        sync = "always" if self.settings.durability is Durability.AOF else "everysec"
        command = server_command(server_binary(), port, self.folder.path, sync=sync)
        self._launch("redis", command, child_environment())
        await self._until("redis", lambda: server_answers(port))

    async def _check_server(self) -> None:
        try:
            await self._store.start()
        except StoreUnavailable as error:
            raise NotStarted(f"The server at {without_password(self.settings.redis_url)}: {error}") from error

    async def _seated(self, count: int) -> bool:
        seated = {worker.instance for worker in (await self.fleet()).workers}
        return all(self._instance(f"worker-{number}") in seated for number in range(1, count + 1))

    async def _seated_again(self, name: str) -> bool:
        """A dead worker's seat outlives it by a few heartbeats."""
        born = self._supervisor.children[name].born_at
        workers = (await self.fleet()).workers
        return any(each.instance == self._instance(name) and each.seen_at > born for each in workers)

    async def _decided(self) -> bool:
        return (await self.fleet()).decision is not None

    async def _until(self, child: str, condition: Callable[[], Awaitable[bool]]) -> None:
        """Raises ChildRefused, and NotStarted with the child's last lines when time is up."""
        deadline = time.monotonic() + START_WITHIN.total_seconds()
        while time.monotonic() < deadline:
            if self.refused.done():
                raise self.refused.result()
            with suppress(StoreUnavailable):
                if await condition():
                    return
            await asyncio.sleep(POLL_S)
        seconds = START_WITHIN.total_seconds()
        raise NotStarted(f"{child} is not ready after {seconds:g} s. It said:\n{self.folder.tail(child)}")


async def _alive(child: Child) -> bool:
    return child.pid is not None


def _reachable(host: str) -> str:
    match host:
        case "0.0.0.0" | "":
            return "127.0.0.1"
        case "::":
            return "[::1]"
        case _:
            return f"[{host}]" if ":" in host else host
