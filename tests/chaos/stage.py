"""Where trials are played: one server, one zygote, and the processes it forks."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import redis

from tests.api.keyring import line, write_keys
from tests.chaos.zygote import Order
from tests.repository import ROOT
from tests.servers import Server

#: The client has a name, so that its unfinished jobs are counted.
KEY = "a key of the chaos client"

#: A line of a log is short, but a traceback in JSON is one line too.
LONGEST_LINE = 1 << 20


class Process:
    """A forked service, as seen through its output."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.pid = 0
        self.log: list[str] = []
        #: Everything it sent to the store, by name.
        self.sent: list[str] = []
        #: Whether it died at its spot.
        self.struck = False
        #: Exit status, when it got so far.
        self.status: int | None = None
        #: Where a gateway listens; None when it ended before it did.
        self.url: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self.ended = asyncio.Event()
        self.born = asyncio.Event()

    def signal(self, number: signal.Signals) -> None:
        # Not before it has told its pid: signals to 0 go to everybody here.
        if self.pid and not self.ended.is_set():
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    async def watch(self, socket: str) -> None:
        """Starts it, and returns when it has ended."""
        try:
            reader, writer = await asyncio.open_unix_connection(socket, limit=LONGEST_LINE)
            writer.write(msgspec.json.encode(self.order) + b"\n")
            async for line in reader:
                self._read(line.decode(errors="replace").rstrip("\n"))
            writer.close()
        finally:
            self.ended.set()
            self.born.set()
            if not self.url.done():
                self.url.set_result(None)

    def _read(self, line: str) -> None:
        match line.split(" ", 1):
            case ["SENT", what]:
                self.sent.append(what)
            case ["DIED"]:
                self.struck = True
            case ["PID", pid]:
                self.pid = int(pid)
                self.born.set()
            case ["EXIT", status]:
                self.status = int(status)
            case _:
                self.log.append(line)
                if '"listening"' in line:
                    self.url.set_result(msgspec.json.decode(line)["url"])


@dataclass(frozen=True)
class Stage:
    server: Server
    socket: str
    #: Of the gateways: one line, for KEY.
    keys_file: str
    #: Whether the server can make a client wait for its disk.
    durable: bool

    def start(self, order: Order) -> tuple[Process, asyncio.Task[None]]:
        """The process, and a task that ends with it."""
        process = Process(order)
        return process, asyncio.create_task(process.watch(self.socket))


@contextmanager
def stage(server: Server) -> Generator[Stage, None, None]:
    # A short path: those of Unix sockets must fit into 107 bytes.
    with tempfile.TemporaryDirectory(prefix="iwl-chaos-") as folder:
        socket = str(Path(folder, "zygote"))
        zygote = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.zygote", socket],
            cwd=ROOT,
            env=_unmeasured(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )
        assert zygote.stdout
        try:
            assert zygote.stdout.readline() == b"ready\n", "the zygote did not start"
            keys = write_keys(Path(folder, "keys"), line("chaos", KEY, operator=True))
            yield Stage(server, socket, str(keys), durable=_has_waitaof(server))
        finally:
            zygote.kill()
            zygote.wait()
            zygote.stdout.close()


def _has_waitaof(server: Server) -> bool:
    with redis.Redis.from_url(server.url) as raw:  # pyright: ignore[reportUnknownMemberType]
        try:
            raw.execute_command("WAITAOF", 0, 0, 1)  # pyright: ignore[reportUnknownMemberType]
        except redis.ResponseError:
            return False
        return True


def _unmeasured() -> dict[str, str]:
    """Processes that are killed leave no coverage data, and measuring them makes each start slow."""
    return {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
