"""One typed method per script. Numbers are milliseconds where the name says nothing else."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from common.redis_store.calls import Calls
from common.redis_store.translate import reading
from common.redis_store.variadic import Variadic
from common.redis_store.wire import Argument

log = logging.getLogger(__name__)

A = TypeVar("A")


#: How long an unused slot is remembered for the instance that held it.
KEEP_MS = 600_000


@dataclass(frozen=True, slots=True)
class Keep:
    """How long things are kept: the head of every script that can end a job."""

    result_ttl: int
    idempotency_ttl: int
    dead_letters: int

    @property
    def head(self) -> tuple[Argument, ...]:
        return (self.result_ttl, self.idempotency_ttl, self.dead_letters)


@dataclass(frozen=True, slots=True)
class Begun:
    """`begin`'s answer for one entry; the numbers belong to `run`."""

    word: str
    attempt: int = 0
    #: Acceptance to this start, -1 when it is not the first.
    waited: int = -1
    reclaimed: bool = False
    alone: bool = False


class Scripts:
    def __init__(self, calls: Calls, keep: Keep) -> None:
        self._calls = calls
        self._keep = keep
        self._variadic = Variadic(calls)

    async def _ask(self, parse: Callable[[Any], A], script: str, *arguments: Argument) -> A:
        """Raises StoreCorrupt for a reply of another shape: what a script read may be somebody else's."""
        reply = await self._calls.run(script, *arguments)
        with reading(f"The reply of {script}"):
            return parse(reply)

    # ---- gateway

    async def submit(
        self,
        *,
        job_id: str,
        request: bytes,
        shown: bytes,
        owner: bytes,
        idem: str,
        fingerprint: str,
        expires_in: int | None,
        stream: bool,
        recent_max: int,
        max_depth: int,
        max_open: int,
    ) -> tuple[str, list[str | int]]:
        """The answer word and its values: accepted created position | replayed id | conflict | full depth |
        owner_full open."""
        optional = "" if expires_in is None else expires_in
        return await self._ask(
            _submitted, "submit", job_id, request, shown, owner, idem, fingerprint, optional,
            "1" if stream else "", recent_max, max_depth, max_open,
        )  # fmt: skip

    async def read(self, *, job_ids: Sequence[str], longest_result: int | None = None) -> list[list[bytes]]:
        """For each id: ended record | live shown name value ... | broken | gone. Results with more bytes (of
        JSON) than `longest_result` are left out of their records."""
        longest = "" if longest_result is None else longest_result
        return cast(list[list[bytes]], await self._calls.run("read", longest, *job_ids))

    async def watch(self, *, gateway: str, job_ids: Sequence[str]) -> list[str]:
        return await self._ask(_words, "watch", gateway, *job_ids)

    def start_watch(self, *, gateway: str, job_id: str) -> asyncio.Future[object]:
        """As `watch`, sent with whatever else is issued in this tick."""
        return self._calls.start_script("watch", gateway, job_id)

    async def cancel(self, *, job_id: str) -> list[str]:
        """cancelled | ended status | gone."""
        return await self._ask(_words, "cancel", *self._keep.head, job_id)

    async def redrive(
        self,
        *,
        recent_max: int,
        max_open: int,
        asking: bytes,
        letters: Sequence[tuple[str, str, str, int | None, bool]],
    ) -> list[tuple[str, str]]:
        """`letters`: dead letter id, dead job id, new job id, expires_in, stream. Each answer: a word, and
        the new job's id with `queued`."""
        items = [
            (letter, old, new, "" if ms is None else ms, "1" if stream else "")
            for letter, old, new, ms, stream in letters
        ]
        head = (recent_max, max_open, self._keep.result_ttl, asking)
        return await self._variadic.run("redrive", head, items, _revived, ("gone", ""))

    # ---- worker

    async def begin(
        self,
        *,
        idle: int,
        max_attempts: int,
        worker: str,
        instance: str,
        epoch: int,
        busy: int,
        deliveries: Sequence[tuple[str, str, str]],
    ) -> list[Begun]:
        """`deliveries`: entry, job id, token."""
        head = (*self._keep.head, idle, max_attempts, worker, instance, epoch, busy)
        return await self._variadic.run("begin", head, deliveries, _begun, Begun("broken"))

    async def extend(self, *, worker: str, leases: Sequence[tuple[str, str]]) -> list[str]:
        """`leases`: job id, token."""
        return await self._variadic.run("extend", (worker,), leases, _word, "taken")

    async def finish(self, *, leases: Sequence[tuple[str, str, bytes, bytes]]) -> list[str]:
        """`leases`: job id, token, result, shown."""
        return await self._variadic.run("finish", self._keep.head, leases, _word, "lost")

    async def fail(
        self, *, max_attempts: int, leases: Sequence[tuple[str, str, int, str, bytes]]
    ) -> list[str]:
        """`leases`: job id, token, retry_in (-1: never), cause, message (JSON)."""
        return await self._variadic.run("fail", (*self._keep.head, max_attempts), leases, _word, "lost")

    async def release(
        self, *, max_attempts: int, max_refunds: int, leases: Sequence[tuple[str, str]]
    ) -> list[str]:
        """`leases`: job id, token."""
        return await self._variadic.run(
            "release", (*self._keep.head, max_attempts, max_refunds), leases, _word, "lost"
        )

    async def append(self, *, job_id: str, token: str, seq: int, text: str) -> str:
        return await self._ask(_word, "append", job_id, token, seq, text)

    async def drop(self, *, entries: Sequence[str]) -> int:
        return cast(int, await self._calls.run("drop", *entries))

    # ---- fleet

    async def announce(
        self,
        *,
        instance: str,
        process: str,
        worker_id: str,
        held: str,
        lost: bool,
        movable: bool,
        ttl: int,
        keep: int,
        concurrency: int,
        busy: int,
        ready: bool,
    ) -> tuple[str, int, int, int, int] | None:
        """Worker, epoch, desired and age of the scale (-1: none), live lower workers that cannot read.

        None when the id is taken."""
        return await self._ask(
            _seat, "announce", instance, process, worker_id, held, int(lost), int(movable), ttl, keep,
            concurrency, busy, int(ready),
        )  # fmt: skip

    async def retire(self, *, worker: str, process: str) -> str:
        return await self._ask(_word, "retire", worker, process)

    async def depth(self) -> list[Any]:
        """Now, entries, pending, retrying, dead letters, then counts as name value ..."""
        return cast(list[Any], await self._calls.run("depth"))

    async def promote(self, *, limit: int) -> tuple[int, int]:
        """Jobs queued, time until the next (-1: none)."""
        return await self._ask(_pair, "promote", *self._keep.head, limit)

    async def expire(self, *, limit: int) -> tuple[int, int]:
        """Jobs ended, time until the next (-1: none)."""
        return await self._ask(_pair, "expire", *self._keep.head, limit)

    async def reconcile(self, *, idle: int, job_ids: Sequence[str]) -> list[str]:
        items = [(job_id,) for job_id in job_ids]
        return await self._variadic.run("reconcile", (*self._keep.head, idle), items, _word, "gone")

    async def prune(self, *, keep: int) -> int:
        return cast(int, await self._calls.run("prune", keep))

    async def lock(self, *, name: str, holder: str, ttl: int) -> bool:
        return await self._calls.run("lock", name, holder, ttl) == 1

    async def lead(self, *, candidate: str, ttl: int) -> int | None:
        term = await self._ask(int, "lead", candidate, ttl)
        return None if term < 0 else term

    async def publish_scale(
        self,
        *,
        term: int,
        desired: int,
        reason: str,
        lag: int | None,
        pending: int | None,
        retrying: int | None,
        minimum: int,
        maximum: int,
        observed: bool,
        history: int,
    ) -> str:
        known = ["" if number is None else number for number in (lag, pending, retrying)]
        return await self._ask(
            _word, "publish_scale", term, desired, reason, *known, minimum, maximum, int(observed), history
        )

    async def scale(self, *, history: int) -> list[Any]:
        return cast(list[Any], await self._calls.run("scale", history))


def _word(reply: object) -> str:
    return cast(bytes, reply).decode()


def _words(reply: object) -> list[str]:
    return [word.decode() for word in cast(list[bytes], reply)]


def _submitted(reply: list[bytes | int]) -> tuple[str, list[str | int]]:
    word, *values = [value.decode() if isinstance(value, bytes) else value for value in reply]
    return str(word), values


def _seat(reply: list[Any]) -> tuple[str, int, int, int, int] | None:
    if reply[0] == b"taken":
        return None
    _, name, epoch, desired, age, unable = reply
    return name.decode(), epoch, desired, age, unable


def _pair(reply: list[int]) -> tuple[int, int]:
    first, second = reply
    return first, second


def _revived(reply: object) -> tuple[str, str]:
    word, *new = _words(reply)
    return word, "".join(new)


def _begun(reply: list[Any]) -> Begun:
    word = reply[0].decode()
    if word != "run":
        return Begun(word)
    return Begun(word, reply[1], reply[2], reply[3] == 1, reply[4] == 1)
