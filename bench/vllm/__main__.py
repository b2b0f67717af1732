"""`python -m bench.vllm`: straight to vLLM and through the queue, on the same prompts."""

from __future__ import annotations

import argparse
import asyncio
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import uvloop

from bench.vllm.machine import facts
from bench.vllm.report import Report, page, tables, write
from bench.vllm.rounds import Level, Round, one_round, through
from bench.vllm.ways import Queued, Straight
from common.errors import LabError
from lab.client import Api
from lab.exits import Exit, NotStarted
from lab.run import run_lab
from lab.server import without_password
from lab.system import Plan, Ready, System

RESULTS = Path(__file__).parent.parent.parent / "docs" / "results.md"

#: With few clients a round would be over before it says anything.
FEWEST_REQUESTS = 12


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.vllm", description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8000/v1", help="vLLM, or any endpoint like it")
    parser.add_argument("--model", help="the first one served when left out")
    parser.add_argument("--about", help="what the model is, for the page")
    parser.add_argument("--tokens", type=int, default=128, help="length of each answer")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 4, 16], help="numbers of clients")
    parser.add_argument("--requests", type=int, default=4, help="of each client in a round")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--workers", type=int, default=1, help="worker processes, the slots shared out")
    parser.add_argument("--no-file", action="store_true", help="print only; leave docs/results.md as it is")
    return parser.parse_args()


class Comparison:
    def __init__(self, args: argparse.Namespace, straight: Straight, queued: Queued) -> None:
        self._args = args
        self._straight = straight
        self._queued = queued

    async def levels(self) -> list[Level]:
        most = max(self._args.concurrency)
        await through(self._straight, self._prompts(most), most)
        await through(self._queued, self._prompts(most), most)
        return [await self._level(concurrency) for concurrency in self._args.concurrency]

    async def _level(self, concurrency: int) -> Level:
        rounds: list[Round] = []
        for number in range(self._args.rounds):
            prompts = self._prompts(concurrency)
            queue_first = bool(number % 2)
            rounds.append(
                await one_round(self._straight, self._queued, prompts, concurrency, queue_first=queue_first)
            )
            print(f"{concurrency} clients, round {number + 1}: ratio {rounds[-1].ratio:.3f}", flush=True)
        return Level(concurrency, rounds)

    def _prompts(self, concurrency: int) -> list[str]:
        """The same ones in each round and at each level."""
        count = max(FEWEST_REQUESTS, self._args.requests * concurrency)
        return [f"Request {number}: " + "why does a queue help? " * 6 for number in range(count)]


async def compare(args: argparse.Namespace, report: list[Report]) -> Exit:
    load, _, _ = os.getloadavg()
    params = {"max_tokens": args.tokens, "ignore_eos": True, "temperature": 0}
    straight = Straight(args.url, args.model, params)
    if not await straight.backend.ready():
        raise NotStarted(f"No vLLM answers at {without_password(args.url)}: name one with --url.")
    slots = -(-max(args.concurrency) // args.workers)
    settings = {
        "backend": "vllm",
        "vllm_url": args.url,
        "worker_concurrency": str(slots),
        "min_workers": str(args.workers),
    }

    async def work(_: System, ready: Ready) -> Exit:
        async with Api(ready.api) as api:
            levels = await Comparison(args, straight, Queued(api, args.model, params)).levels()
            stats = (await api.stats()).value
            assert (stats.unaccounted, stats.submitted) == (0, stats.succeeded), stats
        about = facts(args.url, args.model, args.about, load)
        report.append(_report(args, about, slots, levels))
        return Exit.OK

    try:
        plan = Plan(port=0, workers=args.workers, settings=settings)
        return await run_lab(plan, print, work, interrupted=Exit.FAILED)
    finally:
        await straight.backend.aclose()


def _report(args: argparse.Namespace, about: dict[str, str], slots: int, levels: Sequence[Level]) -> Report:
    typed = shlex.join(sys.argv[1:])
    return Report(
        command=f"python -m bench.vllm {typed}".strip(),
        facts=about,
        tokens=args.tokens,
        workers=args.workers,
        slots=slots,
        levels=levels,
    )


def main() -> None:
    args = arguments()
    reports: list[Report] = []
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            code = runner.run(compare(args, reports))
    except LabError as error:
        sys.exit(f"bench.vllm: {error}")
    for report in reports:
        print("\n" + "\n".join(tables(report)))
        if not args.no_file:
            write(RESULTS, page(report))
    sys.exit(code)


if __name__ == "__main__":
    main()
