"""A backend of the user's own, named `package.module:Class`, and whether it can be one at all."""

from __future__ import annotations

import logging
from importlib import import_module
from inspect import isasyncgenfunction, iscoroutinefunction, signature
from typing import Any

from common.errors import SettingsError
from common.settings import Settings
from worker.backends.base import Backend

log = logging.getLogger(__name__)


def open_imported(path: str, settings: Settings) -> Backend:
    """Raises SettingsError."""
    kind = _named(path)
    try:
        signature(kind).bind(settings)
    except (TypeError, ValueError):
        raise _refusal(path, "the constructor must take the settings and nothing else") from None
    try:
        backend = kind(settings)
    except Exception as error:
        log.error("the backend's constructor raised", exc_info=error)
        raise _refusal(path, f"the constructor raised {_told(error)}") from error
    _check(path, backend)
    return backend


def _named(path: str) -> Any:
    module, _, name = path.partition(":")
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        hint = "; is its folder on PYTHONPATH?" if f"{module}.".startswith(f"{error.name}.") else ""
        raise _refusal(path, f"{error}{hint}") from error
    except AttributeError as error:
        raise _refusal(path, str(error)) from error
    except Exception as error:
        log.error("the backend's module cannot be imported", exc_info=error)
        raise _refusal(path, f"the module raised {_told(error)}") from error


def _check(path: str, backend: Any) -> None:
    if not isinstance(backend, Backend):
        raise _refusal(path, "lacks generate, ready or aclose")
    if not isasyncgenfunction(backend.generate):
        raise _refusal(path, "generate must be an async generator: `async def` with `yield`")
    for method in (backend.ready, backend.aclose):
        if not iscoroutinefunction(method):
            raise _refusal(path, f"{method.__name__} must be `async def`")


def _refusal(path: str, why: str) -> SettingsError:
    return SettingsError(f"IWL_BACKEND: {path}: {why}")


def _told(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
