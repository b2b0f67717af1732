"""Log lines: one JSON object each, whatever is logged."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from common.telemetry import JsonFormatter


@pytest.mark.parametrize(
    "extra",
    [
        {"error": "caf\udce9"},
        {"error": {object(): 1}},
        {"error": 10**400},
        {"error": object()},
        {"error": b"x"},
    ],
    ids=["surrogate", "odd key", "huge", "object", "bytes"],
)
def test_whatever_is_logged_is_one_line_of_json(extra: dict[str, Any]) -> None:
    record = logging.makeLogRecord({"msg": "job %s", "args": ("7",), "levelname": "ERROR", **extra})
    line = JsonFormatter("worker").format(record)
    assert "\n" not in line
    told = json.loads(line)
    assert "job 7" in told["message"]
    assert told["error"]


def test_a_traceback_with_half_a_character_is_told() -> None:
    try:
        raise ValueError("caf\udce9")
    except ValueError as error:
        record = logging.makeLogRecord(
            {"msg": "it broke", "exc_info": (type(error), error, error.__traceback__)}
        )
    told = json.loads(JsonFormatter("worker").format(record))
    assert "ValueError" in told["exception"]
