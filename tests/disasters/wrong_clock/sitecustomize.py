"""On the path of a process, puts its clock wrong by WRONG_BY_S seconds. Time that only passes is right."""

from __future__ import annotations

import datetime
import os
import time
from typing import Any

_WRONG_BY_S = float(os.environ["WRONG_BY_S"])
_time, _time_ns, _datetime = time.time, time.time_ns, datetime.datetime


class _Kind(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _datetime)

    def __getattr__(cls, name: str) -> Any:
        return getattr(_datetime, name)


class _WrongDatetime(metaclass=_Kind):
    """Makes plain ones, which libraries know how to write."""

    def __new__(cls, *args: Any, **named: Any) -> Any:
        return _datetime(*args, **named)

    @staticmethod
    def now(tz: datetime.tzinfo | None = None) -> datetime.datetime:
        return _datetime.now(tz) + datetime.timedelta(seconds=_WRONG_BY_S)


time.time = lambda: _time() + _WRONG_BY_S
time.time_ns = lambda: _time_ns() + int(_WRONG_BY_S * 1e9)
datetime.datetime = _WrongDatetime  # pyright: ignore[reportAttributeAccessIssue]
