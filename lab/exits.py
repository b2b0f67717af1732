"""Exit codes of `iwl`, and the errors behind them."""

from __future__ import annotations

import math
from enum import IntEnum

from common.errors import LabError


class Exit(IntEnum):
    OK = 0
    #: What was asked for did not come about: job failed, unknown job, queue full, lab did not start.
    FAILED = 1
    #: Wrong usage, or a setting that cannot work.
    USAGE = 2
    #: No API answers at the URL.
    UNREACHABLE = 3


#: The end of `iwl --help` and of each command's help.
EXITS = (
    "Exit codes: 0 ok, 1 what was asked for failed, 2 usage or settings, 3 the API cannot be reached, "
    "130 Ctrl-C."
)


class NotStarted(LabError):
    """The lab could not be started."""


class ChildRefused(LabError):
    """A part of the lab cannot run with these settings."""


class ApiUnreachable(LabError):
    """The API cannot be reached."""


class ApiRefused(LabError):
    """The API did not do what was asked."""

    def __init__(self, detail: str, *, status: int = 0, retry_after: float = math.nan) -> None:
        super().__init__(detail)
        self.status = status
        #: Seconds; NaN when the API did not say.
        self.retry_after = retry_after
