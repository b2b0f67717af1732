"""`iwl faults`: what it breaks, what it prints, and exit codes that a script can use."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from lab.faults.matrix import FAULTS
from lab.resp import ServerSaidNo, command
from tests.e2e.labs import start
from tests.servers import ServerProcess

pytestmark = pytest.mark.server


def output(process: subprocess.Popen[str], code: int) -> str:
    printed, errors = process.communicate(timeout=50)
    assert process.returncode == code, printed + errors
    return printed


def test_a_destroyed_group_and_a_deleted_queue_lose_no_job_silently(tmp_path: Path) -> None:
    process = start("faults", "flush-group", "lost-entries", "--json", temporary=tmp_path)
    report = json.loads(output(process, 0))
    assert list(report) == ["faults", "conservation", "seconds"]
    assert [row["fault"] for row in report["faults"]] == ["flush-group", "lost-entries"]
    for row in report["faults"]:
        assert (row["as_expected"], row["jobs"], row["lost"], row["duplicates"]) == (True, 18, 0, 0)
        assert 0 < row["recovery_s"] < 30
    kept = report["conservation"]
    assert kept["submitted"] == kept["succeeded"] + kept["failed"] == 36
    assert kept["failed"] > 0
    assert kept["unaccounted"] == 0
    assert not list(tmp_path.iterdir())


def test_one_fault_is_explained_by_the_ledger(tmp_path: Path) -> None:
    settings = {"result_ttl_s": "1", "backend": "no.such:Backend", "log_level": "ERROR"}
    story = output(start("faults", "hang", temporary=tmp_path, **settings), 0)
    assert "timeout, then succeeded (as expected)" in story
    first, second = (line.split() for line in story.splitlines() if line.strip().startswith("attempt "))
    assert "timeout:" in first
    assert second[-1] == "succeeded"
    assert story.splitlines()[-1].endswith("unaccounted 0")


def test_the_list_names_every_fault(tmp_path: Path) -> None:
    lines = output(start("faults", "--list", temporary=tmp_path), 0).splitlines()
    assert [line.split()[0] for line in lines] == [fault.name for fault in FAULTS]
    listed = json.loads(output(start("faults", "--list", "--json", temporary=tmp_path), 0))
    assert [each["fault"] for each in listed["faults"]] == [fault.name for fault in FAULTS]


def test_an_unknown_fault_is_wrong_usage(tmp_path: Path) -> None:
    assert output(start("faults", "no-such-fault", temporary=tmp_path), 2) == ""


async def test_commands_to_the_server_bring_replies_of_every_kind(private_server: ServerProcess) -> None:
    async def say(*words: str) -> object:
        return await command("127.0.0.1", private_server.port, *words)

    assert await say("SET", "text", "two\r\nlines") == "OK"
    assert await say("GET", "text") == "two\r\nlines"
    assert await say("GET", "nothing") is None
    assert await say("DEL", "text", "nothing") == 1
    assert await say("RPUSH", "list", "a", "b") == 2
    assert await say("EVAL", "return {1, 'x', {'y'}}", "0") == [1, "x", ["y"]]
    with pytest.raises(ServerSaidNo, match="WRONGTYPE"):
        await say("GET", "list")


def test_recovery_is_as_long_as_a_lease_lasts(tmp_path: Path) -> None:
    words = ("faults", "kill-worker-for-good", "--idle-ms", "4000", "--json")
    [row] = json.loads(output(start(*words, temporary=tmp_path), 0))["faults"]
    assert (row["as_expected"], row["lost"], row["duplicates"]) == (True, 0, 0)
    # Less the time since the last renewal.
    assert row["recovery_s"] > 4 - 0.4 * 2
