"""From bytes to a `JobRequest` or a redrive order: everything a client may get wrong is found here."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar, cast

import msgspec
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError

from api.problems import FieldError, InvalidRequest
from common.job import Cause, JobRequest, job_id_time

IDEMPOTENCY_HEADER = "Idempotency-Key"
IDEMPOTENCY_FIELD = "idempotency_key"

#: Scripts decode requests in Lua, and Python's C encoder has a stack: both end long after this.
MAX_NESTING = 64
MAX_METADATA_FIELDS = 64
MAX_METADATA_BYTES = 8192
MAX_ATTEMPT_S = 86_400
MAX_LIFE_S = 30 * 86_400
MAX_MOCK_LATENCY_MS = 3_600_000
MAX_MOCK_TOKENS = 100_000
MAX_REDRIVE = 1000
#: Of a body, and of `params.mock`; there are far fewer to know.
MAX_FIELDS = 64
#: Characters of a field's name in an error.
MAX_NAME = 80

#: What people send beside the prompt, as the chat-completions API has it.
MODEL_PARAMETERS = frozenset(
    {
        *("temperature", "top_p", "top_k", "min_p", "seed", "stop", "stop_token_ids", "n", "best_of"),
        *("max_tokens", "max_completion_tokens", "min_tokens", "ignore_eos", "logit_bias", "logprobs"),
        *("top_logprobs", "presence_penalty", "frequency_penalty", "repetition_penalty"),
        *("response_format", "guided_json", "tools", "tool_choice", "reasoning_effort", "mock"),
    }
)
#: pydantic's name for it.
UNKNOWN_FIELD = "extra_forbidden"

Body = TypeVar("Body", bound=BaseModel)


def printable_key(key: str) -> str:
    if not key.isprintable():
        raise PydanticCustomError("printable", "use printable characters only")
    return key


def _message(message: dict[str, Any]) -> dict[str, Any]:
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise PydanticCustomError("role", "a message needs a 'role'")
    return message


def _metadata(metadata: dict[str, Any]) -> dict[str, Any]:
    if len(metadata) > MAX_METADATA_FIELDS:
        raise PydanticCustomError("fields", "at most {limit} fields", {"limit": MAX_METADATA_FIELDS})
    if metadata and len(msgspec.json.encode(metadata)) > MAX_METADATA_BYTES:
        raise PydanticCustomError("bytes", "at most {limit} bytes as JSON", {"limit": MAX_METADATA_BYTES})
    return metadata


def _job_id(job_id: str) -> str:
    if job_id_time(job_id) is None:
        raise PydanticCustomError("job_id", "not a job id")
    return job_id


Text = Annotated[str, Field(min_length=1)]
Key = Annotated[str, Field(min_length=1, max_length=255), AfterValidator(printable_key)]
Message = Annotated[dict[str, Any], AfterValidator(_message)]
Metadata = Annotated[dict[str, Any], AfterValidator(_metadata)]
JobId = Annotated[str, AfterValidator(_job_id)]
Name = Annotated[str, Field(min_length=1, max_length=255)]
#: The shape of every event id and page cursor that a store gives out.
Cursor = Annotated[str, Field(pattern=r"^[1-9][0-9]{0,18}(-[0-9]{1,19})?$")]


class _Body(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, use_attribute_docstrings=True)


class JobBody(_Body):
    """Exactly one of `prompt` and `messages`."""

    prompt: Text | None = None
    """What the model is asked, as one text."""
    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)] | None = None
    """As in the chat-completions API; each has a `role`."""
    model: Name | None = None
    """Which model; the backend's own when left out."""
    params: dict[str, Any] | None = None
    """Passed to the model as they are. `mock` steers the mock backend."""
    idempotency_key: Key | None = None
    """The same key gives the same job. May also come as the header `Idempotency-Key`."""
    timeout_s: Annotated[float, Field(ge=0.001, le=MAX_ATTEMPT_S)] | None = None
    """Seconds one attempt may take; an attempt over it is tried again, like one that failed."""
    expires_in_s: Annotated[float, Field(ge=0.001, le=MAX_LIFE_S)] | None = None
    """Seconds the whole job may take, waits and retries included; then it ends `expired`."""
    stream: bool = False
    """Keep state changes and chunks, and show them as events while the job runs."""
    metadata: Metadata | None = None
    """Yours: kept with the job and shown with it; nothing reads it."""

    def request(self) -> JobRequest:
        return JobRequest(
            prompt=self.prompt,
            messages=None if self.messages is None else tuple(self.messages),
            model=self.model,
            params=self.params or {},
            timeout_s=self.timeout_s,
            expires_in_s=self.expires_in_s,
            stream=self.stream,
            metadata=self.metadata or {},
        )


class MockBody(_Body):
    """`params.mock`: what the mock backend is to do with this job."""

    latency_ms: Annotated[float, Field(ge=0, le=MAX_MOCK_LATENCY_MS)] | None = None
    """How long it takes to answer."""
    tokens: Annotated[int, Field(ge=0, le=MAX_MOCK_TOKENS)] | None = None
    """Words of the answer: those of the prompt, over and over; left out, as many as it has."""
    fail: Literal["error", "permanent", "hang", "exit"] | None = None
    """An error that is tried again, one that is not, no answer at all, or the death of the worker."""
    fail_attempts: Annotated[int, Field(ge=0)] | None = None
    """How many attempts fail; all when left out."""


