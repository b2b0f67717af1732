"""Keys files for tests, and clients that hold a key."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import httpx

#: The key of a name, where a test gives none.
KEYS = {name: f"key-of-{name}-8f3a" for name in ("ann", "ben", "ops")}


def line(name: str, key: str | None = None, **rights: Any) -> dict[str, Any]:
    sha256 = hashlib.sha256((key or KEYS[name]).encode()).hexdigest()
    return {"name": name, "sha256": sha256, **rights}


def write_keys(path: Path, *lines: dict[str, Any]) -> Path:
    """In one go, as an operator should."""
    fresh = path.with_suffix(".new")
    fresh.write_text("\n".join(json.dumps(each) for each in lines) + "\n")
    return fresh.replace(path)


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def as_caller(client: httpx.AsyncClient, name: str) -> httpx.AsyncClient:
    client.headers.update(bearer(KEYS[name]))
    return client
