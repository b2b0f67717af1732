"""`python -m tests.endurance`: the long run. With `--write` its figures go into docs/results.md."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from importlib.metadata import version

from tests.endurance.bounds import faults
from tests.endurance.run import Account, Plan, endure
from tests.endurance.samples import MIB
from tests.results import write_section

ABOUT = """\
`make endure` runs the lab with real processes: clients submit over HTTP, workers run the jobs, and again and
again one worker, drawn by chance, is killed (SIGKILL) in the middle of its jobs and restarted. All the while
the public statistics must account for every job. In the end every job is read: it must have succeeded once,
with its own output, and those that had been read before must not have changed. The run fails, too, when
memory grows, an event loop is late by a second, consumers pile up or something is left over:
`tests/endurance/bounds.py` has the bounds."""


def main() -> int:
    options = _options()
    plan = Plan(jobs=options.jobs, kills=options.kills, workers=options.workers)
    # Not uvloop: its connections to a process that has just been killed are errors of no known kind.
    account = asyncio.run(endure(plan, lambda line: print(line, flush=True)))
    lines = table(plan, account)
    print("\n".join(lines))
    found = faults(plan, account)
    for fault in found:
        print(f"FAULT {fault}")
    if options.write and not found:
        write_section("Endurance", [ABOUT, "", *lines])
    return 1 if found else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make endure", description=__doc__)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--write", action="store_true", help="replace the section in docs/results.md")
    return parser.parse_args()


def table(plan: Plan, account: Account) -> list[str]:
    seen = account.samples
    left = (seen.server_at_last - seen.server_at_first) / max(1, account.accepted)
    unaccounted = sum(map(bool, seen.unaccounted))
    ends = ", ".join(f"{count:,} {state}" for state, count in sorted(account.ends.items()))
    rows = {
        "jobs accepted": f"{account.accepted:,} in {account.seconds:.0f} s",
        "ended": ends,
        "workers killed": f"{account.kills} of {plan.workers} x {plan.concurrency} slots",
        "started again": f"{account.started_again:,}",
        "took effect twice": f"{len(account.took_effect_twice)}",
        "samples of conservation": f"{seen.taken}, of which {unaccounted} with jobs unaccounted for",
        "left over": f"{account.entries} entries, {account.pending} deliveries, {len(account.leaked)} keys",
        "consumers of the group, at most": f"{seen.consumers}",
        "server's memory: first, peak, last": _mib(
            seen.server_at_first, max(each.used for each in seen.server), seen.server_at_last
        ),
        "kept for an ended job": f"{left:.0f} bytes, its result for a day",
        **{
            f"resident set of {part}: first, peak": _mib(seen.rss_at_first[part], seen.rss[part])
            for part in sorted(seen.rss)
        },
        **{
            f"event loop's delay of {part}: p50, p99, longest": _delays(lags)
            for part, lags in sorted(seen.loop_lags.items())
        },
        "machine": f"{os.cpu_count()} cores, lab {version('inference-worker-lab')}",
    }
    return ["| what | value |", "|---|---|", *(f"| {what} | {value} |" for what, value in rows.items())]


def _delays(lags: list[float]) -> str:
    ordered = sorted(lags)
    shown = [ordered[min(len(ordered) - 1, int(len(ordered) * share))] for share in (0.5, 0.99, 1)]
    return ", ".join(f"{1000 * lag:.1f}" for lag in shown) + f" ms, {len(ordered)} samples"


def _mib(*sizes: int) -> str:
    return ", ".join(f"{size / MIB:.1f}" for size in sizes) + " MiB"


if __name__ == "__main__":
    sys.exit(main())
