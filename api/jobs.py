"""`/v1/jobs`: submit, look, wait, list, cancel, follow."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import timedelta
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from api.answers import DirectRoute, answer, gateway_of, read_body
from api.callers import caller_of
from api.events import EventStream
from api.gateway import Gateway
from api.intake import IDEMPOTENCY_HEADER, Cursor, JobBody, JobId, read_job
from api.metering import leave_untimed
from api.openapi import body, errors, header, operation_id, text
from api.problems import BodyTooLarge, FieldError, InvalidRequest
from api.shapes import JOBS, Accepted, JobPage, JobView, accepted, job_page, job_view
from api.while_wanted import while_wanted
from common.errors import (
    IdempotencyConflict,
    JobNotFound,
    LabError,
    OwnerFull,
    QueueFull,
    StoreUnavailable,
)
from common.job import JobStatus, Submission, job_id_time, new_job_id
from common.store import JobEvent, Submitted
from common.telemetry import Refusal

router = APIRouter(prefix=JOBS, tags=["jobs"], generate_unique_id_function=operation_id)
direct = APIRouter(
    prefix=JOBS, tags=["jobs"], generate_unique_id_function=operation_id, route_class=DirectRoute
)

MAX_WAIT_S = 60
MAX_PAGE = 100

_REFUSALS: dict[type[LabError], Refusal] = {
    QueueFull: Refusal.FULL,
    OwnerFull: Refusal.OWNER_FULL,
    IdempotencyConflict: Refusal.CONFLICT,
    InvalidRequest: Refusal.INVALID,
    BodyTooLarge: Refusal.TOO_LARGE,
    StoreUnavailable: Refusal.UNAVAILABLE,
}

_SUBMIT_DOCS = {
    **body(JobBody),
    "parameters": [
        header(
            IDEMPOTENCY_HEADER,
            "The same key gives the same job. Equal to `idempotency_key` in the body, if both are given.",
            {"type": "string", "minLength": 1, "maxLength": 255},
        )
    ],
}
_ACCEPTED_DOCS = {
    "description": "Accepted, and never lost within the durability chosen.",
    "headers": {
        "Location": {"schema": {"type": "string"}, "description": "Where to look."},
        "Idempotency-Replayed": {
            "schema": {"type": "string", "const": "true"},
            "description": "This job had been accepted before.",
        },
    },
}


async def known_job_id(job_id: str) -> str:
    """Raises JobNotFound for what no gateway can have given out.

    Asynchronous although it waits for nothing: anything else the framework runs in a thread."""
    if job_id_time(job_id) is None:
        raise JobNotFound
    return job_id


KnownJobId = Annotated[str, Depends(known_job_id)]


@direct.post(
    "",
    status_code=HTTPStatus.ACCEPTED,
    response_model=Accepted,
    responses={202: _ACCEPTED_DOCS, **errors(413, 422, 429, 503)},
    openapi_extra=_SUBMIT_DOCS,
)
async def submit_job(request: Request) -> Response:
    """Accept a job."""
    gateway = gateway_of(request)
    try:
        submitted = await _submit(gateway, request)
    except LabError as error:
        for kind, reason in _REFUSALS.items():
            if isinstance(error, kind):
                gateway.metrics.refused.labels(reason).inc()
        raise
    headers = {"Location": f"{JOBS}/{submitted.job.job_id}"}
    if submitted.replayed:
        gateway.metrics.replayed.inc()
        headers["Idempotency-Replayed"] = "true"
    else:
        gateway.metrics.submitted.inc()
    eta_s = gateway.drain.eta_s(submitted.position)
    return answer(accepted(submitted, eta_s), HTTPStatus.ACCEPTED, headers)


async def _submit(gateway: Gateway, request: Request) -> Submitted:
    settings = gateway.settings
    raw = await read_body(request, settings.max_body_bytes)
    job, key = read_job(raw, _header_key(request), mock_faults=settings.mock_faults)
    gateway.must_be_trusted()
    caller = caller_of(request)
    submission = Submission(job_id=new_job_id(), request=job, owner=caller.name, idempotency_key=key)
    return await gateway.store.submit(
        submission, max_depth=settings.max_queue_depth, max_open=caller.open_jobs
    )


def _header_key(request: Request) -> str | None:
    """Raises InvalidRequest when the header comes twice and disagrees with itself."""
    keys = {value for name, value in request.scope["headers"] if name == b"idempotency-key"}
    if not keys:
        return None
    if len(keys) > 1:
        raise InvalidRequest(FieldError(field=IDEMPOTENCY_HEADER, message="given more than once"))
    try:
        return keys.pop().decode()
    except UnicodeDecodeError:
        raise InvalidRequest(FieldError(field=IDEMPOTENCY_HEADER, message="not UTF-8")) from None


class _Query(BaseModel):
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class LookQuery(_Query):
    wait: Annotated[float, Field(ge=0, le=MAX_WAIT_S, allow_inf_nan=False)] = 0
    """Seconds to wait for the job's end; the job as it stands when they are over."""


