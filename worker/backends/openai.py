"""The wire format of OpenAI-compatible chat completions, as far as a worker reads it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

import msgspec

from common.job import JobRequest, Usage
from worker.backends.base import BrokenStream, Completion, Refused

DONE = b"[DONE]"

#: An engine that stops says so in the finish reason; what came before is cut short.
CUT_SHORT = frozenset({"abort", "error"})


class Delta(msgspec.Struct):
    content: str | None = None


class Choice(msgspec.Struct):
    index: int = 0
    delta: Delta = msgspec.field(default_factory=Delta)
    finish_reason: str | None = None


class TokenCounts(msgspec.Struct):
    prompt_tokens: int = 0
    #: Null before the first token.
    completion_tokens: int | None = 0


class ErrorBody(msgspec.Struct):
    message: str = "no message"
    #: An HTTP status, a word, or nothing.
    code: int | str | None = None


class Chunk(msgspec.Struct):
    """One event of the stream. Old servers send an error's fields bare, new ones under `error`."""

    choices: list[Choice] = []
    usage: TokenCounts | None = None
    error: ErrorBody | str | None = None
    object: str | None = None
    message: str | None = None
    code: int | str | None = None


class Model(msgspec.Struct):
    id: str


class Models(msgspec.Struct):
    data: list[Model] = []


_chunks = msgspec.json.Decoder(Chunk)
_models = msgspec.json.Decoder(Models)


class Answer:
    """What the stream has said so far about the whole answer."""

    def __init__(self) -> None:
        self.complete = False
        self._finish_reason: str | None = None
        self._usage = Usage()

    def hear(self, data: bytes) -> str:
        """The text in this event. Raises Refused, BrokenStream."""
        if data == DONE:
            self.complete = True
            return ""
        chunk = _decoded(data)
        if (error := _error(chunk)) is not None:
            raise error
        if chunk.usage is not None:
            counts = chunk.usage
            self._usage = Usage(
                prompt_tokens=counts.prompt_tokens, completion_tokens=counts.completion_tokens or 0
            )
        return "".join(self._text(choice) for choice in chunk.choices if choice.index == 0)

    def completion(self) -> Completion:
        return Completion(finish_reason=self._finish_reason, usage=self._usage)

    def _text(self, choice: Choice) -> str:
        if choice.finish_reason in CUT_SHORT:
            raise BrokenStream(f"The engine ended the answer early: {choice.finish_reason}.")
        if choice.finish_reason is not None:
            self._finish_reason = choice.finish_reason
            self.complete = True
        return choice.delta.content or ""


def chat_body(request: JobRequest, model: str) -> bytes:
    """The request as the endpoint takes it: parameters pass through, what we rely on is ours."""
    messages = request.messages or ({"role": "user", "content": request.prompt},)
    body = {name: value for name, value in request.params.items() if name != "mock"} | {
        "model": model,
        "messages": messages,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return msgspec.json.encode(body)


def first_model(body: bytes) -> str | None:
    try:
        served = _models.decode(body).data
    except msgspec.DecodeError:
        return None
    return served[0].id if served else None


def refusal(status: int, body: bytes, retry_after: str | None, date: str | None) -> Refused:
    """An error answer, with the server's own words where it has some."""
    try:
        error = _error(_chunks.decode(body))
        message = error.detail if error else body.decode()
    except (msgspec.DecodeError, UnicodeDecodeError):
        message = body.decode(errors="replace")
    return Refused(status, message.strip() or "no message", retry_after=_delay(retry_after, date))


def _decoded(data: bytes) -> Chunk:
    try:
        return _chunks.decode(data)
    except msgspec.DecodeError as error:
        raise BrokenStream(f"The answer is not what was agreed: {error}") from error


def _error(chunk: Chunk) -> Refused | None:
    """Status 500 when the server names none."""
    match chunk:
        case Chunk(error=ErrorBody(message=message, code=code)):
            pass
        case Chunk(error=str(message), code=code) | Chunk(object="error", message=str(message), code=code):
            pass
        case Chunk(choices=[], usage=None, message=str(message), code=code):
            pass
        case _:
            return None
    return Refused(code if isinstance(code, int) else 500, message, mid_stream=True)


def _delay(retry_after: str | None, date: str | None) -> timedelta | None:
    """Seconds, or a date, which counts from the answer's own: None when it is neither."""
    if retry_after is None:
        return None
    try:
        if retry_after.strip().isdigit():
            return timedelta(seconds=min(int(retry_after), 1 << 31))
        answered_at = parsedate_to_datetime(date) if date else datetime.now(UTC)
        return max(timedelta(0), parsedate_to_datetime(retry_after) - answered_at)
    except (ValueError, TypeError):
        return None
