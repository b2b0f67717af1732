"""`python -m tests.simulation --seeds 500`: many simulations, on all cores. Exit code 1: one went wrong."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from tests.simulation.run import SECONDS, Report, replay_command, simulate


def main() -> int:
    options = _options()
    logging.disable(logging.NOTSET if options.verbose else logging.CRITICAL)
    first = options.first if options.seed is None else options.seed
    seeds = range(first, first + (options.seeds if options.seed is None else 1))
    started = time.perf_counter()
    reports: list[Report] = []
    with ProcessPoolExecutor(options.jobs) as pool:
        for report in pool.map(partial(simulate, seconds=options.seconds), seeds):
            reports.append(report)
            if report.violation or options.verbose or options.seed is not None:
                print(_shown(report, options.seconds), flush=True)
    broken = sum(report.violation is not None for report in reports)
    took, hours = time.perf_counter() - started, sum(report.lasted for report in reports) / 3600
    jobs, commands = (sum(getattr(report, what) for report in reports) for what in ("jobs", "commands"))
    faults = sum(sum(report.faults.values()) for report in reports)
    print(f"{len(reports)} seeds, {broken} broken; {hours:.1f} hours of operation, {jobs} jobs, ", end="")
    print(f"{commands} commands, {faults} faults in {took:.0f} s")
    return 1 if broken else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make simulate")
    parser.add_argument("--seeds", type=int, default=100, help="how many")
    parser.add_argument("--first", type=int, default=1, help="the first of them")
    parser.add_argument("--seed", type=int, help="this one alone")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of virtual time with faults")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="simulations at once")
    parser.add_argument("--verbose", action="store_true", help="the log of all processes, and every report")
    return parser.parse_args()


def _shown(report: Report, seconds: float) -> str:
    return f"{report}\n  replay: {replay_command(report.seed, seconds)}"


if __name__ == "__main__":
    sys.exit(main())
