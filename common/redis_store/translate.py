"""The one place where the client library's exceptions become ours, and values that cannot be read."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import msgspec
from redis import exceptions

from common.errors import StoreCorrupt, StoreDenied, StoreError, StoreFull, StoreUnavailable

#: Error codes of a server that will do as asked again: loading, following, failing over, its disk full, or
#: without scripts, group or rights, which somebody takes away faster than they are put back.
PASSING = frozenset(
    {"READONLY", "MASTERDOWN", "LOADING", "MISCONF", "NOREPLICAS", "CLUSTERDOWN", "BUSY", "NOGROUP"}
)
#: For some of them the library has a class, and takes the code off the message.
PASSING_CLASSES = (
    exceptions.ReadOnlyError,
    exceptions.MasterDownError,
    exceptions.ClusterDownError,
    exceptions.NoScriptError,
)
#: What reading a value raises that somebody broke: of another shape, not a number, or a time in no calendar.
UNREADABLE = (
    ArithmeticError,
    AttributeError,
    LookupError,
    OSError,
    RecursionError,
    TypeError,
    ValueError,
    msgspec.DecodeError,
)

A = TypeVar("A")


@contextmanager
def reading(what: str) -> Generator[None, None, None]:
    """Raises StoreCorrupt for whatever in it cannot be read."""
    try:
        yield
    except UNREADABLE as error:
        raise StoreCorrupt(f"{what} cannot be read: {error!r}") from error


def readable(parse: Callable[[Any], A], values: Iterable[Any]) -> list[A]:
    """Those that can be read; the others are somebody else's: left alone, and left out."""
    parsed: list[A] = []
    for value in values:
        with suppress(*UNREADABLE):
            parsed.append(parse(value))
    return parsed


def translate(error: Exception) -> StoreError:
    text = str(error)
    if isinstance(error, exceptions.OutOfMemoryError) or text.startswith("OOM"):
        return StoreFull()
    if isinstance(error, (exceptions.ConnectionError, exceptions.TimeoutError, OSError)):
        return StoreUnavailable(f"The store is away: {text}")
    if isinstance(error, exceptions.NoPermissionError):
        return StoreDenied(f"The store does not let us: {text}")
    if isinstance(error, PASSING_CLASSES) or text.split(" ", 1)[0] in PASSING:
        return StoreUnavailable(f"The store does not do as asked: {text}")
    return StoreCorrupt(f"The store's keys are not as we left them: {text}")


def group_is_missing(error: object) -> bool:
    """Redis 7.0 answers a blocked read of a deleted stream with UNBLOCKED, everything else with NOGROUP;
    fakeredis says that the key must exist."""
    signs = ("NOGROUP", "UNBLOCKED", "requires the key to exist")
    return isinstance(error, exceptions.ResponseError) and any(sign in str(error) for sign in signs)


def script_is_missing(error: object) -> bool:
    return isinstance(error, exceptions.NoScriptError) or "NOSCRIPT" in str(error)
