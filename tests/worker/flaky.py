"""A real store whose methods fail when the test says so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from common.store import Store


class Flaky:
    """Passes everything on, but first does what `faults` holds for the method's name."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.faults: dict[str, Callable[..., Any]] = {}
        self.calls: list[str] = []

    def fail_with(self, method: str, *errors: Exception) -> None:
        """The first error on the first call, and so on; then no more."""
        left = list(errors)

        def fault(*arguments: Any, **named: Any) -> None:
            if left:
                raise left.pop(0)

        self.faults[method] = fault

    def fail(self, method: str, error: Exception, *, times: float = float("inf")) -> None:
        """From now on, or so many times."""
        left = [times]

        def fault(*arguments: Any, **named: Any) -> None:
            left[0] -= 1
            if left[0] >= 0:
                raise error

        self.faults[method] = fault

    def heal(self) -> None:
        self.faults.clear()

    def count(self, method: str) -> int:
        return self.calls.count(method)

    def __getattr__(self, method: str) -> Any:
        real = getattr(self.store, method)

        async def call(*arguments: Any, **named: Any) -> Any:
            self.calls.append(method)
            fault = self.faults.get(method)
            if fault is not None:
                held_up = fault(*arguments, **named)
                if asyncio.iscoroutine(held_up):
                    await held_up
            return await real(*arguments, **named)

        return call
