"""The figures as a table on the screen, and as docs/results.md. Nothing in it is written by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from bench.vllm.rounds import Level, Run, middle
from lab.figures import nearest_rank


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    #: As typed.
    command: str
    facts: Mapping[str, str]
    tokens: int
    workers: int
    slots: int
    levels: Sequence[Level]


END = "<!-- end of straight and through the queue -->"
TITLE = "# Results: straight to vLLM, and through the queue"

WHAT = """\
Written by the command below; do not edit. The same prompts go straight to vLLM, and through gateway, store
and worker. Each client waits for its answer before it sends the next prompt. Both ways use the same client of
vLLM, which streams, and ask for the same number of tokens (`ignore_eos`). Rounds of the two ways take turns,
in changing order. Each prompt was sent before, so that both ways find the same prefix cache.

No job waits for a slot, and none waits to take the place of one that ends: while a job is on its way to or
from the model, the engine's batch is smaller by one. Deeper queues, not measured here, can fill it."""

CPU_LABEL = """\
**Read this first.** This is a small model on a CPU, beside gateway, worker, store and clients. Where both
sides use the same cores, each moment that the queue computes is taken from the model, and each step waits
for a core that vLLM holds. Where each side is kept to cores of its own (see `cores`), it is not, as on a
GPU. The figures show what the queue adds to a job; they say nothing about the speed of vLLM on a GPU.
Whatever else runs on the machine shows as spread between rounds. A ratio above 1 is such a spread, not a
gain; where the range is wide, its median says little."""

GPU_COMMAND = """\
On a machine with a GPU, with vLLM serving there on port 8000, the same comparison is:

```sh
make bench-vllm ARGS="--url http://127.0.0.1:8000/v1 --tokens 256 --concurrency 1 4 16 64"
```
"""


def write(path: Path, text: str) -> None:
    """Replaces this page's part of the file; what stands behind its end is others'."""
    others = path.read_text().partition(END)[2] if path.exists() else "\n"
    path.write_text(f"{text.rstrip()}\n\n{END}{others}")


def page(report: Report) -> str:
    lines = [TITLE, "", WHAT, ""]
    if report.facts["GPU"].startswith("none"):
        lines += [CPU_LABEL, ""]
    lines += ["```sh", report.command, "```", "", *_machine(report), "", *tables(report), "", GPU_COMMAND]
    return "\n".join(lines)


def tables(report: Report) -> list[str]:
    """As Markdown, which can be read on a screen, too."""
    return [
        "## Throughput and time to the answer",
        "",
        *_table(
            ("clients", "way", "requests/s", "output tokens/s", "p50", "p95"),
            [row for level in report.levels for row in _figures(level)],
        ),
        "",
        "Rates are by_round over the rounds; times are of all requests, submit to answer in hand.",
        "",
        "## The queue's share",
        "",
        *_table(
            ("clients", "throughput ratio", "its range", "in the queue", "at the model", "the rest"),
            [_shares(level) for level in report.levels],
        ),
        "",
        "Ratio: requests/s through the queue divided by requests/s without, of the same round; the median,",
        "lowest and highest. Shares of the time between submit and answer, from job records: creation to",
        "first start; start to end, storing the result included; what is left, which is HTTP there and back.",
        "",
        *_overhead(report.levels),
    ]


def _machine(report: Report) -> list[str]:
    facts = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        **report.facts,
        "workers": f"{report.workers} x {report.slots} slots",
        "output": f"{report.tokens} tokens for each request",
        "rounds": ", ".join(_size(level) for level in report.levels),
    }
    return _table(("what", "value"), list(facts.items()))


def _size(level: Level) -> str:
    prompts = len(level.rounds[0].straight.answers)
    return f"{len(level.rounds)} of {prompts} requests with {level.concurrency} clients"


def _figures(level: Level) -> list[tuple[str, ...]]:
    ways = {
        "straight": [each.straight for each in level.rounds],
        "queue": [each.queued for each in level.rounds],
    }
    return [(str(level.concurrency), way, *_speed(runs)) for way, runs in ways.items()]


def _speed(runs: Sequence[Run]) -> tuple[str, ...]:
    seconds = [answer.seconds for run in runs for answer in run.answers]
    return (
        f"{middle(runs, 'requests_per_s'):.2f}",
        f"{middle(runs, 'tokens_per_s'):,.0f}",
        f"{nearest_rank(seconds, 50) * 1000:,.0f} ms",
        f"{nearest_rank(seconds, 95) * 1000:,.0f} ms",
    )


def _shares(level: Level) -> tuple[str, ...]:
    ratios, shares = level.ratios, level.shares
    return (
        str(level.concurrency),
        f"{median(ratios):.3f}",
        f"{ratios[0]:.3f} to {ratios[-1]:.3f}",
        *(f"{part:.1%}" for part in (shares.queue, shares.run, shares.rest)),
    )


def _overhead(levels: Sequence[Level]) -> list[str]:
    alone = [level for level in levels if level.concurrency == 1]
    if not alone:
        return []
    extra = alone[0].extra_ms
    quartiles = [nearest_rank(extra, percent) for percent in (25, 75)]
    pairs = f"the median of {len(extra)} pairs of the same prompt"
    return [
        f"With one client the queue adds {median(extra):.1f} ms to a request: {pairs}.",
        f"The middle half lies between {quartiles[0]:.1f} and {quartiles[1]:.1f} ms.",
    ]


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [heads, ["---"] * len(heads), *rows]
    return [f"| {' | '.join(line)} |" for line in lines]
