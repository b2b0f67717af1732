"""What every refusal must look like."""

from __future__ import annotations

from typing import Any

import httpx


def problem(answer: httpx.Response, status: int, *fields: str) -> dict[str, Any]:
    """Asserts a problem of this status that names exactly these fields."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = answer.json()
    assert body["status"] == status
    assert body["type"]
    assert body["title"]
    assert body["detail"]
    assert "Traceback" not in answer.text
    assert [each["field"] for each in body.get("errors", [])] == list(fields)
    return body