@router.get("/{job_id}", response_model=JobView, responses=errors(404, 410, 422, 503))
async def get_job(request: Request, job_id: KnownJobId, query: Annotated[LookQuery, Query()]) -> Response:
    """The job as it stands, or once it has ended, with `wait`."""
    gateway, owner = gateway_of(request), caller_of(request).sees
    if not query.wait:
        return answer(job_view(await gateway.store.get(job_id, owner=owner)))
    leave_untimed(request.scope)
    wait = gateway.store.wait(job_id, timedelta(seconds=query.wait), owner=owner)
    job = await while_wanted(wait, request.receive, gateway.closing)
    return answer(job_view(job or await gateway.store.get(job_id, owner=owner)))


class ListQuery(_Query):
    status: JobStatus | None = None
    """Only jobs in this state."""
    limit: Annotated[int, Field(ge=1, le=MAX_PAGE)] = 50
    """At most so many."""
    before: JobId | None = None
    """The `next` of the page before: only jobs older than this one."""


@router.get("", response_model=JobPage, responses=errors(422, 503))
async def list_jobs(request: Request, query: Annotated[ListQuery, Query()]) -> Response:
    """Recent jobs, newest first; the caller's own, unless it is an operator."""
    jobs = await gateway_of(request).store.list_jobs(
        status=query.status, limit=query.limit, before=query.before, owner=caller_of(request).sees
    )
    return answer(job_page(jobs, query.limit))


@router.delete("/{job_id}", response_model=JobView, responses=errors(404, 409, 410, 503))
async def cancel_job(request: Request, job_id: KnownJobId) -> Response:
    """Cancel a job that has not ended; cancelling twice is once."""
    owner = caller_of(request).sees
    return answer(job_view(await gateway_of(request).store.cancel(job_id, owner=owner)))


@router.get(
    "/{job_id}/events",
    response_class=Response,
    responses={
        200: text(
            "Server-sent events `state`, `attempt` (output starts again) and `chunk`, with JSON data. The "
            "last one is a terminal `state` and holds the whole `job`. Without `stream` in the request they "
            "are the state now, and the end.",
            EventStream.media_type,
        ),
        204: {"description": "`Last-Event-ID` was the last event; there will be no more."},
        **errors(404, 410, 422, 503),
    },
)
async def follow_job(
    request: Request,
    job_id: KnownJobId,
    last_event_id: Annotated[Cursor | None, Header(description="The last event that was seen.")] = None,
) -> Response:
    """The job's events, after `Last-Event-ID` if given."""
    leave_untimed(request.scope)
    gateway, owner = gateway_of(request), caller_of(request).sees
    job = await gateway.store.get(job_id, owner=owner)
    events = gateway.store.events(job_id, last_event_id or None, owner=owner)
    first = await anext(events, None) if last_event_id and job.status.terminal else None
    if last_event_id and job.status.terminal and first is None:
        # A browser takes the end of a stream for a broken one and comes back for ever, unless told not to.
        return Response(status_code=HTTPStatus.NO_CONTENT)
    return EventStream(gateway, job_id, _chain(first, events))


async def _chain(first: JobEvent | None, rest: AsyncGenerator[JobEvent]) -> AsyncGenerator[JobEvent]:
    # Left to the garbage collector, the store would go on watching the job for a client that is gone.
    async with aclosing(rest) as events:
        if first is not None:
            yield first
        async for event in events:
            yield event
