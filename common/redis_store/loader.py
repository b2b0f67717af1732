"""Reads the Lua files. `-- @include a b` is replaced by the files include/a.lua and include/b.lua."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from hashlib import sha1
from pathlib import Path

LUA = Path(__file__).parent / "lua"


@dataclass(frozen=True, slots=True)
class Script:
    name: str
    source: str
    sha: str


@cache
def load(name: str, *, shebang: bool = True) -> Script:
    """`shebang=False` leaves the `#!lua` line out, for a server that cannot read it (fakeredis)."""
    body = (LUA / f"{name}.lua").read_text()
    source = re.sub(r"^-- @include (.+)$", _included, body, flags=re.MULTILINE)
    if not shebang:
        source = source.split("\n", 1)[1]
    return Script(name, source, sha1(source.encode(), usedforsecurity=False).hexdigest())


def _included(line: re.Match[str]) -> str:
    return "\n".join((LUA / "include" / f"{name}.lua").read_text() for name in line.group(1).split())


def names() -> list[str]:
    return sorted(path.stem for path in LUA.glob("*.lua"))
