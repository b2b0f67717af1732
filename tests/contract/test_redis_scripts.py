"""The Lua scripts: each answers as its header says, twice is once, and an error comes before any write."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from fnmatch import fnmatchcase
from typing import Any

import pytest
from redis.asyncio import Redis

from common.errors import StoreError
from common.redis_store import loader
from common.redis_store.calls import Calls
from common.redis_store.scripts import Scripts
from common.redis_store.wire import Wire
from common.store import Store
from tests.contract.scripts import DEAD_ID, KEEP, NEW_ID, SCENARIOS, SUBMIT_ID, Stage, word_of
from tests.keyspace import dump, keys_of
from tests.processes import Processes
from tests.twice import COUNTING
from tests.vandal import Vandal
from tests.workers import Worker

#: Scripts that answer numbers or tables instead of words.
NUMERIC = {"depth", "drop", "expire", "lead", "lock", "promote", "prune", "scale"}
#: Answers that tell the time, which moves by itself.
TIMED = {"depth", "scale", "expire", "promote", "announce"}


@pytest.fixture
async def stage(
    namespace: str, processes: Processes, gateway: Store, worker: Worker, vandal: Vandal
) -> AsyncIterator[Stage]:
    calls = Calls(Wire(processes.connect, resend=False), namespace)
    await calls.prepare()
    yield Stage(processes, gateway, worker, vandal, calls, Scripts(calls, KEEP))
    await calls.aclose()


def header(name: str) -> dict[str, str]:
    """`-- Name  text` lines of a script's header, with what goes on in the lines below."""
    parts: dict[str, str] = {}
    label = ""
    for line in (loader.LUA / f"{name}.lua").read_text().splitlines()[1:]:
        if not line.startswith("-- ") or line.startswith("-- @include"):
            break
        if labelled := re.match(r"-- (KEYS|ARGV|Answers|Promise) +(.+)", line):
            label, text = labelled.groups()
            parts[label] = text
        else:
            parts[label or "Purpose"] = f"{parts.get(label or 'Purpose', '')} {line[2:].strip()}".strip()
    return parts


def answer_words(name: str) -> set[str]:
    text = re.sub(r"^for each [\w ]+: ", "", header(name)["Answers"])
    return {alternative.split()[0].rstrip(",") for alternative in text.split("|")}


@pytest.mark.parametrize("name", loader.names())
def test_a_script_says_what_it_does_and_stays_short(name: str) -> None:
    text = (loader.LUA / f"{name}.lua").read_text()
    assert set(header(name)) == {"Purpose", "KEYS", "ARGV", "Answers", "Promise"}
    assert len(text.splitlines()) <= 60
    assert text.startswith("#!lua")
    assert "pcall" not in text


@pytest.mark.parametrize("path", sorted((loader.LUA / "include").glob("*.lua")), ids=lambda path: path.stem)
def test_an_included_file_says_what_it_is_and_stays_short(path: Any) -> None:
    text = path.read_text()
    assert text.startswith("-- ")
    assert len(text.splitlines()) <= 60
    assert "pcall" not in text


@pytest.mark.parametrize("name", loader.names())
def test_a_full_server_refuses_new_work_alone(name: str) -> None:
    first = (loader.LUA / f"{name}.lua").read_text().splitlines()[0]
    assert ("allow-oom" in first) == (name not in ("submit", "redrive"))


@pytest.mark.parametrize("name", loader.names())
def test_every_answer_is_covered(name: str) -> None:
    covered = {word for script, word in SCENARIOS if script == name}
    assert covered == ({""} if name in NUMERIC else answer_words(name))


@pytest.mark.vandal
@pytest.mark.parametrize(("script", "word"), SCENARIOS, ids=["-".join(key) for key in SCENARIOS])
async def test_a_script_run_twice_answers_the_same_and_changes_nothing_more(
    script: str, word: str, stage: Stage, raw: Redis, namespace: str
) -> None:
    call = await SCENARIOS[script, word](stage)
    first = await call()
    if word:
        # announce gives a name, or None for `taken`.
        expected = {"seat": "worker-2", "taken": "none"}.get(word, word) if script == "announce" else word
        assert word_of(first) == expected
    after_first = await dump(raw, namespace)
    second = await call()
    assert await dump(raw, namespace) == after_first
    if script not in {*COUNTING, *TIMED, "group"}:
        assert second == first


READ_ONLY = {"read", "depth", "scale"}
#: One answer of each script that writes, the one that writes most.
WRITERS = {
    "announce": "seat", "append": "ok", "begin": "run", "cancel": "cancelled", "drop": "", "expire": "",
    "extend": "held", "fail": "retrying", "finish": "succeeded", "group": "exists", "lead": "", "lock": "",
    "promote": "", "prune": "", "publish_scale": "published", "reconcile": "requeued", "redrive": "queued",
    "release": "released", "retire": "retired", "submit": "accepted", "watch": "live",
}  # fmt: skip
#: And more answers of scripts whose ways differ.
MORE = [
    ("begin", "expired"),
    ("begin", "dead"),
    ("fail", "failed"),
    ("fail", "expired"),
    ("reconcile", "lost"),
]


def test_every_script_that_writes_is_covered() -> None:
    assert set(WRITERS) | READ_ONLY == set(loader.names())


#: Part of a key's name that stands for all keys of its kind.
KINDS = [
    "jobs", "dlq", "recent", "retries", "deadlines", "counts", "owners", "scale", "scale:log", "workers",
    "job:*", "result:*", "tokens:*", "idem:*", "redriven:*", "worker:*", "lock:*",
]  # fmt: skip


def made_by_the_call(namespace: str) -> set[str]:
    """Keys that are not there yet and that some call would make."""
    names = ["scale", "scale:log", "owners", "lock:sweep", "worker:worker-2", "idem:ann:k"]
    names.append(f"redriven:{DEAD_ID}")
    ids = [f"{kind}:{job_id}" for kind in ("job", "result", "tokens") for job_id in (NEW_ID, SUBMIT_ID)]
    return {f"{namespace}:{name}" for name in (*names, *ids)}


@pytest.mark.vandal
@pytest.mark.real_server
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("script", "word"), [*WRITERS.items(), *MORE], ids=lambda name: name or "number")
async def test_an_error_comes_before_any_write(
    script: str, word: str, kind: str, stage: Stage, raw: Redis, namespace: str
) -> None:
    """Lua does not roll back: with a key of the wrong type a script does its whole work or none of it."""
    call = await SCENARIOS[script, word](stage)
    for key in {*await keys_of(raw, namespace), *made_by_the_call(namespace)}:
        if fnmatchcase(key, f"{namespace}:{kind}"):
            await stage.vandal.make_wrong_type(key)
    before = await dump(raw, namespace)
    try:
        await call()
    except StoreError:
        assert await dump(raw, namespace) == before