class RedriveBody(_Body):
    """Neither `ids` nor `cause` means every dead job, up to `limit`; of `ids`, the first `limit` count."""

    ids: Annotated[list[JobId], Field(min_length=1, max_length=MAX_REDRIVE, fail_fast=True)] | None = None
    """Only these dead jobs."""
    cause: Annotated[Cause, Field(strict=False)] | None = None
    """Only jobs that failed of this."""
    limit: Annotated[int, Field(ge=1, le=MAX_REDRIVE)] = 100
    """At most so many."""
    dry_run: bool = False
    """Only tell what would be queued again."""


def read_job(body: bytes, header_key: str | None, *, mock_faults: bool) -> tuple[JobRequest, str | None]:
    """The request and its idempotency key. Raises InvalidRequest naming every wrong field."""
    job = _validated(JobBody, _decode(body))
    errors = [*_one_question(job), *_mock_errors(job, mock_faults), *_key_errors(job, header_key)]
    if errors:
        raise InvalidRequest(*errors)
    return job.request(), job.idempotency_key if header_key is None else header_key


def read_redrive(body: bytes) -> RedriveBody:
    """Raises InvalidRequest naming every wrong field."""
    order = _validated(RedriveBody, _decode(body or b"{}"))
    if order.ids is not None and order.cause is not None:
        raise InvalidRequest(FieldError(field="cause", message="give ids or a cause, not both"))
    return order


def path_of(loc: tuple[int | str, ...]) -> str:
    return ".".join(str(part)[:MAX_NAME] for part in loc) or "body"


def _decode(body: bytes) -> object:
    if not body.strip():
        raise InvalidRequest(FieldError(field="body", message="is empty: send a JSON object"))
    try:
        decoded = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        reason = str(error) if isinstance(error, msgspec.DecodeError) else "nested too deeply"
        raise InvalidRequest(FieldError(field="body", message=f"not valid JSON: {reason}")) from None
    if not isinstance(decoded, dict):
        raise InvalidRequest(FieldError(field="body", message="not a JSON object"))
    if len(cast(dict[str, object], decoded)) > MAX_FIELDS:
        raise InvalidRequest(FieldError(field="body", message=f"more than {MAX_FIELDS} fields"))
    if body.count(b"{") + body.count(b"[") > MAX_NESTING:
        _refuse_deep(cast(dict[str, object], decoded))
    return cast(object, decoded)


def _refuse_deep(body: dict[str, object]) -> None:
    for name, value in body.items():
        level: list[object] = [value]
        for _ in range(MAX_NESTING):
            level = [inner for outer in level for inner in _inner(outer)]
            if not level:
                break
        else:
            raise InvalidRequest(FieldError(field=name, message=f"nested deeper than {MAX_NESTING} levels"))


def _inner(value: object) -> list[object]:
    match value:
        case dict():
            return list(cast(dict[str, object], value).values())
        case list():
            return cast(list[object], value)
        case _:
            return []


def _validated(model: type[Body], decoded: object) -> Body:
    try:
        return model.model_validate(decoded)
    except ValidationError as error:
        raise InvalidRequest(*_field_errors(model, error)) from None


def _field_errors(model: type[BaseModel], error: ValidationError, *below: str) -> list[FieldError]:
    wrong: list[FieldError] = []
    for each in error.errors(include_url=False, include_context=False, include_input=False):
        loc = each["loc"]
        message = _unknown(model, str(loc[-1])) if each["type"] == UNKNOWN_FIELD else each["msg"]
        wrong.append(FieldError(field=path_of((*below, *loc)), message=message))
    return wrong


def _unknown(model: type[BaseModel], name: str) -> str:
    if model is JobBody and name in MODEL_PARAMETERS:
        return f'put it in params, which go to the model: "params": {{"{name}": ...}}'
    return f"there is no such field; allowed are {', '.join(model.model_fields)}"


def _one_question(job: JobBody) -> list[FieldError]:
    if (job.prompt is None) != (job.messages is None):
        return []
    message = "give exactly one of prompt and messages"
    return [FieldError(field="prompt", message=message), FieldError(field="messages", message=message)]


def _mock_errors(job: JobBody, mock_faults: bool) -> list[FieldError]:
    if not job.params or "mock" not in job.params:
        return []
    if not mock_faults:
        return [FieldError(field="params.mock", message="faults on request are switched off here")]
    orders = job.params["mock"]
    if isinstance(orders, dict) and len(cast(dict[str, object], orders)) > MAX_FIELDS:
        return [FieldError(field="params.mock", message=f"more than {MAX_FIELDS} fields")]
    try:
        MockBody.model_validate(orders)
    except ValidationError as error:
        return _field_errors(MockBody, error, "params", "mock")
    return []


def _key_errors(job: JobBody, header_key: str | None) -> list[FieldError]:
    if header_key is None:
        return []
    if not 1 <= len(header_key) <= 255 or not header_key.isprintable():
        return [FieldError(field=IDEMPOTENCY_HEADER, message="use 1 to 255 printable characters")]
    if job.idempotency_key not in (None, header_key):
        message = f"differs from the header {IDEMPOTENCY_HEADER}"
        return [FieldError(field=IDEMPOTENCY_FIELD, message=message)]
    return []
