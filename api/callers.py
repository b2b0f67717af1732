"""Who makes a request, and what that one may see."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request
from starlette.types import Scope

from api.problems import OperatorsOnly

_CALLER = "iwl.caller"


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    #: Owner of what is submitted; "" is nobody.
    name: str
    operator: bool
    #: Limit of unfinished jobs; 0 is none.
    open_jobs: int = 0

    @property
    def sees(self) -> str | None:
        """Whose jobs; None is everybody's."""
        return None if self.operator else self.name


#: Every caller of a gateway without keys.
ANYBODY = Caller(name="", operator=True)


def let_in(scope: Scope, caller: Caller) -> None:
    scope[_CALLER] = caller


def caller_of(request: Request) -> Caller:
    return request.scope[_CALLER]


def must_operate(request: Request) -> None:
    """Raises OperatorsOnly."""
    if not caller_of(request).operator:
        raise OperatorsOnly
