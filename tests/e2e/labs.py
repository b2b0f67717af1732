"""`iwl` as its users run it: real processes, started and watched from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import IO

import msgspec

from common.settings import child_environment
from lab.client import Api
from lab.records import JobRecord
from tests.waiting import wait_until

IWL = Path(sys.executable).with_name("iwl")

#: A crash is noticed soon, and the machine may pause for a while without looking dead.
SETTINGS = {"claim_idle_ms": "2000", "scale_interval_ms": "100"}


class Announcement(msgspec.Struct, frozen=True):
    """The one line of `iwl up --json`."""

    api: str
    redis: str
    pids: dict[str, int]


def start(*arguments: str, temporary: Path, **settings: str) -> subprocess.Popen[str]:
    """An `iwl` process whose temporary files lie under `temporary`."""
    return subprocess.Popen(
        [IWL, *arguments],
        env=child_environment(**SETTINGS | settings) | {"TMPDIR": str(temporary)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


class RunningLab:
    """An `iwl up` that has said it is ready."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        line = _pipe(process.stdout).readline()
        if not line:
            raise AssertionError(f"iwl up did not start: {_pipe(process.stderr).read()}")
        self.ready = msgspec.json.decode(line, type=Announcement)
        #: Of every process that was part of the lab at the start.
        self.pids = dict(self.ready.pids)

    def client(self) -> Api:
        return Api(self.ready.api)

    def kill(self, name: str) -> None:
        os.kill(self.pids[name], signal.SIGKILL)

    def end(self) -> tuple[str, str]:
        """All that it said since it was ready, on standard output and error."""
        self.process.terminate()
        return self.process.communicate(timeout=30)

    def stop(self, signum: signal.Signals = signal.SIGTERM) -> int:
        """The exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signum)
        self.process.communicate(timeout=30)
        return self.process.returncode


async def running(api: Api, **body: object) -> JobRecord:
    """A new job, once a worker runs it."""
    job_id = (await api.submit(body)).value.job_id

    async def started() -> bool:
        return (await api.job(job_id)).value.status == "running"

    await wait_until(started, timeout=15)
    return (await api.job(job_id)).value


async def all_gone(pids: Iterable[int]) -> None:
    """Returns once none of these processes lives."""
    await wait_until(lambda: not [pid for pid in pids if alive(pid)], timeout=15)


def alive(pid: int) -> bool:
    """A zombie is dead: whoever inherited it has yet to notice."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def children_of(pid: int) -> set[int]:
    return {int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


def entries(folder: Path) -> list[Path]:
    return list(folder.iterdir())


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe
    return pipe
