"""The client commands of `iwl`: what they print, and exit codes that a script can use."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from common.job import JobStatus
from lab.cli import main
from tests.e2e.labs import RunningLab, start
from tests.repository import ROOT
from tests.waiting import wait_until

pytestmark = pytest.mark.server


@dataclass(frozen=True, slots=True)
class Answer:
    code: int | str | None
    out: str
    err: str


Iwl = Callable[..., Answer]


@pytest.fixture
def iwl(shared_lab: RunningLab, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iwl:
    """Runs an `iwl` command in this process, against the shared lab or another URL."""

    def run(*arguments: str, url: str = shared_lab.ready.api) -> Answer:
        monkeypatch.setenv("IWL_API_URL", url)
        monkeypatch.setattr(sys, "argv", ["iwl", *arguments])
        with pytest.raises(SystemExit) as left:
            main()
        printed = capsys.readouterr()
        return Answer(left.value.code, printed.out, printed.err)

    return run


def test_submit_prints_the_id_and_get_shows_the_job(iwl: Iwl) -> None:
    job_id = iwl("submit", "hello there").out.strip()
    answer = iwl("get", job_id, "--wait", "10")
    assert answer.code == 0
    assert "succeeded" in answer.out
    assert "hello there" in answer.out


def test_submit_wait_prints_the_result(iwl: Iwl) -> None:
    assert iwl("submit", "hello there", "--wait") == Answer(0, "hello there\n", "")


def test_submit_stream_prints_the_output_as_it_comes(iwl: Iwl) -> None:
    assert iwl("submit", "a b c", "--stream", "--param", "mock.tokens=4") == Answer(0, "a b c a\n", "")


def test_a_pipe_gets_the_last_attempt_s_output_alone(iwl: Iwl) -> None:
    params = ("--param", "mock.fail=error", "--param", "mock.fail_attempts=1")
    answer = iwl("submit", "a b c d", "--stream", *params)
    assert (answer.code, answer.out) == (0, "a b c d\n")
    assert answer.err == "attempt 2: the output starts again\n"


def test_a_failed_job_is_exit_code_1_and_one_line(iwl: Iwl) -> None:
    answer = iwl("submit", "x", "--wait", "--param", "mock.fail=permanent")
    assert (answer.code, answer.out) == (1, "")
    assert "failed: permanent: " in answer.err
    assert len(answer.err.splitlines()) == 1


def test_watch_follows_a_job_to_its_end(iwl: Iwl) -> None:
    job_id = iwl("submit", "hello", "--param", "mock.latency_ms=200").out.strip()
    answer = iwl("watch", job_id, "--json")
    events = [json.loads(line) for line in answer.out.splitlines()]
    assert answer.code == 0
    assert [event["event"] for event in events][-1] == "state"
    assert events[-1]["data"]["status"] == "succeeded"
    assert iwl("watch", job_id).out == "hello\n"


def test_an_idempotency_key_gives_the_same_job(iwl: Iwl) -> None:
    first, second = (iwl("submit", "once", "--idempotency-key", "k-1").out for _ in range(2))
    assert first == second
    conflict = iwl("submit", "twice", "--idempotency-key", "k-1")
    assert conflict.code == 1
    assert conflict.err.startswith("iwl: 4")


def test_cancel_ends_a_job(iwl: Iwl) -> None:
    job_id = iwl("submit", "x", "--param", "mock.fail=hang").out.strip()
    assert iwl("cancel", job_id) == Answer(0, f"{job_id} cancelled\n", "")
    assert iwl("get", job_id).code == 1


def test_an_expired_job_is_exit_code_1(iwl: Iwl) -> None:
    answer = iwl("submit", "x", "--wait", "--param", "mock.fail=hang", "--expires-in-s", "0.3")
    assert (answer.code, answer.out) == (1, "")
    assert "expired" in answer.err


def test_a_dead_job_is_listed_and_redriven(iwl: Iwl) -> None:
    params = ("--param", "mock.fail=permanent", "--param", "mock.fail_attempts=1")
    dead = json.loads(iwl("submit", "dead", "--wait", "--json", *params).out)["job_id"]
    assert dead in iwl("dlq", "list").out
    planned = iwl("dlq", "redrive", dead, "--dry-run")
    assert planned == Answer(0, f"{dead} -> would be queued again\n", "")
    redriven = json.loads(iwl("dlq", "redrive", dead, "--json").out)
    again = redriven["jobs"][0]["new_job_id"]
    assert json.loads(iwl("get", again, "--wait", "10", "--json").out)["redrive_of"] == dead


def test_dead_jobs_can_be_listed_by_their_cause(iwl: Iwl) -> None:
    params = ("--param", "mock.fail=permanent")
    ids = [json.loads(iwl("submit", "x", "--wait", "--json", *params).out)["job_id"] for _ in range(3)]
    newest = [line.split()[0] for line in iwl("dlq", "list", "--cause", "permanent").out.splitlines()]
    assert newest[:3] == ids[::-1]
    first = json.loads(iwl("dlq", "list", "--cause", "permanent", "--limit", "2", "--json").out)
    assert [job["job_id"] for job in first["jobs"]] == ids[:0:-1]
    second = iwl("dlq", "list", "--cause", "permanent", "--limit", "1", "--before", first["next"])
    assert second.out.startswith(ids[0])
    assert iwl("dlq", "list", "--cause", "result_too_large") == Answer(0, "", "no dead jobs\n")


def test_a_redrive_that_queues_nothing_says_so(iwl: Iwl) -> None:
    alive = iwl("submit", "hello", "--wait", "--json")
    job_id = json.loads(alive.out)["job_id"]
    left = "not queued: no dead job, over the limit, or no room"
    assert iwl("dlq", "redrive", job_id) == Answer(1, f"{job_id}    {left}\n", "")
    nothing = Answer(0, "", "no dead jobs to queue again\n")
    assert iwl("dlq", "redrive", "--cause", "result_too_large") == nothing
    assert iwl("dlq", "redrive", "--cause", "result_too_large", "--dry-run") == nothing


def test_a_redrive_of_everything_must_be_asked_for(iwl: Iwl) -> None:
    for arguments in ((), ("--cause", "error", "--all"), ("some-id", "--all")):
        answer = iwl("dlq", "redrive", *arguments)
        assert (answer.code, answer.out) == (2, "")
        assert "--all" in answer.err
    assert iwl("dlq", "redrive", "--all", "--dry-run").code == 0


def test_recent_jobs_are_listed(iwl: Iwl) -> None:
    first, second = (json.loads(iwl("submit", "x", "--wait", "--json").out)["job_id"] for _ in range(2))
    answer = iwl("list", "--limit", "1")
    assert answer.out.startswith(second)
    assert "succeeded" in answer.out
    assert answer.err == f"more: --before {second}\n"
    assert iwl("list", "--limit", "1", "--before", second).out.startswith(first)
    listed = json.loads(iwl("list", "--status", "succeeded", "--limit", "2", "--json").out)
    assert [job["job_id"] for job in listed["jobs"]] == [second, first]


def test_the_version_is_the_project_s(iwl: Iwl) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert iwl("--version") == Answer(0, f"iwl {project['version']}\n", "")


async def test_ctrl_c_tells_how_to_find_the_job_again(shared_lab: RunningLab, tmp_path: Path) -> None:
    hang = ("--param", "mock.fail=hang")
    waiting = start("submit", "x", "--wait", *hang, temporary=tmp_path, api_url=shared_lab.ready.api)
    async with shared_lab.client() as api:

        async def hangs() -> bool:
            return bool((await api.jobs(JobStatus.RUNNING, 1, None)).value.jobs)

        await wait_until(hangs, timeout=15)
        job_id = (await api.jobs(JobStatus.RUNNING, 1, None)).value.jobs[0].job_id
        waiting.send_signal(signal.SIGINT)
        out, said = await asyncio.to_thread(waiting.communicate, timeout=10)
        await api.cancel(job_id)
    assert (waiting.returncode, out) == (130, "")
    assert f"{job_id} goes on: iwl watch {job_id}, iwl cancel {job_id}" in said


def test_load_accounts_for_every_job(iwl: Iwl) -> None:
    answer = iwl("load", "--jobs", "30", "--concurrency", "5", "--latency-ms", "5", "--json")
    report = json.loads(answer.out)
    assert (answer.code, report["jobs"], report["succeeded"], report["failed"]) == (0, 30, 30, 0)
    assert report["p95_ms"] >= report["p50_ms"] > 0


def test_scale_and_stats_are_shown(iwl: Iwl) -> None:
    assert json.loads(iwl("scale", "--json").out)["live"] == 2
    assert json.loads(iwl("stats", "--json").out)["unaccounted"] == 0
    assert iwl("scale").code == iwl("stats").code == 0


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        (("get", "no-such-job"), 1, "iwl: 404: There is no such job.\n"),
        (("submit", ""), 1, "iwl: 422: prompt: "),
        (("submit",), 2, "Usage: "),
        (("submit", "x", "--param", "novalue"), 2, "Usage: "),
        (("nothing",), 2, "Usage: "),
        (("submit", "x", "--timeout-s", "nan"), 2, "Usage: "),
        (("submit", "x", "--expires-in-s", "inf"), 2, "Usage: "),
        (("get", "x", "--wait", "1e300"), 2, "Usage: "),
        (("submit", "a\udcffb"), 2, "iwl: 'a\\udcffb' is not UTF-8\n"),
    ],
    ids=[
        *("unknown job", "wrong field", "argument missing", "wrong parameter", "unknown command"),
        *("no number", "no limit", "for ever", "no text"),
    ],
)
def test_what_goes_wrong_is_said_in_a_line(
    iwl: Iwl, arguments: tuple[str, ...], code: int, line: str
) -> None:
    answer = iwl(*arguments)
    assert answer.code == code
    assert answer.out == ""
    assert answer.err.startswith(line)


def test_no_api_is_exit_code_3(iwl: Iwl) -> None:
    answer = iwl("stats", url="http://127.0.0.1:9")
    assert (answer.code, answer.out) == (3, "")
    assert answer.err.startswith("iwl: No API answers at http://127.0.0.1:9.")


@pytest.mark.parametrize(
    "url", ["nonsense", "http://[::1", "http://127.0.0.1:99999", "http://\x01", "http://"]
)
@pytest.mark.parametrize("command", [["stats"], ["watch", "x"]], ids=" ".join)
def test_a_url_that_is_none_is_exit_code_2(iwl: Iwl, command: list[str], url: str) -> None:
    assert iwl(*command, url=url) == Answer(2, "", "iwl: IWL_API_URL: not an http URL\n")


@pytest.mark.parametrize("at", ["127.0.0.1:9", "127.0.0.1:99999", "[::1", ""])
@pytest.mark.parametrize("user", ["http://a:secret@", "http://secret@", "http://a:secret/@", "a:secret@"])
def test_no_message_shows_who_the_url_logs_in(iwl: Iwl, user: str, at: str) -> None:
    answer = iwl("stats", url=user + at)
    assert answer.code in (2, 3)
    assert "secret" not in answer.err
    assert len(answer.err.splitlines()) == 1
