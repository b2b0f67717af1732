"""The repository as tests read it: its files, its imports, its documents."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent

#: What runs in production, in the order in which imports may point.
SERVICES = ("api", "worker", "scaler")
PACKAGES = ("common", *SERVICES, "lab")


def files(*patterns: str) -> list[Path]:
    """Committed files, and those that are about to be, that match; empty folders and caches left out."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [path for line in listed.stdout.splitlines() if (path := ROOT / line).is_file()]


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), filename=str(path))


def imports(path: Path) -> set[str]:
    """Every module that a Python file imports, with dots."""
    found: set[str] = set()
    for node in ast.walk(tree(path)):
        match node:
            case ast.Import(names=aliases):
                found |= {alias.name for alias in aliases}
            case ast.ImportFrom(module=str(module), names=aliases, level=0):
                found |= {module} | {f"{module}.{alias.name}" for alias in aliases}
            case _:
                pass
    return found


def functions(path: Path) -> Iterator[tuple[str, int]]:
    """(name, lines) of every function in a Python file."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, (node.end_lineno or node.lineno) - node.lineno + 1


def documents() -> list[Path]:
    return files("*.md")


def make_targets() -> dict[str, str]:
    """Target -> its `##` help."""
    text = (ROOT / "Makefile").read_text()
    return dict(re.findall(r"^([a-z-]+):.*?## (.+)$", text, re.MULTILINE))
