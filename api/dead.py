"""`/v1/dlq`: the jobs that failed for good, and another try for them."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from api.answers import answer, gateway_of, read_body
from api.callers import caller_of
from api.intake import Cursor, RedriveBody, read_redrive
from api.openapi import body, errors, operation_id
from api.shapes import DeadPage, RedriveReport, dead_page, redrive_report
from common.store import DeadLetter, GatewayStore

router = APIRouter(prefix="/v1/dlq", tags=["dead letters"], generate_unique_id_function=operation_id)

MAX_PAGE = 100
#: A page ends once it has so many bytes; the next one goes on after it.
PAGE_BYTES = 8 << 20
#: Dead letters read at once, each with its whole request.
STEP = 5


class DeadQuery(BaseModel):
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    limit: Annotated[int, Field(ge=1, le=MAX_PAGE)] = 50
    """At most so many; fewer, with a `next`, where requests are large."""
    before: Cursor | None = None
    """The `next` of the page before."""


@router.get("", response_model=DeadPage, responses=errors(422, 503))
async def list_dead_jobs(request: Request, query: Annotated[DeadQuery, Query()]) -> Response:
    """Dead jobs, newest first; the caller's own, unless it is an operator."""
    return answer(await _page(gateway_of(request).store, query, caller_of(request).sees))


async def _page(store: GatewayStore, query: DeadQuery, owner: str | None) -> DeadPage:
    """Short where the requests are large: a hundred of them would be more than a gateway may hold."""
    letters: list[DeadLetter] = []
    size, cursor = 0, query.before
    while (wanted := query.limit - len(letters)) > 0 and size < PAGE_BYTES:
        found = await store.list_dead(limit=min(STEP, wanted), before=cursor, owner=owner)
        letters += found
        if len(found) < min(STEP, wanted):
            return dead_page(letters, None)
        size += len(msgspec.json.encode(found))
        cursor = found[-1].cursor
    return dead_page(letters, cursor)


@router.post(
    "/redrive",
    response_model=RedriveReport,
    responses=errors(413, 422, 429, 503),
    openapi_extra=body(RedriveBody, required=False),
)
async def redrive_dead_jobs(request: Request) -> Response:
    """Queue dead jobs again, oldest first, as new jobs linked to the old, each with a new budget.

    Asked for the same `ids` again, it queues nothing twice and gives the same new jobs."""
    gateway, caller = gateway_of(request), caller_of(request)
    order = read_redrive(await read_body(request, gateway.settings.max_body_bytes))
    gateway.must_be_trusted()
    redriven = await gateway.store.redrive(
        ids=order.ids,
        cause=order.cause,
        limit=order.limit,
        dry_run=order.dry_run,
        owner=caller.sees,
        max_open=0 if caller.operator else caller.open_jobs,
    )
    return answer(redrive_report(redriven, order.dry_run))
