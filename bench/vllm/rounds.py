"""Rounds in which both ways answer the same prompts, one after the other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from bench.vllm.ways import Answered, Way


@dataclass(frozen=True, slots=True)
class Run:
    """One way through all prompts. `answers` are in the order of the prompts."""

    seconds: float
    answers: Sequence[Answered]

    @property
    def requests_per_s(self) -> float:
        return len(self.answers) / self.seconds

    @property
    def tokens_per_s(self) -> float:
        return sum(answer.tokens for answer in self.answers) / self.seconds


@dataclass(frozen=True, slots=True)
class Round:
    straight: Run
    queued: Run

    @property
    def ratio(self) -> float:
        """Throughput through the queue, of what it is without."""
        return self.queued.requests_per_s / self.straight.requests_per_s

    @property
    def extra_ms(self) -> list[float]:
        """What the queue added to each prompt's answer."""
        pairs = zip(self.queued.answers, self.straight.answers, strict=True)
        return [(queued.seconds - straight.seconds) * 1000 for queued, straight in pairs]


@dataclass(frozen=True, slots=True)
class Shares:
    """Where the time between submit and result went, as parts of 1."""

    queue: float
    run: float
    rest: float


@dataclass(frozen=True, slots=True)
class Level:
    """All rounds at one concurrency."""

    concurrency: int
    rounds: Sequence[Round]

    @property
    def ratios(self) -> list[float]:
        return sorted(each.ratio for each in self.rounds)

    @property
    def extra_ms(self) -> list[float]:
        return sorted(ms for each in self.rounds for ms in each.extra_ms)

    @property
    def shares(self) -> Shares:
        """From job records, whose times are milliseconds of the server's clock."""
        queue = run = total = 0.0
        for answer in (answer for each in self.rounds for answer in each.queued.answers):
            job = answer.job
            assert job
            assert job.started_at
            assert job.finished_at
            queue += (job.started_at - job.created_at).total_seconds()
            run += (job.finished_at - job.started_at).total_seconds()
            total += answer.seconds
        return Shares(queue / total, run / total, (total - queue - run) / total)


async def through(way: Way, prompts: Sequence[str], concurrency: int) -> Run:
    """So many clients, each sending its next prompt when it has the last one's answer."""
    answers: dict[int, Answered] = {}
    numbered: Iterator[tuple[int, str]] = iter(enumerate(prompts))

    async def client() -> None:
        for number, prompt in numbered:
            answers[number] = await way.answer(prompt)

    began = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(concurrency)))
    return Run(time.perf_counter() - began, [answers[number] for number in range(len(prompts))])


async def one_round(
    straight: Way, queued: Way, prompts: Sequence[str], concurrency: int, *, queue_first: bool
) -> Round:
    """The order changes from round to round, so that a machine that gets slower favours neither."""
    if queue_first:
        second = await through(queued, prompts, concurrency)
        return Round(await through(straight, prompts, concurrency), second)
    first = await through(straight, prompts, concurrency)
    return Round(first, await through(queued, prompts, concurrency))


def middle(runs: Sequence[Run], what: str) -> float:
    return median(getattr(run, what) for run in runs)
