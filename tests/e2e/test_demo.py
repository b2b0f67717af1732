"""`iwl demo`: a worker is killed in the middle, and every job is accounted for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.labs import start

pytestmark = pytest.mark.server


def test_no_job_is_lost_when_a_worker_is_killed_in_the_middle(tmp_path: Path) -> None:
    process = start("demo", "--json", temporary=tmp_path)
    output, errors = process.communicate(timeout=40)
    assert process.returncode == 0, errors
    report = json.loads(output.splitlines()[-1])
    assert list(report) == [
        "accepted",
        "succeeded",
        "failed",
        "lost",
        "reclaimed",
        "model_calls",
        "p50_ms",
        "p95_ms",
    ]
    assert (report["accepted"], report["succeeded"], report["failed"], report["lost"]) == (80, 80, 0, 0)
    assert report["reclaimed"] >= 1
    assert report["model_calls"] == 80 + report["reclaimed"]
    assert 0 < report["p50_ms"] <= report["p95_ms"]
    assert not list(tmp_path.iterdir())


def test_the_story_ends_with_the_conservation_of_jobs(tmp_path: Path) -> None:
    process = start("demo", temporary=tmp_path, backend="no.such:Backend", max_queue_depth="1")
    output, errors = process.communicate(timeout=40)
    assert process.returncode == 0, errors
    assert "kill -9" in output
    ending = " ".join(output.splitlines()[-2:])
    assert "80 submitted = 80 succeeded + 0 failed + 0 cancelled + 0 expired + 0 alive;" in ending
    assert ending.rstrip().endswith("unaccounted 0")
