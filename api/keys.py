"""Who may call: the keys file, one JSON object a line, read again when it changes."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from api.buckets import Bucket
from api.callers import Caller
from api.problems import KeyRequired, RateExceeded
from common.errors import SettingsError
from common.settings import Name

log = logging.getLogger(__name__)

VARIABLE = "IWL_API_KEYS_FILE"
LOOK_EVERY_S = 1.0


class Key(BaseModel):
    """One line of the file. A name may have several keys, so that one can take the place of another."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, hide_input_in_errors=True)

    name: Name
    #: SHA-256 (hex) of the key: whoever reads the file cannot call with it.
    sha256: Annotated[str, Field(pattern="^[0-9a-fA-F]{64}$")]
    #: Requests a second.
    rate: Annotated[float, Field(ge=1e-6, le=1e6, allow_inf_nan=False)] | None = None
    #: Unfinished jobs.
    open_jobs: Annotated[int, Field(ge=1)] | None = None
    operator: bool = False

    @property
    def digest(self) -> bytes:
        return bytes.fromhex(self.sha256)

    @property
    def caller(self) -> Caller:
        return Caller(name=self.name, operator=self.operator, open_jobs=self.open_jobs or 0)

    def agrees_with(self, other: Key) -> bool:
        return (self.caller, self.rate) == (other.caller, other.rate)


class Keyring:
    """The keys in force. Errors never show what stands in the file: it may be a key."""

    def __init__(self, path: Path) -> None:
        """Raises SettingsError."""
        self._path = path
        self._seen = _mark(path)
        self._buckets: dict[str, Bucket] = {}
        self._keys = self._read()

    def admit(self, presented: bytes | None) -> Caller:
        """Who this is, with one request less to go. Raises KeyRequired, RateExceeded."""
        key = None if presented is None else self._find(presented)
        if key is None:
            raise KeyRequired(wrong=presented is not None)
        if key.rate is not None:
            self._charge(key.name, key.rate)
        return key.caller

    def refresh(self) -> None:
        """Reads a changed file; one that cannot be used leaves the keys as they were."""
        mark = _mark(self._path)
        if mark == self._seen:
            return
        self._seen = mark
        try:
            self._keys = self._read()
        except SettingsError as error:
            log.error("keys file not used, the keys stay as they were", extra={"error": str(error)})
        else:
            log.info("keys file read", extra={"keys": len(self._keys)})

    def _find(self, presented: bytes) -> Key | None:
        digest = _digest(presented)
        found = None
        # All of them, whichever fits: the time must not tell.
        for key in self._keys:
            if hmac.compare_digest(key.digest, digest):
                found = key
        return found

    def _charge(self, name: str, rate: float) -> None:
        now = time.monotonic()
        bucket = self._buckets.get(name)
        if bucket is None or bucket.rate != rate:
            bucket = self._buckets[name] = Bucket(rate, now)
        if wait_s := bucket.take(now):
            raise RateExceeded(rate, wait_s)

    def _read(self) -> tuple[Key, ...]:
        try:
            text = self._path.read_text(encoding="utf-8")
        except OSError as error:
            raise SettingsError(f"{VARIABLE}: cannot read {self._path}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise SettingsError(f"{VARIABLE}: {self._path} is not UTF-8") from None
        keys = _parse(text)
        if not keys:
            raise SettingsError(f"{VARIABLE}: {self._path} has no keys")
        return keys


async def keep_fresh(keyring: Keyring) -> None:
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        keyring.refresh()


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _mark(path: Path) -> tuple[int, ...]:
    try:
        found = path.stat()
    except OSError:
        return ()
    return (found.st_mtime_ns, found.st_size, found.st_ino)


def _parse(text: str) -> tuple[Key, ...]:
    keys: dict[int, Key] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            key = _parse_line(number, line)
            _check(number, key, keys.items())
            keys[number] = key
    return tuple(keys.values())


def _parse_line(number: int, line: str) -> Key:
    try:
        return Key.model_validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = "".join(f"{part}: " for part in first["loc"] if part in Key.model_fields)
        what = str(first["msg"]).removeprefix("Value error, ")
        raise SettingsError(f"{VARIABLE}: line {number}: {where}{what}") from None


def _check(number: int, key: Key, earlier: Iterable[tuple[int, Key]]) -> None:
    if key.digest == _digest(b""):
        raise SettingsError(f"{VARIABLE}: line {number}: sha256: this is the hash of no key at all")
    for other, before in earlier:
        if before.digest == key.digest:
            raise SettingsError(f"{VARIABLE}: line {number}: the same key as on line {other}")
        if before.name == key.name and not before.agrees_with(key):
            raise SettingsError(f"{VARIABLE}: line {number}: {key.name} has other rights on line {other}")
