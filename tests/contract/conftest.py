"""What the conformance suite needs beyond the shared fixtures."""

from __future__ import annotations

import pytest

from common.redis_store import fleet


@pytest.fixture(autouse=True)
def _eager_reconciler(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    """It takes its time in production; a test waits for its next round."""
    monkeypatch.setattr(fleet, "RECONCILE_EVERY_S", 0.0)
