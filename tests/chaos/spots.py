"""Crash points: where in its conversation with the store a process dies.

A spot is named by what is sent and how often that was sent before ("the second `extend`"), not by a number in
the whole conversation: heartbeats and time keeping run beside the job and would move it about.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from common.redis_store import loader

#: Commands that are told apart by their second word.
TWO_WORDS = frozenset({"CLIENT", "SCRIPT"})
#: Prefix of what is sent before the store has been checked: the same in every scenario.
STARTING = "start "
CONNECT = "CONNECT"
#: On a busy machine not in each run: the reconciler asks about jobs that live just as it scans, and a claim
#: is interrupted when it already waits as the rules change.
BY_CHANCE = frozenset({"reconcile", "MULTI", "DEL", "CLIENT UNBLOCK", "EXEC"})
SUBSCRIBE = "SUBSCRIBE"

_SCRIPTS = {
    loader.load(name, shebang=shebang).sha: name for name in loader.names() for shebang in (True, False)
}


class Side(StrEnum):
    BEFORE = "before"
    #: The server has executed the command; nobody reads the reply.
    AFTER = "after"


class Spot(msgspec.Struct, frozen=True):
    what: str
    nth: int
    side: Side

    def __str__(self) -> str:
        return f"{self.side} {self.what}#{self.nth}"


def what_is(command: Sequence[bytes]) -> str:
    """A script by its name, a read by whether it wants new deliveries, anything else by its first words."""
    name = command[0].decode().upper()
    if name == "EVALSHA":
        return _SCRIPTS.get(command[1].decode(), "EVALSHA")
    if name == "XREADGROUP":
        return f"{name} {'new' if command[-1] == b'>' else 'own'}"
    return f"{name} {command[1].decode().upper()}" if name in TWO_WORDS else name


def spots_of(sent: Sequence[str]) -> list[Spot]:
    """Both sides of everything that a process sent, in order."""
    seen: dict[str, int] = {}
    found: list[Spot] = []
    for what in sent:
        seen[what] = seen.get(what, 0) + 1
        found += [Spot(what, seen[what], side) for side in Side]
    return found
