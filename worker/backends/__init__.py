"""Backends: where the model is. `open_backend` picks the one that IWL_BACKEND names."""

from __future__ import annotations

from common.errors import SettingsError
from common.settings import Settings
from worker.backends.base import Backend


def open_backend(settings: Settings) -> Backend:
    """Raises SettingsError for a name that is no backend. One of the project's two factories."""
    match settings.backend:
        case "mock":
            from worker.backends.mock import MockBackend

            return MockBackend(settings)
        case "vllm":
            from worker.backends.vllm import VllmBackend

            return VllmBackend(settings)
        case path if path.count(":") == 1:
            from worker.backends.imported import open_imported

            return open_imported(path, settings)
        case name:
            raise SettingsError(f"IWL_BACKEND: no backend {name!r} (mock, vllm, package.module:Class)")
