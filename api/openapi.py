"""The parts of the OpenAPI document that FastAPI cannot see: bodies and errors are read and written raw."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import models_json_schema

from api.intake import JobBody, MockBody, RedriveBody
from api.problems import MEDIA_TYPE, Problem

Json = dict[str, Any]
Responses = dict[int | str, dict[str, Any]]

REF = "#/components/schemas/{model}"
_ERRORS: Mapping[int, str] = {
    401: "No key, or a wrong one.",
    403: "For operators.",
    404: "Never known.",
    409: "The job has already ended; `job_status` says how.",
    410: "Ended longer ago than results are kept, if it ever existed.",
    413: "The body is too large.",
    422: "A field is wrong; `errors` names it.",
    429: "Too much unfinished work, or too many requests; come back after Retry-After.",
    503: "The store is away, loading or full; come back after Retry-After.",
}


def errors(*statuses: int) -> Responses:
    """Problem responses for a route's `responses`."""
    return {**{status: _error(status) for status in statuses}, "default": _problem("Any other error.")}


def operation_id(route: APIRoute) -> str:
    """What generated clients call the operation."""
    return route.name


def _problem(description: str) -> Json:
    content = {MEDIA_TYPE: {"schema": {"$ref": REF.format(model="Problem")}}}
    return {"description": description, "content": content}


def _error(status: int) -> Json:
    response = _problem(_ERRORS[status])
    if status in (429, 503):
        seconds = {"schema": {"type": "integer", "minimum": 1}, "description": "Seconds."}
        response["headers"] = {"Retry-After": seconds}
    if status == 401:
        response["headers"] = {"WWW-Authenticate": {"schema": {"type": "string"}}}
    return response


def body(model: type[BaseModel], *, required: bool = True) -> Json:
    """A route's `openapi_extra`, when it reads the body itself."""
    content = {"application/json": {"schema": {"$ref": REF.format(model=model.__name__)}}}
    return {"requestBody": {"required": required, "content": content}}


def header(name: str, description: str, schema: Json) -> Json:
    """A parameter for `openapi_extra`."""
    return {"name": name, "in": "header", "required": False, "description": description, "schema": schema}


def text(description: str, media_type: str) -> Json:
    return {"description": description, "content": {media_type: {"schema": {"type": "string"}}}}


def describe(app: FastAPI, open_paths: Collection[str] | None) -> Json:
    """The whole document; made once. `open_paths` need no key; None is that nothing does."""
    if app.openapi_schema is None:
        document = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.routes
        )
        schemas: Json = document.setdefault("components", {}).setdefault("schemas", {})
        schemas.update(_raw_schemas())
        _lock(document, open_paths)
        app.openapi_schema = document
    return app.openapi_schema


def _lock(document: Json, open_paths: Collection[str] | None) -> None:
    scheme = {"type": "http", "scheme": "bearer", "description": "A key from the gateway's keys file."}
    document["components"]["securitySchemes"] = {"key": scheme}
    document["security"] = [{"key": []}] if open_paths is not None else [{}, {"key": []}]
    if open_paths is None:
        return
    for path, operations in document["paths"].items():
        for operation in operations.values():
            if path in open_paths:
                operation["security"] = []
            else:
                operation["responses"] |= {str(status): _error(status) for status in (401, 429)}


def _raw_schemas() -> Json:
    models = [(model, "validation") for model in (JobBody, MockBody, RedriveBody)]
    _, bodies = models_json_schema(models, ref_template=REF)  # pyright: ignore[reportArgumentType]
    problem = TypeAdapter(Problem).json_schema(ref_template=REF)
    definitions: Json = {**bodies.get("$defs", {}), **problem.pop("$defs", {})}
    # Empty members are left out of a problem.
    problem["required"] = ["type", "title", "status", "detail"]
    return {**definitions, "Problem": problem}
