"""JSON and hashes of the Redis adapter, to and from the contract's values. Times are Unix milliseconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import msgspec

from common.job import (
    Attempt,
    Cause,
    Job,
    JobError,
    JobRequest,
    JobStatus,
    JsonObject,
    Outcome,
    Result,
)

#: n, worker, started, ended, outcome, error
LedgerLine = tuple[int, str, int, int, Outcome, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """The part of a request that clients read back."""

    model: str | None = None
    metadata: JsonObject = field(default_factory=dict[str, object])


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The ended record as `ended_record` in lua/include/ending.lua writes it."""

    status: JobStatus
    created: int
    finished: int
    starts: int = 0
    started: int | None = None
    worker: str | None = None
    deadline: int | None = None
    owner: str = ""
    origin: str | None = None
    shown: Shown = Shown()
    ledger: tuple[LedgerLine, ...] = ()
    result: Result | None = None
    error: JobError | None = None


_encode = msgspec.json.Encoder().encode
_request_decoder = msgspec.json.Decoder(JobRequest)
_shown_decoder = msgspec.json.Decoder(Shown)
_ended_decoder = msgspec.json.Decoder(Ended)
_ledger_decoder = msgspec.json.Decoder(tuple[LedgerLine, ...])


def instant(ms: int | float) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else max(1, round(seconds * 1000))


def encode_request(request: JobRequest) -> tuple[bytes, bytes]:
    """The request without what clients read back, and that part (b"" when empty)."""
    fields = {
        "prompt": request.prompt,
        "messages": request.messages,
        "params": request.params or None,
        "timeout_s": request.timeout_s,
        "expires_in_s": request.expires_in_s,
        "stream": request.stream or None,
    }
    shown = {"model": request.model, "metadata": request.metadata or None}
    return _dense(fields), _dense(shown) if any(shown.values()) else b""


def decode_request(request: bytes, shown: bytes | None) -> JobRequest:
    """Raises msgspec.DecodeError."""
    decoded = _request_decoder.decode(request)
    if not shown:
        return decoded
    seen = _shown_decoder.decode(shown)
    return replace(decoded, model=seen.model, metadata=seen.metadata)


def encode_shown(request: JobRequest) -> bytes:
    shown = {"model": request.model, "metadata": request.metadata or None}
    return _dense(shown) if any(shown.values()) else b""


def encode_result(result: Result) -> bytes:
    return _encode(result)


def encode_text(text: str) -> bytes:
    """A JSON string."""
    return _encode(text)


def decode_text(raw: bytes) -> str:
    """The string in a JSON string; "" for nothing."""
    return msgspec.json.decode(raw, type=str) if raw else ""


def decode_ended(job_id: str, raw: bytes) -> Job:
    """Raises msgspec.DecodeError."""
    ended = _ended_decoder.decode(raw)
    attempts = tuple(_attempt(line) for line in ended.ledger)
    if ended.started is not None:
        attempts = (*attempts, _last_attempt(ended, ended.started))
    return Job(
        job_id=job_id,
        status=ended.status,
        created_at=instant(ended.created),
        attempt=ended.starts,
        worker=attempts[-1].worker if attempts else None,
        started_at=attempts[0].started_at if attempts else None,
        finished_at=instant(ended.finished),
        deadline_at=instant(ended.deadline) if ended.deadline is not None else None,
        model=ended.shown.model,
        result=ended.result,
        error=ended.error,
        attempts=attempts,
        metadata=ended.shown.metadata,
        owner=ended.owner,
        redrive_of=ended.origin,
    )


def decode_live(job_id: str, shown: bytes, fields: Mapping[str, bytes]) -> Job:
    """Raises msgspec.DecodeError, KeyError or ValueError for a record that somebody broke."""
    ledger = _ledger_decoder.decode(b"[" + fields.get("ledger", b"") + b"]")
    attempts = tuple(_attempt(line) for line in ledger)
    starts = int(fields.get("starts", 0))
    if "started" in fields:
        started, worker = instant(int(fields["started"])), fields["worker"].decode()
        attempts = (*attempts, Attempt(n=starts, worker=worker, started_at=started))
    seen = _shown_decoder.decode(shown) if shown else Shown()
    return Job(
        job_id=job_id,
        status=JobStatus(fields["state"].decode()),
        created_at=instant(int(fields["created"])),
        attempt=starts,
        worker=attempts[-1].worker if attempts else None,
        started_at=attempts[0].started_at if attempts else None,
        deadline_at=instant(int(fields["deadline"])) if "deadline" in fields else None,
        model=seen.model,
        attempts=attempts,
        metadata=seen.metadata,
        owner=decode_text(fields.get("owner", b"")),
        redrive_of=fields["origin"].decode() if "origin" in fields else None,
    )


def pairs(flat: Sequence[bytes] | Mapping[bytes, bytes]) -> dict[str, bytes]:
    """Fields by name: from a script `name value name value ...`, from the client library a mapping."""
    items = flat.items() if isinstance(flat, Mapping) else zip(flat[::2], flat[1::2], strict=True)
    return {name.decode(errors="replace"): value for name, value in items}


def _dense(fields: Mapping[str, object]) -> bytes:
    return _encode({name: value for name, value in fields.items() if value is not None})


def _attempt(line: LedgerLine) -> Attempt:
    n, worker, started, ended, outcome, error = line
    return Attempt(
        n=n, worker=worker, started_at=instant(started), ended_at=instant(ended), outcome=outcome, error=error
    )


def _last_attempt(ended: Ended, started: int) -> Attempt:
    """The attempt that was running when the job ended; its outcome follows from how the job ended."""
    by_status = {
        JobStatus.SUCCEEDED: Outcome.SUCCEEDED,
        JobStatus.CANCELLED: Outcome.CANCELLED,
        JobStatus.EXPIRED: Outcome.EXPIRED,
    }
    cause = ended.error.cause if ended.error else Cause.LOST
    return Attempt(
        n=ended.starts,
        worker=ended.worker or "",
        started_at=instant(started),
        ended_at=instant(ended.finished),
        outcome=by_status.get(ended.status) or Outcome(cause.value),
        error=ended.error.message if ended.error else None,
    )
