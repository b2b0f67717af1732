"""The figures of a complete run, in their own section of docs/results.md."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from tests.chaos.campaign import LANES, Tally
from tests.keyspace import command
from tests.results import write_section
from tests.servers import ServerProcess

ABOUT = """\
`make prove` plays each scenario with real processes. For each command that one of them sends to the store, it
kills the process (SIGKILL) before the command is sent, and again after the server has executed it and before
the reply is read. The commands are not listed by hand: a run without a death shows them. Then another process
takes over: the same one restarted and, for what a worker held, also a stranger. A point has passed when every
promise holds right after the death, every accepted job has ended once and within its budget, the client was
told nothing that is not so, and nothing is left behind. Heartbeats and time keeping run by the clock: some
points of theirs do not come in each run, and count as not reached. Times include whatever else the machine
did meanwhile.
"""


@dataclass(frozen=True, kw_only=True)
class Run:
    #: The server's, as in "Valkey 9.1.0".
    version: str
    tallies: dict[str, Tally]
    seconds: float

    @property
    def total(self) -> Tally:
        total = Tally()
        for tally in self.tallies.values():
            total.points += tally.points
            total.passed += tally.passed
            total.seconds += tally.seconds
            total.longest = max(total.longest, tally.longest)
            total.unreached += tally.unreached
            total.faults += tally.faults
        return total

    @property
    def passed(self) -> bool:
        return not self.total.faults

    @property
    def summary(self) -> str:
        total = self.total
        return (
            f"{self.version}: {total.passed} of {total.points} crash points passed in {self.seconds:.0f} s, "
            f"{len(total.unreached)} not reached"
        )


async def version_of(server: ServerProcess) -> str:
    raw = server.connect(decode_responses=True)
    info = await command(raw, "INFO", "server")
    await raw.aclose()
    version = str(info.get("valkey_version", info["redis_version"]))
    return f"{'Valkey' if 'valkey_version' in info else 'Redis'} {version}"


def write(runs: Sequence[Run]) -> None:
    lines = [line for run in runs for line in [*_table(run), ""]]
    write_section("Every crash point", [ABOUT, *lines[:-1]])


def _table(run: Run) -> list[str]:
    rows = [
        f"{run.version}, {LANES} trials at a time on {os.cpu_count()} cores, {run.seconds:.0f} s:",
        "",
        "| scenario | crash points | passed | not reached | seconds each | longest |",
        "|---|---|---|---|---|---|",
    ]
    rows += [_row(name, tally) for name, tally in run.tallies.items() if tally.points]
    return [*rows, _row("all", run.total)]


def _row(name: str, tally: Tally) -> str:
    each = tally.seconds / max(1, tally.passed)
    counts = f"{tally.points} | {tally.passed} | {len(tally.unreached)}"
    return f"| {name} | {counts} | {each:.2f} | {tally.longest:.2f} |"
