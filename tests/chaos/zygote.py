"""`python -m tests.chaos.zygote SOCKET`: forks a ready-made service for each connection, in milliseconds.

A service runs as its own `__main__` does, with real signals and settings from its environment; only its store
gets tapped connections. The connection is its standard output and error, and ends when the process does.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from types import ModuleType

import msgspec

import api.__main__ as gateway
import scaler.__main__ as scaler
import worker.__main__ as worker
from common.redis_store.store import RedisStore
from common.redis_store.wire import Client, dial
from common.settings import PREFIX, Settings
from common.store import Store
from tests.chaos.sabotage import SABOTAGES
from tests.chaos.spots import Spot
from tests.chaos.tap import Tap, TappedClient

SERVICES: dict[str, ModuleType] = {"gateway": gateway, "worker": worker, "scaler": scaler}
PR_SET_PDEATHSIG = 1


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """One process: what the harness asks for, as a line of JSON."""

    service: str
    #: Settings, named as in `Settings`.
    settings: Mapping[str, str]
    spot: Spot | None = None
    sabotage: str | None = None


def main() -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(sys.argv[1])
    listener.listen(64)
    _die_with(os.getppid())
    # Children are reaped by the kernel; who watches one reads its connection to the end.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.collect()
    gc.freeze()
    print("ready", flush=True)
    me = os.getpid()
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            _die_with(me)
            os._exit(_become(connection))
        connection.close()


def _die_with(parent: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _become(connection: socket.socket) -> int:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with connection.makefile("rb") as lines:
        order = msgspec.json.decode(lines.readline(), type=Order)
    for descriptor in (1, 2):
        os.dup2(connection.fileno(), descriptor)
    connection.close()
    for name in [name for name in os.environ if name.startswith(PREFIX)]:
        del os.environ[name]
    os.environ.update({f"{PREFIX}{name.upper()}": value for name, value in order.settings.items()})
    service = SERVICES[order.service]
    vars(service)["open_store"] = _opener(order)
    _tell(f"PID {os.getpid()}")
    status = int(service.main())
    _tell(f"EXIT {status}")
    return status


def _opener(order: Order) -> Callable[[Settings], Store]:
    sabotage = SABOTAGES[order.sabotage] if order.sabotage else None
    tap = Tap(order.spot, _tell, sabotage)

    class TappedStore(RedisStore):
        async def start(self) -> None:
            await super().start()
            tap.starting = False

    def open_store(settings: Settings) -> Store:
        def connect() -> Client:
            return TappedClient(dial(settings.redis_url), tap)

        return TappedStore(settings, connect=connect)

    return open_store


def _tell(line: str) -> None:
    # Unbuffered and whole: this process may be gone at the next instruction.
    os.write(2, f"{line}\n".encode())


if __name__ == "__main__":
    main()
