"""Labs for the end-to-end tests, each stopped at the end whatever became of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.labs import RunningLab, start


@pytest.fixture
def start_lab(tmp_path: Path) -> Iterator[Callable[..., RunningLab]]:
    """Starts `iwl up --json` with the given arguments and settings."""
    labs: list[RunningLab] = []

    def up(*arguments: str, **settings: str) -> RunningLab:
        process = start("up", "--json", "--port", "0", *arguments, temporary=tmp_path, **settings)
        labs.append(RunningLab(process))
        return labs[-1]

    yield up
    for lab in labs:
        lab.stop()


@pytest.fixture(scope="session")
def shared_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningLab]:
    """A lab for tests that break nothing."""
    process = start("up", "--json", "--port", "0", temporary=tmp_path_factory.mktemp("lab"))
    lab = RunningLab(process)
    yield lab
    lab.stop()
