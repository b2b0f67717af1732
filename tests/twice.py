"""A wire on which every script arrives twice, as when a reply was lost and the call is sent again (P4)."""

from __future__ import annotations

from collections.abc import Sequence

from common.redis_store import loader
from common.redis_store.wire import Command, Reply, Wire

#: Scripts that answer how much they did: the second time that is nothing, so their first answer counts.
COUNTING = ("drop", "expire", "promote", "prune", "reconcile")


class TwiceWire(Wire):
    async def exchange(self, commands: Sequence[Command]) -> list[Reply]:
        sent: list[Command] = []
        kept: list[int] = []
        for command in commands:
            sent += [command] * (2 if command[0] == "EVALSHA" else 1)
            kept.append(len(sent) - (2 if _counts(command) else 1))
        replies = await super().exchange(sent)
        return [replies[i] for i in kept]


def _counts(command: Command) -> bool:
    return command[0] == "EVALSHA" and command[1] in _COUNTING_SHAS


_COUNTING_SHAS = {loader.load(name, shebang=shebang).sha for name in COUNTING for shebang in (True, False)}
