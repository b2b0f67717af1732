"""The engine under test, and one lab before it. Missing: skip on a laptop, fail in CI."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.labs import RunningLab, start
from tests.vllm.engine import Engine
from tests.vllm.trial import WORKERS, Trial, settings_for, trial_in


def _named(variable: str) -> str:
    if value := os.environ.get(variable):
        return value
    message = f"{variable} names no vLLM"
    if os.environ.get("CI", "").lower() == "true":
        pytest.fail(message)
    pytest.skip(message)


def _launch(engine: Engine, folder: Path) -> RunningLab:
    arguments = ("up", "--json", "--port", "0", "--workers", str(WORKERS), "--data", str(folder / "data"))
    return RunningLab(start(*arguments, temporary=folder, **settings_for(engine)))


@pytest.fixture
async def engine() -> AsyncGenerator[Engine, None]:
    """Up and idle before each test, and not paused after it."""
    url, model = _named("IWL_TEST_VLLM_URL"), _named("IWL_TEST_VLLM_MODEL")
    engine = Engine(url=url.rstrip("/"), model=model, control=os.environ.get("IWL_TEST_VLLM_CTL"))
    if engine.control and not await engine.up():
        await engine.start()
    await engine.until_up()
    await engine.until_running(0)
    yield engine
    if engine.control:
        await engine.resume()
    await engine.http.aclose()


@pytest.fixture
def breakable(engine: Engine) -> Engine:
    """An engine that may be killed and paused."""
    _named("IWL_TEST_VLLM_CTL")
    return engine


@pytest.fixture(scope="session")
def labs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Engine], RunningLab]]:
    """The lab that tests share. It stays up when the engine does not."""
    running: list[RunningLab] = []

    def lab(engine: Engine) -> RunningLab:
        if not running:
            running.append(_launch(engine, tmp_path_factory.mktemp("lab")))
        return running[0]

    yield lab
    for each in running:
        each.stop()


@pytest.fixture
async def trial(engine: Engine, labs: Callable[[Engine], RunningLab]) -> AsyncGenerator[Trial, None]:
    """Jobs through the shared lab, once its workers have noticed the engine."""
    async with trial_in(labs(engine), engine) as trial:
        await trial.until_ready(True)
        yield trial


@pytest.fixture
def start_lab(tmp_path: Path) -> Iterator[Callable[[Engine], RunningLab]]:
    """A lab for this test alone."""
    running: list[RunningLab] = []

    def launch(engine: Engine) -> RunningLab:
        running.append(_launch(engine, tmp_path))
        return running[-1]

    yield launch
    for lab in running:
        lab.stop()
