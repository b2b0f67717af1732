"""What `submit --stream` and `watch` print, at a terminal and into a pipe."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from io import StringIO

import pytest
from rich.console import Console

from common.job import Cause, JobError, JobStatus, Result
from lab.client import Event
from lab.follow import Screen
from lab.records import EventData, JobRecord

RETRIED = [
    Event("1", "state", EventData(attempt=0, status=JobStatus.QUEUED), ""),
    Event("2", "attempt", EventData(attempt=1, status=JobStatus.RUNNING), ""),
    Event("3", "chunk", EventData(attempt=1, text="half an"), ""),
    Event("4", "state", EventData(attempt=1, status=JobStatus.QUEUED), ""),
    Event("5", "attempt", EventData(attempt=2, status=JobStatus.RUNNING), ""),
    Event("6", "chunk", EventData(attempt=2, text="half an "), ""),
    Event("7", "chunk", EventData(attempt=2, text="answer"), ""),
]


def job(result: str | None) -> JobRecord:
    return JobRecord(
        job_id="j",
        status=JobStatus.SUCCEEDED if result is not None else JobStatus.FAILED,
        created_at=datetime.now(UTC),
        result=None if result is None else Result(text=result),
        error=JobError(cause=Cause.ERROR, message="why") if result is None else None,
    )


class Terminal(StringIO):
    """Standard output and standard error in one, as it shows the two."""

    def isatty(self) -> bool:
        return True


def at_a_terminal(
    monkeypatch: pytest.MonkeyPatch, events: list[Event], end: JobRecord, *, states: bool
) -> list[str]:
    """The lines that it shows."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    screen = Screen(Console(file=terminal, color_system=None), states=states)
    for event in events:
        screen.show(event)
    screen.end(end)
    return terminal.getvalue().splitlines()


def test_at_a_terminal_a_notice_has_a_line_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = at_a_terminal(monkeypatch, RETRIED, job("half an answer"), states=False)
    assert lines == [
        "half an",
        "attempt 2: the output starts again",
        "half an answer",
    ]


def test_states_are_shown_to_somebody_who_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = at_a_terminal(monkeypatch, RETRIED[:4], job(None), states=True)
    assert lines == [
        "queued",
        "running, attempt 1",
        "half an",
        "queued, attempt 1",
        "j failed: error: why",
    ]


def test_a_pipe_gets_the_last_attempt_s_output_alone(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen(Console(stderr=True), states=False)
    for event in RETRIED:
        screen.show(event)
    screen.end(job("half an answer"))
    printed = capsys.readouterr()
    assert printed.out == "half an answer\n"
    assert printed.err == "attempt 2: the output starts again\n"


def test_a_pipe_gets_nothing_of_a_job_that_failed(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen(Console(stderr=True), states=False)
    for event in RETRIED:
        screen.show(event)
    screen.end(job(None))
    assert capsys.readouterr().out == ""
