"""One script call for many items, cut to what the server may be held up for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from common.errors import StoreCorrupt
from common.redis_store.calls import Calls
from common.redis_store.translate import reading
from common.redis_store.wire import Argument

log = logging.getLogger(__name__)

#: Promise P5: what one variadic call may carry at most.
MAX_ITEMS = 256
MAX_BYTES = 1 << 20

Item = tuple[Argument, ...]
A = TypeVar("A")


class Variadic:
    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def run(
        self, script: str, head: Item, items: Sequence[Item], parse: Callable[[Any], A], culprit: A
    ) -> list[A]:
        """One answer per item. After an error items go one by one, and only the culprit fails (P5).

        When every one fails, it is not an item but a key that all share: StoreCorrupt is raised."""
        chunks = _chunks(items)
        # Started together: they share one round trip.
        futures = [self._calls.start_script(script, *head, *_flat(chunk)) for chunk in chunks]
        replies = await asyncio.gather(*futures, return_exceptions=True)
        if any(isinstance(reply, StoreCorrupt) for reply in replies) and len(items) > len(chunks):
            return await self._singly(script, head, items, parse, culprit)
        answers: list[A] = []
        for reply in replies:
            if isinstance(reply, BaseException):
                raise reply
            with reading(f"An answer of {script}"):
                answers += [parse(answer) for answer in cast(list[Any], reply)]
        return answers

    async def _singly(
        self, script: str, head: Item, items: Sequence[Item], parse: Callable[[Any], A], culprit: A
    ) -> list[A]:
        futures = [self._calls.start_script(script, *head, *item) for item in items]
        replies = await asyncio.gather(*futures, return_exceptions=True)
        errors = [reply for reply in replies if isinstance(reply, BaseException)]
        for error in errors:
            if len(errors) == len(items) or not isinstance(error, StoreCorrupt):
                raise error
        log.error("a job's keys are broken", extra={"script": script, "errors": [str(e) for e in errors]})
        with reading(f"An answer of {script}"):
            return [
                culprit if isinstance(reply, BaseException) else parse(cast(list[Any], reply)[0])
                for reply in replies
            ]


def _chunks(items: Sequence[Item]) -> list[Sequence[Item]]:
    chunks: list[Sequence[Item]] = []
    start = size = 0
    for i, item in enumerate(items):
        weight = sum(len(part) if isinstance(part, (str, bytes)) else 8 for part in item)
        if i > start and (i - start >= MAX_ITEMS or size + weight > MAX_BYTES):
            chunks.append(items[start:i])
            start, size = i, 0
        size += weight
    if start < len(items):
        chunks.append(items[start:])
    return chunks


def _flat(items: Sequence[Item]) -> list[Argument]:
    return [part for item in items for part in item]
