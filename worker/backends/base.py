"""What a backend is: something that turns a request into text, piece by piece."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol, runtime_checkable

from common.errors import LabError
from common.job import JobRequest, Usage

#: What a backend that does not count reports.
NO_USAGE = Usage()


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """The last thing a model call yields: it ended, and how. Counts are whole numbers, 0 or more."""

    finish_reason: str | None = None
    usage: Usage = NO_USAGE


@runtime_checkable
class Backend(Protocol):
    def generate(self, request: JobRequest, attempt: int) -> AsyncGenerator[str | Completion, None]:
        """Pieces of text, then one Completion. Closing the generator must end the work behind it.

        Raises BackendError; any other exception counts as a retryable failure."""
        ...

    async def ready(self) -> bool:
        """Whether a call would be answered. Asked about once a second; no answer for ten counts as no."""
        ...

    async def aclose(self) -> None: ...


class BackendError(LabError):
    """The backend could not answer."""


class Unreachable(BackendError):
    """No connection to the backend could be made; the model was not asked."""


class BrokenStream(BackendError):
    """The answer ended before it was complete."""


class Malformed(BackendError):
    """The backend yielded what is neither text nor a Completion that can be stored."""


class Refused(BackendError):
    """The backend answered with an error."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        retry_after: timedelta | None = None,
        mid_stream: bool = False,
    ) -> None:
        super().__init__(f"HTTP {status}: {message}")
        self.status = status
        #: What the backend says about it.
        self.detail = message
        self.retry_after = retry_after
        #: The error came inside a stream that had begun with success.
        self.mid_stream = mid_stream
