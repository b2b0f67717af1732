"""Errors as `application/problem+json` (RFC 9457)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
from starlette.responses import Response

from common.errors import LabError

MEDIA_TYPE = "application/problem+json"
#: Told at once: a request that is wrong in thousands of places must not be answered with as many lines.
MAX_ERRORS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldError:
    #: Path of the field, as in `params.mock.fail` or `messages.0`; a header by its name.
    field: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """`type` is stable and meant for programs, `detail` for people."""

    type: str
    title: str
    status: int
    detail: str
    #: The fields that were wrong.
    errors: tuple[FieldError, ...] = ()
    #: With 409: how the job had ended.
    job_status: str | None = None


class InvalidRequest(LabError):
    """The request has a field that cannot be accepted."""

    def __init__(self, *errors: FieldError) -> None:
        self.errors = errors[:MAX_ERRORS]
        told = [f"{each.field}: {each.message}" for each in self.errors]
        left = len(errors) - len(told)
        super().__init__("; ".join([*told, f"and {left} more"] if left else told))


class BodyTooLarge(LabError):
    """The body is larger than this gateway accepts."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"The body is larger than {limit} bytes.")


class BodyTooSlow(LabError):
    """The body did not arrive in time."""


class KeyRequired(LabError):
    """Send a key of this gateway: `Authorization: Bearer KEY`."""

    def __init__(self, *, wrong: bool) -> None:
        super().__init__()
        self.wrong = wrong


class OperatorsOnly(LabError):
    """This is for operators."""


class CrossSite(LabError):
    """A web page of another site may not do this with the browser of somebody here."""


class RateExceeded(LabError):
    """More requests than this name may make."""

    def __init__(self, rate: float, wait_s: float) -> None:
        super().__init__(f"More than {rate:g} requests a second.")
        self.wait_s = wait_s


class NotReady(LabError):
    """The gateway cannot take work right now."""


def problem_response(problem: Problem, headers: Mapping[str, str] | None = None) -> Response:
    body = {name: value for name, value in msgspec.to_builtins(problem).items() if value}
    sent = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", **(headers or {})}
    return Response(msgspec.json.encode(body), problem.status, sent, MEDIA_TYPE)
