"""What a fault is, and what came of one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from lab.faults.stage import Stage
from lab.records import JobRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    #: What happened, in a few words.
    seen: str
    #: Whether it is what was promised.
    right: bool
    recovery: timedelta
    #: Jobs whose attempt ledgers tell the story.
    jobs: Sequence[JobRecord] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    name: str
    #: What is done, as a sentence.
    title: str
    #: What the guarantees say about it.
    promise: str
    #: What must be seen, in a few words.
    expected: str
    #: Leaves the lab whole, or on its way there.
    run: Callable[[Stage], Awaitable[Observation]]
    #: Beyond those of every lab. Faults with equal ones that follow each other share a lab.
    settings: Mapping[str, str] = field(default_factory=dict[str, str])
