"""Deliberately broken processes: the harness has to find each of them out."""

from __future__ import annotations

from collections.abc import Sequence

from tests.chaos.spots import what_is
from tests.chaos.tap import Exchange, Sabotage, Words

#: Where a script's own arguments begin: EVALSHA, hash, number of keys, namespace.
ARGUMENTS = 4


async def ack_first(batch: Sequence[Words], exchange: Exchange) -> Sequence[Words]:
    """A worker that takes the entry out of the queue, and then stores the result."""
    for words in batch:
        if what_is(words) == "finish":
            namespace, job_id = words[3], words[ARGUMENTS + 3]
            jobs = namespace + b":jobs"
            entry = await exchange(b"HGET", namespace + b":job:" + job_id, b"entry")
            await exchange(b"XACK", jobs, b"workers", entry)
            await exchange(b"XDEL", jobs, entry)
    return batch


async def drop_finish(batch: Sequence[Words], exchange: Exchange) -> Sequence[Words]:
    """A worker that takes a result for stored which never was."""
    fake = (b"EVAL", b"return {'succeeded'}", b"0")
    return [fake if what_is(words) == "finish" else words for words in batch]


async def copy_first(batch: Sequence[Words], exchange: Exchange) -> Sequence[Words]:
    """A worker that adds the retry to the queue, and then takes the old entry out."""
    for words in batch:
        if what_is(words) == "fail":
            jobs, job_id = words[3] + b":jobs", words[ARGUMENTS + 4]
            await exchange(b"XADD", jobs, b"*", b"job_id", job_id, b"request", b'{"prompt":"again"}')
    return batch


async def forget_key(batch: Sequence[Words], exchange: Exchange) -> Sequence[Words]:
    """A gateway that queues the job, and only then would remember its idempotency key."""
    return [_without_key(words) if what_is(words) == "submit" else words for words in batch]


def _without_key(words: Words) -> Words:
    owned, fingerprint = ARGUMENTS + 4, ARGUMENTS + 5
    return [b"" if place in (owned, fingerprint) else word for place, word in enumerate(words)]


SABOTAGES: dict[str, Sabotage] = {
    each.__name__: each for each in (ack_first, drop_finish, copy_first, forget_key)
}
