"""The keys file: what may stand in it, and what becomes of a change."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from pathlib import Path

import pytest

from api.buckets import Bucket
from api.callers import Caller
from api.keys import Keyring
from api.problems import KeyRequired, RateExceeded
from common.errors import SettingsError
from tests.api.keyring import KEYS, line, write_keys

ANN, BEN, OPS = (KEYS[name].encode() for name in ("ann", "ben", "ops"))
HASH = hashlib.sha256(ANN).hexdigest()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.jsonl"


def keyring(path: Path, *lines: dict[str, object]) -> Keyring:
    return Keyring(write_keys(path, *lines))


def admits(ring: Keyring, key: bytes) -> bool:
    try:
        ring.admit(key)
    except KeyRequired:
        return False
    return True


def test_a_key_gives_its_name_and_rights(path: Path) -> None:
    ring = keyring(path, line("ann", open_jobs=3), line("ops", operator=True), line("ben", rate=5))
    assert ring.admit(ANN) == Caller(name="ann", operator=False, open_jobs=3)
    assert ring.admit(OPS) == Caller(name="ops", operator=True)
    assert ring.admit(BEN).sees == "ben"
    assert ring.admit(OPS).sees is None


@pytest.mark.parametrize("key", [None, b"", b"wrong", ANN + b"x", ANN[:-1], HASH.encode(), "ä".encode()])
def test_nothing_else_does(path: Path, key: bytes | None) -> None:
    ring = keyring(path, line("ann"))
    with pytest.raises(KeyRequired) as refused:
        ring.admit(key)
    assert refused.value.wrong == (key is not None)


@pytest.mark.parametrize("key", [ANN, BEN, OPS, b"wrong"])
def test_a_key_is_compared_with_all_of_them_in_constant_time(
    path: Path, monkeypatch: pytest.MonkeyPatch, key: bytes
) -> None:
    ring = keyring(path, line("ann"), line("ben"), line("ops"))
    compared: list[int] = []
    compare = hmac.compare_digest

    def counting(one: bytes, other: bytes) -> bool:
        compared.append(1)
        return compare(one, other)

    monkeypatch.setattr("api.keys.hmac.compare_digest", counting)
    admits(ring, key)
    assert len(compared) == 3


GOOD = json.dumps(line("ben"))


WRONG = [
    ({"sha256": HASH}, "name: Field required"),
    ({"name": "ann"}, "sha256: Field required"),
    ({"name": "ann", "sha256": "secret-word"}, "sha256:"),
    ({"name": "secret word", "sha256": HASH}, "name: use 1 to 48"),
    ({"name": "", "sha256": HASH}, "name: use 1 to 48"),
    (line("ann", rate=0), "rate:"),
    (line("ann", rate=1e-310), "rate:"),
    (line("ann", rate="secret-word"), "rate:"),
    (line("ann", open_jobs=1.5), "open_jobs:"),
    (line("ann", open_jobs=0), "open_jobs:"),
    (line("ann", operator=1), "operator:"),
    (line("ann") | {"secret-word": 1}, "not permitted"),
    (line("ann") | {"sha256": hashlib.sha256(b"").hexdigest()}, "no key at all"),
    (line("ben"), "the same key as on line 2"),
    (line("ben", "another", rate=1), "other rights on line 2"),
    ("secret-word", "object"),
    (None, "object"),
]


@pytest.mark.parametrize(
    ("bad", "says"),
    [("not JSON, a secret-word", "JSON"), *((json.dumps(wrong), says) for wrong, says in WRONG)],
)
def test_a_bad_line_is_named_and_not_shown(path: Path, bad: str, says: str) -> None:
    path.write_text(f"\n{GOOD}\n{bad}\n")
    with pytest.raises(SettingsError) as refused:
        Keyring(path)
    told = str(refused.value)
    assert told.startswith("IWL_API_KEYS_FILE: line 3: ")
    assert says in told
    assert "secret" not in told
    assert "\n" not in told


@pytest.mark.parametrize("content", [None, b"", b"\n \n", b"\xff\xfe"])
def test_a_file_without_keys_is_refused(path: Path, content: bytes | None) -> None:
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SettingsError, match="IWL_API_KEYS_FILE"):
        Keyring(path)


def test_a_name_may_have_two_keys_for_as_long_as_one_takes_the_place_of_the_other(path: Path) -> None:
    ring = keyring(path, line("ann", "old", rate=1e6), line("ann", "new", rate=1e6))
    assert ring.admit(b"old") == ring.admit(b"new")


def test_a_changed_file_counts(path: Path) -> None:
    ring = keyring(path, line("ann"))
    write_keys(path, line("ben"))
    assert (admits(ring, ANN), admits(ring, BEN)) == (True, False)
    ring.refresh()
    assert (admits(ring, ANN), admits(ring, BEN)) == (False, True)


@pytest.mark.parametrize("content", [None, "", "{", GOOD + "\n" + GOOD])
def test_a_change_that_cannot_be_used_locks_nobody_out(
    path: Path, content: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    ring = keyring(path, line("ann"))
    if content is None:
        path.unlink()
    else:
        path.write_text(content)
    for _ in range(3):
        ring.refresh()
    assert admits(ring, ANN)
    [record] = caplog.records
    assert record.levelname == "ERROR"
    write_keys(path, line("ben"))
    ring.refresh()
    assert (admits(ring, ANN), admits(ring, BEN)) == (False, True)


def test_a_file_that_did_not_change_is_not_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ring = keyring(path, line("ann"))

    def never(*_: object, **__: object) -> str:
        raise AssertionError

    monkeypatch.setattr(Path, "read_text", never)
    ring.refresh()


def test_a_rate_outlives_a_change_of_the_file(path: Path) -> None:
    ring = keyring(path, line("ann", rate=1))
    ring.admit(ANN)
    write_keys(path, line("ann", rate=1), line("ben"))
    os.utime(path, (1, 1))
    ring.refresh()
    with pytest.raises(RateExceeded):
        ring.admit(ANN)
    ring.admit(BEN)


# ---- buckets


def test_a_bucket_holds_a_second_and_fills_at_its_rate() -> None:
    bucket = Bucket(4, now=10)
    assert [bucket.take(10) for _ in range(4)] == [0, 0, 0, 0]
    assert bucket.take(10) == 0.25
    assert bucket.take(10.125) == 0.125
    assert bucket.take(10.25) == 0
    assert [bucket.take(1000) for _ in range(5)] == [0, 0, 0, 0, 0.25]


def test_a_slow_bucket_holds_one() -> None:
    bucket = Bucket(0.5, now=0)
    assert (bucket.take(0), bucket.take(0), bucket.take(1), bucket.take(2)) == (0, 2, 1, 0)
