from __future__ import annotations

import re
from typing import Any

import pytest
from openapi_spec_validator import validate
from prometheus_client import CollectorRegistry

from api.app import create_app
from common.fleet import Reason
from common.redis_store.store import RedisStore
from common.settings import Settings


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    settings = Settings()
    return create_app(RedisStore(settings), settings, CollectorRegistry()).openapi()


def operations(document: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [
        (f"{method.upper()} {path}", operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]


def test_the_document_is_valid(document: dict[str, Any]) -> None:
    validate(document)


def test_it_holds_the_whole_contract(document: dict[str, Any]) -> None:
    assert {name for name, _ in operations(document)} == {
        "POST /v1/jobs",
        "GET /v1/jobs",
        "GET /v1/jobs/{job_id}",
        "DELETE /v1/jobs/{job_id}",
        "GET /v1/jobs/{job_id}/events",
        "GET /v1/dlq",
        "POST /v1/dlq/redrive",
        "GET /v1/scale",
        "GET /v1/stats",
        "GET /healthz",
        "GET /readyz",
        "GET /metrics",
    }


def test_operations_have_short_names_of_their_own(document: dict[str, Any]) -> None:
    names = [operation["operationId"] for _, operation in operations(document)]
    assert len(set(names)) == len(names)
    assert all(len(name) < 20 for name in names)


def test_every_operation_documents_its_answers(document: dict[str, Any]) -> None:
    for name, operation in operations(document):
        answers = operation["responses"]
        assert any(code.startswith("2") and "content" in answer for code, answer in answers.items()), name
        for code, answer in answers.items():
            if not code.startswith("2"):
                assert list(answer["content"]) == ["application/problem+json"], (name, code)


@pytest.mark.parametrize(("path", "model"), [("/v1/jobs", "JobBody"), ("/v1/dlq/redrive", "RedriveBody")])
def test_bodies_are_documented(document: dict[str, Any], path: str, model: str) -> None:
    body = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
    assert body["schema"] == {"$ref": f"#/components/schemas/{model}"}
    assert document["components"]["schemas"][model]["additionalProperties"] is False


def test_everything_that_a_client_may_send_is_explained(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    fields = {
        f"{model}.{name}": field
        for model in ("JobBody", "MockBody", "RedriveBody")
        for name, field in schemas[model]["properties"].items()
    }
    fields |= {
        f"{name} {parameter['name']}": parameter
        for name, operation in operations(document)
        for parameter in operation.get("parameters", [])
        if parameter["in"] != "path"
    }
    assert [name for name, field in fields.items() if not field.get("description")] == []


def test_every_reason_of_the_scaler_is_explained(document: dict[str, Any]) -> None:
    told = document["components"]["schemas"]["Scale"]["properties"]["reason"]["description"]
    assert set(re.findall(r"`(\w+)`", told)) == set(Reason)


def test_refusals_say_when_to_come_back(document: dict[str, Any]) -> None:
    for name, operation in operations(document):
        for code in {"429", "503"} & operation["responses"].keys():
            assert "Retry-After" in operation["responses"][code]["headers"], name
