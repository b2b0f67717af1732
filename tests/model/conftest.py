"""What the machine needs of the store's own pace."""

from __future__ import annotations

import pytest

from common.redis_store import claims, fleet


@pytest.fixture(autouse=True)
def _eager(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    """Sweeping, reconciling and pruning take their time in production; here each step is one."""
    monkeypatch.setattr(fleet, "RECONCILE_EVERY_S", 0.0)
    monkeypatch.setattr(fleet, "RECONCILE_LOCK_MS", 20)
    monkeypatch.setattr(fleet, "PRUNE_EVERY_S", 0.0)
    monkeypatch.setattr(claims, "SWEEP_EVERY_S", 0.0)
    monkeypatch.setattr(claims, "SWEEP_LOCK_MS", 20)
