"""What `iwl up` says about itself."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from common.fleet import ScaleView, WorkerView
from lab.up import Readiness, invoked


def fleet(**ready: bool) -> ScaleView:
    workers = tuple(
        WorkerView(
            worker=name, instance=name, concurrency=1, busy=0, ready=is_ready, seen_at=datetime.now(UTC)
        )
        for name, is_ready in ready.items()
    )
    return ScaleView(
        decision=None, updated_at=None, age=None, stale=True, leader=None, workers=workers, history=()
    )


def told_of(*looks: ScaleView) -> list[str]:
    told: list[str] = []
    readiness = Readiness(told.append, "vllm")
    for look in looks:
        readiness.look(look)
    return told


def test_a_ready_fleet_is_not_mentioned() -> None:
    assert told_of(fleet(one=True), fleet(one=True), fleet(one=True)) == []


def test_a_backend_that_does_not_answer_is_told_once_and_so_is_its_return() -> None:
    away, back = fleet(one=False, two=False), fleet(one=True, two=True)
    assert told_of(away, away, away, away, back, back, back, back) == [
        "backend vllm is not ready: one, two will read nothing until it is",
        "backend vllm is ready",
    ]


def test_a_worker_that_asks_its_backend_first_is_no_news() -> None:
    asking, ready = fleet(one=False), fleet(one=True)
    assert told_of(asking, asking, ready, asking, ready, ready, ready) == []


def test_the_command_is_shown_as_the_shell_knows_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "iwl"
    script.touch(mode=0o755)
    monkeypatch.setattr(sys, "argv", [str(script)])
    monkeypatch.setenv("PATH", "/nowhere")
    assert invoked() == str(script)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert invoked() == "iwl"
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "lab/__main__.py")])
    assert invoked() == f"{sys.executable} -m lab"
