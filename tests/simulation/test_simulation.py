"""The whole system in one process and in virtual time, through seeded faults: every accepted job ends once.

Clients call the gateways' application as a server calls it: only sockets, and HTTP's syntax, are missing.

`make simulate ARGS="--seeds 500"` runs as many seeds as you like; a failure prints how to repeat it."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import nullcontext
from typing import Any

import pytest

from api import jobs
from api.callers import Caller
from api.intake import read_job
from common.job import JobRequest
from common.redis_store.wire import Wire
from tests.repository import ROOT
from tests.sabotage import broken_script
from tests.simulation.run import SECONDS, replay_command, simulate

SEEDS = range(1, 7)
#: Seeds in which a broken store or gateway must be found out. At least one in ten shows what is broken: that
#: none of so many does, after a change that makes other runs of them, does not happen.
SOON = range(200, 300)
#: As many as that takes where one in 25 does, in the few seconds in which gateways have just started.
YOUNG = range(40, 340)

#: What is broken: file, the line as it is, as it must not be, and the promise that is then seen to be broken.
BROKEN = {
    "any token may finish": (
        "finish.lua",
        "if job and job.token == item.token then",
        "if job then",
        "P3",
    ),
    "a repeated finish counts again": (
        "finish.lua",
        "answers[i] = settled_before(item.id, job, item.token)",
        "answers[i] = settled_before(item.id, job, item.token)\n"
        "    if answers[i] == 'succeeded' then count('succeeded', 1) end",
        "P1",
    ),
    "a submit sent again is a second job": (
        "submit.lua",
        "if mine then return {'accepted', mine.created, math.max(0, position - 1)} end",
        "",
        "P1",
    ),
    "keys stay for ever": (
        "include/ending.lua",
        "if job.idem then redis.call('PEXPIRE', idem_key(job.idem), IDEM_TTL) end",
        "",
        "P7",
    ),
    "a crash costs no start": (
        "include/judge.lua",
        "if spent >= max_attempts then return 'dead' end",
        "",
        "P6",
    ),
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", SEEDS)
def test_every_accepted_job_ends_once(seed: int) -> None:
    report = simulate(seed)
    assert report.violation is None, f"{report}\nreplay: {replay_command(seed, SECONDS)}"


@pytest.mark.timeout(300)
def test_the_same_seed_is_the_same_run() -> None:
    simulate(4, seconds=1)
    here = simulate(3, seconds=10)
    script = "from tests.simulation.run import simulate; print(simulate(3, seconds=10).digest)"
    there = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert there.stdout.strip() == here.digest


@pytest.mark.timeout(600)
@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_store_is_found_out(what: str) -> None:
    file, line, instead, promise = BROKEN[what]
    with broken_script(file, line, instead):
        assert any(told(seed, seconds=30, harsh=True).startswith(promise) for seed in SOON)


class NeverTaken:
    """In place of a lock: who comes does not wait."""

    def __get__(self, owner: object, kind: type) -> nullcontext[None]:
        return nullcontext()

    def __set__(self, owner: object, lock: object) -> None:
        pass


@pytest.mark.timeout(600)
def test_crossed_replies_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two round trips at once on one connection. Anything may come of it."""
    monkeypatch.setattr(Wire, "_free", NeverTaken(), raising=False)
    assert any(told(seed, seconds=5) for seed in YOUNG)


@pytest.mark.timeout(600)
def test_a_gateway_that_forgets_idempotency_keys_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def forget(raw: bytes, header_key: str | None, *, mock_faults: bool) -> tuple[JobRequest, None]:
        return read_job(raw, header_key, mock_faults=mock_faults)[0], None

    monkeypatch.setattr(jobs, "read_job", forget)
    assert any(told(seed, seconds=20).startswith("P4") for seed in SOON)


@pytest.mark.timeout(600)
def test_a_gateway_that_shows_jobs_to_anybody_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Caller, "sees", None)
    assert any("was shown another's job" in told(seed, seconds=20) for seed in SOON)


def told(seed: int, **how: Any) -> str:
    """What went wrong, "" when nothing did."""
    return simulate(seed, **how).violation or ""
