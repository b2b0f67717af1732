"""The whole system in one process and in virtual time, through seeded faults: every accepted job ends once.

Clients call the gateways' application as a server calls it: only sockets, and HTTP's syntax, are missing.

`make simulate ARGS="--seeds 500"` runs as many seeds as you like; a failure prints how to repeat it."""

from __future__ import annotations

import os
import subprocess
import sys

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
#: Seeds in which a broken store must be found out.
SOON = range(200, 260)
#: Seeds, and a few seconds of each, in which gateways that have just started must be found to be broken.
YOUNG = range(40, 140)

#: What is broken: file, the line as it is, and as it must not be.
BROKEN = {
    "any token may finish": (
        "finish.lua",
        "if job and job.token == item.token then",
        "if job then",
    ),
    "a repeated finish counts again": (
        "finish.lua",
        "answers[i] = settled_before(item.id, job, item.token)",
        "answers[i] = settled_before(item.id, job, item.token)\n"
        "    if answers[i] == 'succeeded' then count('succeeded', 1) end",
    ),
    "a submit sent again is a second job": (
        "submit.lua",
        "if mine then return {'accepted', mine.created, math.max(0, position - 1)} end",
        "",
    ),
    "keys stay for ever": (
        "include/ending.lua",
        "if job.idem then redis.call('PEXPIRE', idem_key(job.idem), IDEM_TTL) end",
        "",
    ),
    "a crash costs no start": (
        "include/judge.lua",
        "if spent >= max_attempts then return 'dead' end",
        "",
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
    with broken_script(*BROKEN[what]):
        found = next((seed for seed in SOON if simulate(seed, seconds=30, harsh=True).violation), None)
    assert found is not None


@pytest.mark.timeout(600)
def test_crossed_replies_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two round trips at once on one connection."""
    monkeypatch.setattr(Wire, "exchange", Wire._round_trip)  # pyright: ignore[reportPrivateUsage]
    assert any(simulate(seed, seconds=5).violation for seed in YOUNG)


@pytest.mark.timeout(600)
def test_a_gateway_that_forgets_idempotency_keys_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def forget(raw: bytes, header_key: str | None, *, mock_faults: bool) -> tuple[JobRequest, None]:
        return read_job(raw, header_key, mock_faults=mock_faults)[0], None

    monkeypatch.setattr(jobs, "read_job", forget)
    assert any(simulate(seed, seconds=20).violation for seed in SEEDS)


@pytest.mark.timeout(600)
def test_a_gateway_that_shows_jobs_to_anybody_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Caller, "sees", None)
    assert any(simulate(seed, seconds=20).violation for seed in SEEDS)
