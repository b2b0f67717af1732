"""A Redis server in virtual time: fakeredis behind sessions that block, break, and lose their last second."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager
from hashlib import blake2b
from typing import Any, cast
from unittest.mock import patch

import redis
from fakeredis import FakeServer
from fakeredis._helpers import NoResponse  # pyright: ignore[reportMissingTypeStubs]
from fakeredis._socket import FakeSocket  # pyright: ignore[reportMissingTypeStubs]
from fakeredis.commands_mixins import scripting_mixin  # pyright: ignore[reportMissingTypeStubs]

from tests.simulation.clock import VirtualLoop

Answer = Callable[[Any], None]


def unwatched() -> AbstractContextManager[object]:
    """No search for new Lua globals at every command: it takes a tenth of the time, and the contract suite,
    on fakeredis as it is, finds them."""
    return patch.object(scripting_mixin, "_check_for_lua_globals", _look_away)


def _look_away(*_: object) -> None:
    pass


class Session(FakeSocket):
    """One connection as the server sees it. `answer` gets each reply, and what is published to it."""

    def __init__(self, server: SimulatedServer, name: str, answer: Answer) -> None:
        self.server = server
        self.name = name
        self.answer = answer
        self.open = True
        #: A read that waits: tries again, shapes the answer, and the number of the wait.
        self.wait: tuple[Callable[[bool], Any], Callable[[Any], Any], int] | None = None
        self._number = server.number()
        super().__init__(server.fake, 0, client_class=redis.Redis)

    def __hash__(self) -> int:
        """Sets of sessions, of a channel's subscribers, have the order in which they came."""
        return self._number

    def put_response(self, msg: Any) -> None:
        self.server.trace(self.name, msg)
        if self.open:
            self.answer(msg)

    def _blocking(
        self,
        timeout: float | None,
        func: Callable[[bool], Any],
        shape: Callable[[Any], Any] | None = None,
    ) -> Any:
        found, form = func(True), shape or _as_it_is
        if found is not None:
            return form(found)
        self._blocked = True
        self.server.block(self, func, form, timeout or 0)
        return NoResponse()

    def unblock(self, found: Any) -> None:
        assert self.wait
        _, form, _ = self.wait
        self.wait, self._blocked, self._unblock_reason = None, False, None
        self.put_response(self._decode_result(form(found)))

    @property
    def unblocked(self) -> bool:
        """Whether CLIENT UNBLOCK was called on it."""
        return self._unblock_reason is not None


class SimulatedServer:
    """One server. Everything it does goes into `digest`: two runs with the same one were the same."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self.fake = FakeServer()
        self.up = True
        self.sessions: list[Session] = []
        self.commands = 0
        self._digest = blake2b(digest_size=8)
        self._waits = 0
        self._numbers = itertools.count()
        self._wake_up = False
        quiet = Session(self, "", lambda _: None)
        quiet.sendall(b"*3\r\n$4\r\nEVAL\r\n$8\r\nreturn 1\r\n$1\r\n0\r\n")
        # Scripts are compiled once, and the heap is not swept after each.
        lua = cast(Any, self.fake)
        lua._lua_runtime = _Compiled(lua._lua_runtime)

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()

    def number(self) -> int:
        return next(self._numbers)

    def trace(self, *what: object) -> None:
        self._digest.update(repr((self._loop.clock.ns, *what)).encode())

    def connect(self, name: str, answer: Answer) -> Session | None:
        if not self.up:
            return None
        self.sessions.append(session := Session(self, name, answer))
        return session

    def close(self, session: Session) -> None:
        if session.open:
            session.open, session.wait = False, None
            self.sessions.remove(session)
            session.close()

    def receive(self, session: Session, packed: bytes) -> None:
        """Runs what came in on a session, then whatever waited for it."""
        if not session.open:
            return
        self.commands += 1
        self.trace(session.name, packed)
        session.sendall(packed)
        for waiting in [one for one in self.sessions if one.wait]:
            assert waiting.wait
            if waiting.unblocked:
                waiting.unblock(None)
            elif (found := waiting.wait[0](False)) is not None:
                waiting.unblock(found)

    def block(
        self, session: Session, again: Callable[[bool], Any], form: Callable[[Any], Any], timeout: float
    ) -> None:
        self._waits += 1
        number = self._waits
        session.wait = (again, form, number)

        def over() -> None:
            if session.wait and session.wait[2] == number:
                session.unblock(None)

        self._loop.call_later(timeout, over)

    # ---- faults

    def stop(self) -> None:
        """Ends every connection; data stay, as on a disk that was written to the last byte."""
        self.up = False
        for session in list(self.sessions):
            self.close(session)
        self.fake.script_cache.clear()
        self.fake.scan_cursors.clear()

    def start(self) -> None:
        self.up = True

    def snapshot(self) -> object:
        database = self.fake.dbs[0]
        return copy.deepcopy(database._dict)  # pyright: ignore[reportPrivateUsage]

    def restore(self, snapshot: object) -> None:
        """Another server takes over: it has what it had received."""
        database = self.fake.dbs[0]
        database._dict = cast(Any, copy.deepcopy(snapshot))  # pyright: ignore[reportPrivateUsage]
        heap = [
            (item.expireat, key)
            for key, item in database._dict.items()  # pyright: ignore[reportPrivateUsage]
            if item.expireat is not None
        ]
        database._expiry_heap = sorted(heap)  # pyright: ignore[reportPrivateUsage]


def _as_it_is(reply: Any) -> Any:
    return reply


class _Compiled:
    """The server's Lua runtime, with a memory for scripts it has seen."""

    def __init__(self, runtime: Any) -> None:
        self._runtime = runtime
        self._functions: dict[bytes, Callable[[], Any]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runtime, name)

    def execute(self, script: bytes | str) -> Any:
        if isinstance(script, str):
            return None
        if script not in self._functions:
            self._functions[script] = self._runtime.compile(script)
        return self._functions[script]()
