"""`/v1/dlq`: the jobs that failed for good, and another try for them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from api.answers import answer, gateway_of, read_body
from api.callers import caller_of
from api.intake import Cursor, RedriveBody, read_redrive
from api.openapi import body, errors, operation_id
from api.shapes import DeadPage, RedriveReport, dead_page, redrive_report

router = APIRouter(prefix="/v1/dlq", tags=["dead letters"], generate_unique_id_function=operation_id)

MAX_PAGE = 100


class DeadQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")

    limit: Annotated[int, Field(ge=1, le=MAX_PAGE)] = 50
    #: The `next` of the page before.
    before: Cursor | None = None


@router.get("", response_model=DeadPage, responses=errors(422, 503))
async def list_dead_jobs(request: Request, query: Annotated[DeadQuery, Query()]) -> Response:
    """Dead jobs, newest first; the caller's own, unless it is an operator."""
    letters = await gateway_of(request).store.list_dead(
        limit=query.limit, before=query.before, owner=caller_of(request).sees
    )
    return answer(dead_page(letters, query.limit))


@router.post(
    "/redrive",
    response_model=RedriveReport,
    responses=errors(413, 422, 429, 503),
    openapi_extra=body(RedriveBody, required=False),
)
async def redrive_dead_jobs(request: Request) -> Response:
    """Queue dead jobs again, oldest first, as new jobs linked to the old, each with a new budget."""
    gateway, caller = gateway_of(request), caller_of(request)
    order = read_redrive(await read_body(request, gateway.settings.max_body_bytes))
    gateway.must_be_trusted()
    redriven = await gateway.store.redrive(
        # Naming a job twice must not queue it twice.
        ids=None if order.ids is None else list(dict.fromkeys(order.ids)),
        cause=order.cause,
        limit=order.limit,
        dry_run=order.dry_run,
        owner=caller.sees,
        max_open=0 if caller.operator else caller.open_jobs,
    )
    return answer(redrive_report(redriven, order.dry_run))
