"""The figures of a complete run, in their own section of docs/results.md."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from tests.chaos.campaign import LANES, Tally
from tests.chaos.trial import TRIES
from tests.keyspace import command
from tests.results import write_section
from tests.servers import ServerProcess

ABOUT = f"""\
`make prove` plays each scenario with real processes. For each command that one of them sends to the store, it
kills the process (SIGKILL) before the command is sent, and again after the server has executed it and before
the reply is read. The commands are not listed by hand: a run without a death shows them. Then another process
takes over: the same one restarted and, for what a worker held, also a stranger.

A point is struck when the process died there. It has passed when, right after the death and again at the
end, the sums are right, each live job has its one place, and due times, owners' counts and consumers are
those of live jobs and workers; and when at the end every accepted job has ended once and within its budget,
the client was told nothing that is not so, and no key is left behind. So each trial checks P1, P2, P5, P6,
P7 and P9 of [the promises](guarantees.md#the-ten-promises). P4 is seen where a call is repeated: `repeated
submit`, `durable submit` and `redrive` ask again and want the same answer, and each client sends again what
a dead gateway did not answer. P3, P8 and P10 have tests of their own: here nobody comes back late, no clock
is wrong, and no server is full.

Heartbeats and time keeping run by the clock: some points of theirs do not come in each run. A point that
did not come in {TRIES} trials counts as not reached. At what each recording sent somebody must have died,
before or after the first of its kind, or the run has failed. Times include whatever else the machine did
meanwhile.
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
            total.passed += tally.passed
            total.seconds += tally.seconds
            total.longest = max(total.longest, tally.longest)
            total.unreached += tally.unreached
            total.faults += tally.faults
        return total

    @property
    def passed(self) -> bool:
        return not self.total.faults and not self.total.missed

    @property
    def summary(self) -> str:
        total = self.total
        return (
            f"{self.version}: {total.points} crash points, {len(total.passed)} struck and passed, "
            f"{len(total.unreached)} not reached, {len(total.faults)} failed, in {self.seconds:.0f} s"
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
        "| scenario | crash points | struck and passed | not reached | seconds each | longest |",
        "|---|---|---|---|---|---|",
    ]
    rows += [_row(name, tally) for name, tally in run.tallies.items() if tally.points]
    return [*rows, _row("all", run.total)]


def _row(name: str, tally: Tally) -> str:
    each = tally.seconds / max(1, len(tally.passed))
    counts = f"{tally.points} | {len(tally.passed)} | {len(tally.unreached)}"
    return f"| {name} | {counts} | {each:.2f} | {tally.longest:.2f} |"
