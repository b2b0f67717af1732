"""`python -m bench`: drain, submit, latency and the 80-job burst of this stack, on the embedded server."""

from __future__ import annotations

import argparse
import asyncio

import uvloop

from bench import measures
from bench.stage import stage


async def run(scale: float) -> None:
    async with stage() as here:
        for measure, amount in (
            (measures.submit, 20_000),
            (measures.drain, 20_000),
            (measures.latency, 500),
            (measures.burst, 10),
        ):
            for what, figure in await measure(here, max(8, int(amount * scale))):
                print(f"{what:<42} {figure:>16}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the usual number of jobs")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run(parser.parse_args().scale))


if __name__ == "__main__":
    main()
