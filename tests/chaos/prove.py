"""`python -m tests.chaos.prove [WORDS]`: every crash point, or those whose name has the words.

The exit code is 1 for a fault, and for a command that came in each recording and at which nobody died. A
complete run without either writes its figures into docs/results.md.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path

from tests.chaos.campaign import Tally, record, try_all
from tests.chaos.results import Run, version_of, write
from tests.chaos.scenarios import SCENARIOS
from tests.chaos.stage import stage
from tests.chaos.succession import Fault
from tests.chaos.trial import Passed, Point
from tests.servers import EMBEDDED, ServerProcess, embedded_binary, named_binaries


async def prove(server: ServerProcess, words: str) -> Run:
    began = time.monotonic()
    tallies = {name: Tally() for name in SCENARIOS}
    faults: list[Fault] = []

    def done(point: Point, outcome: Passed | Fault) -> None:
        tallies[point.scenario].add(point, outcome)
        _show(tallies, point, outcome)
        if isinstance(outcome, Fault):
            faults.append(outcome)

    with stage(server) as here:
        names = [name for name in SCENARIOS if name in words] or SCENARIOS
        points = [point for point in await record(here, only=names) if words in str(point)]
        print(f"{server.name}: {len(points)} crash points", flush=True)
        await try_all(here, points, done)
        version = await version_of(server)
    # Once more at the end, where whoever looks last finds them.
    for fault in faults:
        print(f"FAULT {fault}", flush=True)
    run = Run(version=version, tallies=tallies, seconds=time.monotonic() - began)
    for command in run.total.missed:
        print(f"MISSED {command}: in every recording, and in no trial", flush=True)
    return run


def _show(tallies: dict[str, Tally], point: Point, outcome: Passed | Fault) -> None:
    if isinstance(outcome, Fault):
        print(f"FAULT {outcome}", flush=True)
    elif not outcome.struck:
        print(f"not reached: {point}", flush=True)
    done = sum(tally.points for tally in tallies.values())
    if done % 100 == 0:
        print(f"{done} done", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.prove", description=__doc__)
    parser.add_argument("words", nargs="*", help="part of the names of points, as faults show them")
    words = " ".join(parser.parse_args().words)
    binaries = {EMBEDDED: embedded_binary(), **named_binaries(os.environ.get("IWL_TEST_SERVERS", ""))}
    runs: list[Run] = []
    for name, binary in binaries.items():
        with tempfile.TemporaryDirectory(prefix="iwl-chaos-") as folder:
            server = ServerProcess(name, binary, Path(folder), durable=True, appendfsync="always")
            server.start()
            try:
                runs.append(asyncio.run(prove(server, words)))
            finally:
                server.stop()
        print(runs[-1].summary, flush=True)
    passed = all(run.passed for run in runs)
    if passed and not words:
        write(runs)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
