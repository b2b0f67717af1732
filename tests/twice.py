"""A wire on which every script arrives twice, as when a reply was lost and the call is sent again (P4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from common.redis_store import loader
from common.redis_store.wire import Command, Reply, Wire

#: Scripts that answer how much they did. Mostly all of it is done the first time, but a millisecond may pass
#: before the second.
COUNTING = ("drop", "expire", "promote", "prune", "reconcile")


class TwiceWire(Wire):
    async def exchange(self, commands: Sequence[Command]) -> list[Reply]:
        sent: list[Command] = []
        for command in commands:
            sent += [command] * _times(command)
        replies = iter(await super().exchange(sent))
        return [_answer(command, [next(replies) for _ in range(_times(command))]) for command in commands]


def _times(command: Command) -> int:
    return 2 if command[0] == "EVALSHA" else 1


def _answer(command: Command, replies: Sequence[Reply]) -> Reply:
    if command[0] == "EVALSHA" and command[1] in _COUNTING_SHAS:
        return together(*replies)
    return replies[-1]


def together(first: Reply, second: Reply) -> Reply:
    """What a counting script did in two runs: a count, a count and what is next, or a word for each job."""
    match first, second:
        case int(), int():
            return first + second
        case [int(), int()], [int(), int()]:
            return [first[0] + second[0], second[1]]
        case list(), list():
            words = zip(cast(list[bytes], first), cast(list[bytes], second), strict=True)
            return [later if earlier == b"fine" else earlier for earlier, later in words]
        case _:
            return first


_COUNTING_SHAS = {loader.load(name, shebang=shebang).sha for name in COUNTING for shebang in (True, False)}
