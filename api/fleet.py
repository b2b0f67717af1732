"""How the whole is doing: `/v1/scale`, `/v1/stats`, liveness, readiness, metrics."""

from __future__ import annotations

from fastapi import APIRouter
from prometheus_client.exposition import choose_encoder
from starlette.requests import Request
from starlette.responses import Response

from api.answers import answer, gateway_of
from api.callers import must_operate
from api.fleet_shapes import Health, Scale, Stats, scale, stats
from api.openapi import errors, operation_id, text

router = APIRouter(generate_unique_id_function=operation_id)


@router.get("/v1/scale", tags=["fleet"], response_model=Scale, responses=errors(403, 503))
async def get_scale(request: Request) -> Response:
    """What the scaler wants, from what, and since when."""
    must_operate(request)
    return answer(scale(await gateway_of(request).store.scale()))


@router.get("/v1/stats", tags=["fleet"], response_model=Stats, responses=errors(403, 503))
async def get_stats(request: Request) -> Response:
    """Every job by state, counted in one instant."""
    must_operate(request)
    gateway = gateway_of(request)
    return answer(stats(await gateway.store.depth(), gateway.drain.per_second))


@router.get("/healthz", tags=["probes"], response_model=Health, responses=errors())
async def healthz(request: Request) -> Response:
    """The process answers."""
    return answer(Health(status="ok"))


@router.get("/readyz", tags=["probes"], response_model=Health, responses=errors(503))
async def readyz(request: Request) -> Response:
    """The store answers and keeps its promises."""
    await gateway_of(request).ready()
    return answer(Health(status="ready"))


@router.get(
    "/metrics",
    tags=["probes"],
    response_class=Response,
    responses={200: text("Prometheus exposition format.", "text/plain"), **errors(403)},
)
async def metrics(request: Request) -> Response:
    """For Prometheus."""
    must_operate(request)
    encode, content_type = choose_encoder(request.headers.get("accept", ""))
    body = encode(gateway_of(request).registry)
    return Response(body, headers={"Content-Type": content_type})
