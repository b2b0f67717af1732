"""A backend of the user's own: what it must be like, and that its faults can be found."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from common.errors import SettingsError
from common.job import Cause
from common.settings import Settings
from common.store import Store
from tests.repository import ROOT
from tests.requests import submit
from tests.worker.backends import Named, raising
from tests.worker.running import Crew, ended
from worker.backends import open_backend


def test_it_is_opened_with_the_settings() -> None:
    settings = Settings(backend="tests.worker.backends:Named")
    backend = open_backend(settings)
    assert isinstance(backend, Named)
    assert backend.settings is settings


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("no.such:Class", "No module named 'no'; is its folder on PYTHONPATH?"),
        ("tests.worker.backends:Nobody", "module 'tests.worker.backends' has no attribute 'Nobody'"),
        ("tests.worker.backends:TakesNothing", "the constructor must take the settings and nothing else"),
        ("tests.worker.backends:Breaks", "the constructor raised KeyError: 'a weight'"),
        ("tests.worker.backends:NoBackend", "lacks generate, ready or aclose"),
        (
            "tests.worker.backends:NoGenerator",
            "generate must be an async generator: `async def` with `yield`",
        ),
        ("tests.worker.backends:NotAsync", "ready must be `async def`"),
    ],
)
def test_what_cannot_be_one_is_a_line_that_says_why(name: str, why: str) -> None:
    with pytest.raises(SettingsError) as refused:
        open_backend(Settings(backend=name))
    assert str(refused.value) == f"IWL_BACKEND: {name}: {why}"


async def test_the_example_in_the_documentation_is_one(
    crew: Crew, gateway: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [example] = re.findall(
        r"```python\n(# mine.py\n.*?)```", (ROOT / "docs/backends.md").read_text(), re.DOTALL
    )
    (tmp_path / "mine.py").write_text(example)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    await crew.start(open_backend(Settings(backend="mine:Shout")))
    job = await ended(gateway, (await submit(gateway, "what is said")).job_id)
    assert job.result
    assert job.result.text == "WHAT IS SAID"


@pytest.mark.settings(retry_backoff_ms=0, max_attempts=2)
async def test_a_fault_in_it_is_logged_with_its_place_once_an_attempt(
    crew: Crew, gateway: Store, caplog: pytest.LogCaptureFixture
) -> None:
    await crew.start(raising(ZeroDivisionError("in the user's code"), ZeroDivisionError()))
    job = await ended(gateway, (await submit(gateway)).job_id)
    assert job.error
    assert job.error.cause is Cause.ERROR
    told = [record for record in caplog.records if record.getMessage() == "the backend raised"]
    assert [record.__dict__["attempt"] for record in told] == [1, 2]
    assert all(record.exc_info for record in told)
    assert "tests/worker/backends.py" in caplog.text
