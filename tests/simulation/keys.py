"""Who calls the simulated gateways, and their keys file."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

#: Keys by name.
CALLERS = {"ann": "ann's key", "bob": "bob's key"}


def write_keys(directory: Path) -> Path:
    path = directory / "keys.jsonl"
    lines = [
        msgspec.json.encode({"name": name, "sha256": hashlib.sha256(key.encode()).hexdigest()})
        for name, key in CALLERS.items()
    ]
    path.write_bytes(b"\n".join(lines))
    return path
