"""What `iwl` prints where it cannot be shown, read or kept, and Ctrl-C before it has printed anything."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from common.settings import child_environment
from tests.e2e.labs import IWL, RunningLab
from tests.unit.test_lab_patience import RATE_EXCEEDED, in_turn, job, serving

pytestmark = pytest.mark.server

MODULE = [sys.executable, "-m", "lab"]


def environment(api_url: str, **more: str) -> dict[str, str]:
    """Output is buffered, as it is for most users."""
    ours = child_environment(api_url=api_url)
    ours.pop("PYTHONUNBUFFERED", None)
    return ours | more


@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize("command", ["--version", "--help", "scale", "stats --json"])
def test_output_that_a_full_disk_refuses_is_one_line_and_exit_code_1(
    shared_lab: RunningLab, command: str, unbuffered: str
) -> None:
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [IWL, *command.split()],
            env=environment(shared_lab.ready.api, PYTHONUNBUFFERED=unbuffered),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert (ended.returncode, ended.stderr) == (1, "iwl: [Errno 28] No space left on device\n")


def test_a_full_standard_error_leaves_the_exit_code_as_it_is() -> None:
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run([IWL, "stats"], env=environment("http://127.0.0.1:9"), stderr=full)
    assert ended.returncode == 3


@pytest.mark.parametrize("command", ["--version", "--help"])
def test_a_reader_that_left_hears_nothing(command: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    ended = subprocess.run(
        [IWL, command], env=environment(""), stdout=writer, stderr=subprocess.PIPE, text=True
    )
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (1, "")


@pytest.mark.parametrize("closed", [">&-", "2>&-"])
def test_an_output_that_is_closed_costs_nothing_else(shared_lab: RunningLab, closed: str) -> None:
    ended = subprocess.run(
        ["sh", "-c", f'"$0" submit hello --stream {closed}', IWL],
        env=environment(shared_lab.ready.api),
        capture_output=True,
        text=True,
    )
    assert (ended.returncode, ended.stderr) == (0, "")


def test_letters_that_the_encoding_lacks_are_escaped_and_json_stays_json(shared_lab: RunningLab) -> None:
    ascii_only = environment(shared_lab.ready.api, PYTHONIOENCODING="ascii")

    def out(*arguments: str) -> str:
        command = [IWL, "submit", "é €😀", *arguments]
        return subprocess.run(command, env=ascii_only, check=True, capture_output=True, text=True).stdout

    escaped = "\\u00e9 \\u20ac\\ud83d\\ude00\n"
    assert out("--wait") == out("--stream") == escaped
    assert json.loads(out("--wait", "--json"))["result"]["text"] == "é €😀"


@pytest.mark.parametrize("command", [[str(IWL)], MODULE[1:]], ids=["script", "module"])
def test_ctrl_c_while_it_is_still_loading_is_exit_code_130(command: Sequence[str]) -> None:
    loading = subprocess.Popen(
        [sys.executable, "-X", "importtime", *command, "stats"],
        env=environment("http://127.0.0.1:9"),
        stderr=subprocess.PIPE,
        # It cannot get to the end of loading before the signal: what it says of that does not fit.
        pipesize=4096,
        text=True,
    )
    assert loading.stderr
    # The first of many that it loads.
    while "common.errors" not in (line := loading.stderr.readline()):
        assert line
    loading.send_signal(signal.SIGINT)
    _, said = loading.communicate(timeout=10)
    assert loading.returncode == 130
    assert "Traceback" not in said


def test_a_terminal_that_is_closed_takes_its_lab_with_it(tmp_path: Path) -> None:
    screen, terminal = os.openpty()
    lab = subprocess.Popen(
        [IWL, "up", "--port", "0", "--workers", "1"],
        env=environment("", TMPDIR=str(tmp_path)),
        stdout=terminal,
        stderr=terminal,
    )
    os.close(terminal)
    shown = b""
    while b"Ctrl-C stops everything" not in shown:
        shown += os.read(screen, 4096)
    os.close(screen)
    lab.send_signal(signal.SIGHUP)
    lab.wait(timeout=15)
    assert not list(tmp_path.iterdir())


async def test_who_waits_at_a_limit_is_told_and_a_program_is_not() -> None:
    async with serving(in_turn(RATE_EXCEEDED, job(), RATE_EXCEEDED, job())) as (stub, _):

        def get(*more: str) -> str:
            command = [IWL, "get", "j", "--wait", "5", *more]
            ended = subprocess.run(
                command, env=environment(stub.url), check=True, capture_output=True, text=True
            )
            return ended.stderr

        assert await asyncio.to_thread(get) == "waiting: 429: too many requests\n"
        assert await asyncio.to_thread(get, "--json") == ""
