"""The HTTP application. Here, and only here, an error becomes a status."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from math import ceil
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from prometheus_client import CollectorRegistry
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from api import dead, fleet, jobs, manual
from api.answers import gateway_of
from api.doors import OPEN, Doors
from api.gateway import Gateway, keep_watch
from api.intake import IDEMPOTENCY_FIELD, UNKNOWN_FIELD, path_of
from api.keys import Keyring, keep_fresh
from api.metering import Metering
from api.openapi import describe
from api.problems import (
    BodyTooLarge,
    BodyTooSlow,
    CrossSite,
    FieldError,
    InvalidRequest,
    KeyRequired,
    NotReady,
    OperatorsOnly,
    Problem,
    RateExceeded,
    problem_response,
)
from api.while_wanted import stop
from common import VERSION
from common.errors import (
    IdempotencyConflict,
    JobEnded,
    JobExpired,
    JobNotFound,
    LabError,
    NotDurable,
    OwnerFull,
    QueueFull,
    StoreCorrupt,
    StoreFull,
    StoreRefused,
    StoreUnavailable,
)
from common.patience import Bell
from common.pulse import watch_loop
from common.settings import Settings
from common.store import Store
from common.telemetry import GatewayMetrics

log = logging.getLogger(__name__)

STATUS: dict[type[LabError], HTTPStatus] = {
    KeyRequired: HTTPStatus.UNAUTHORIZED,
    OperatorsOnly: HTTPStatus.FORBIDDEN,
    CrossSite: HTTPStatus.FORBIDDEN,
    JobNotFound: HTTPStatus.NOT_FOUND,
    BodyTooSlow: HTTPStatus.REQUEST_TIMEOUT,
    JobEnded: HTTPStatus.CONFLICT,
    JobExpired: HTTPStatus.GONE,
    BodyTooLarge: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    InvalidRequest: HTTPStatus.UNPROCESSABLE_ENTITY,
    IdempotencyConflict: HTTPStatus.UNPROCESSABLE_ENTITY,
    QueueFull: HTTPStatus.TOO_MANY_REQUESTS,
    OwnerFull: HTTPStatus.TOO_MANY_REQUESTS,
    RateExceeded: HTTPStatus.TOO_MANY_REQUESTS,
    NotReady: HTTPStatus.SERVICE_UNAVAILABLE,
    StoreCorrupt: HTTPStatus.SERVICE_UNAVAILABLE,
    StoreFull: HTTPStatus.SERVICE_UNAVAILABLE,
    NotDurable: HTTPStatus.SERVICE_UNAVAILABLE,
    StoreUnavailable: HTTPStatus.SERVICE_UNAVAILABLE,
    StoreRefused: HTTPStatus.SERVICE_UNAVAILABLE,
}

#: What the library or the server said about a store names hosts and keys.
_WITHHELD = (StoreUnavailable, StoreRefused, StoreCorrupt)
#: An outage rarely ends sooner, and a full store frees memory job by job.
RETRY_AFTER_OUTAGE_S = 2
_PARTS = (jobs.direct, jobs.router, dead.router, fleet.router)
CHALLENGE = 'Bearer realm="inference-worker-lab"'


def create_app(
    store: Store,
    settings: Settings,
    registry: CollectorRegistry | None = None,
    on_refused: Callable[[StoreRefused], None] | None = None,
) -> FastAPI:
    """`on_refused` hears of a store that came up after the gateway and cannot keep its promises.

    Raises SettingsError when the keys file cannot be used."""
    keyring = Keyring(settings.api_keys_file) if settings.api_keys_file else None
    registry = registry or CollectorRegistry()
    gateway = Gateway(store=store, settings=settings, registry=registry, metrics=GatewayMetrics(registry))

    @asynccontextmanager
    async def watching(_: FastAPI) -> AsyncGenerator[None]:
        work = [keep_watch(gateway, on_refused or _log_refusal), watch_loop(gateway.metrics.loop_lag, Bell())]
        work += [keep_fresh(keyring)] if keyring else []
        tasks = [asyncio.create_task(each) for each in work]
        yield
        gateway.closing.set()
        await stop(*tasks)

    app = FastAPI(
        title="Inference Worker Lab",
        description="Submit inference jobs; every accepted job ends exactly once, visibly.",
        version=VERSION,
        # Included routers match every request twice; these routes are the app's own.
        routes=[*(route for part in _PARTS for route in part.routes), *manual.routes],
        docs_url=None,
        redoc_url=None,
        exception_handlers=_HANDLERS,
        lifespan=watching,
        redirect_slashes=False,
        telemetry={"tracing": False, "metrics": False, "logs": False, "operation_spans": False},
    )
    app.state.gateway = gateway
    app.openapi = lambda: describe(app, OPEN if keyring else None)
    app.add_middleware(Doors, keyring=keyring, refuse=_lab_error)
    app.add_middleware(Metering, metrics=gateway.metrics, routes=app.routes)
    return app


def _log_refusal(error: StoreRefused) -> None:
    log.error("store refused", extra={"error": str(error)})


async def _lab_error(request: Request, error: Exception) -> Response:
    kind = next((each for each in type(error).__mro__ if each in STATUS), None)
    if kind is None:
        log.error("request failed", exc_info=error)
        return await _unexpected(request, error)
    if isinstance(error, StoreCorrupt):
        log.error("the store's keys are damaged", exc_info=error)
    status = STATUS[kind]
    headers = _headers(request, error, status)
    detail = (kind.__doc__ or "") if isinstance(error, _WITHHELD) else str(error)
    if status is HTTPStatus.TOO_MANY_REQUESTS:
        detail += f" Try again in {headers['Retry-After']} s."
    problem = Problem(
        type=f"urn:iwl:problem:{_slug(kind)}",
        title=status.phrase,
        status=status,
        detail=detail,
        errors=_fields(error),
        job_status=error.status if isinstance(error, JobEnded) else None,
    )
    return problem_response(problem, headers)


def _slug(kind: type[LabError]) -> str:
    return "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in kind.__name__)[1:]


def _fields(error: Exception) -> tuple[FieldError, ...]:
    match error:
        case InvalidRequest():
            return error.errors
        case IdempotencyConflict():
            return (FieldError(field=IDEMPOTENCY_FIELD, message=str(error)),)
        case _:
            return ()


def _headers(request: Request, error: Exception, status: HTTPStatus) -> dict[str, str]:
    drain = gateway_of(request).drain
    match error:
        case QueueFull():
            return {"Retry-After": str(drain.retry_after_s(error.depth - error.limit + 1))}
        case OwnerFull():
            return {"Retry-After": str(drain.retry_after_s(error.open_jobs - error.limit + 1))}
        case RateExceeded():
            return {"Retry-After": str(ceil(error.wait_s))}
        case KeyRequired():
            return {"WWW-Authenticate": CHALLENGE + (', error="invalid_token"' if error.wrong else "")}
        case _ if status is HTTPStatus.SERVICE_UNAVAILABLE:
            return {"Retry-After": str(RETRY_AFTER_OUTAGE_S)}
        case _:
            return {}


async def _invalid_parameter(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    # The first step of the path says where the parameter came from: query or header.
    wrong = [FieldError(field=path_of(each["loc"][1:]), message=_parameter(each)) for each in error.errors()]
    return await _lab_error(request, InvalidRequest(*wrong))


def _parameter(wrong: Mapping[str, str]) -> str:
    return "there is no such parameter" if wrong["type"] == UNKNOWN_FIELD else wrong["msg"]


async def _routing_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    status = HTTPStatus(error.status_code)
    headers, detail = error.headers, str(error.detail)
    if status is HTTPStatus.NOT_FOUND:
        detail = f"There is nothing at this path; {manual.PAGE} lists what there is."
    if status is HTTPStatus.METHOD_NOT_ALLOWED:
        # The router names the methods of the first route with this path, not of all.
        headers = {"Allow": ", ".join(sorted(_methods_at(request)))}
    problem = Problem(type="about:blank", title=status.phrase, status=status, detail=detail)
    return problem_response(problem, headers)


def _methods_at(request: Request) -> set[str]:
    routes = [route for route in request.app.routes if isinstance(route, Route)]
    path = request.url.path
    return {method for route in routes if route.path_regex.match(path) for method in route.methods or ()}


async def _nobody_listens(request: Request, error: Exception) -> Response:
    return Response(status_code=HTTPStatus.BAD_REQUEST)


async def _unexpected(request: Request, error: Exception) -> Response:
    """The server logs the error; the client gets none of it."""
    status = HTTPStatus.INTERNAL_SERVER_ERROR
    detail = "Something went wrong in the gateway."
    return problem_response(Problem(type="about:blank", title=status.phrase, status=status, detail=detail))


_HANDLERS: dict[int | type[Exception], Callable[[Request, Any], Coroutine[Any, Any, Response]]] = {
    LabError: _lab_error,
    RequestValidationError: _invalid_parameter,
    HTTPException: _routing_error,
    ClientDisconnect: _nobody_listens,
    Exception: _unexpected,
}
