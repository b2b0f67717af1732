"""The worker's run path stays readable: no function outgrows a screen, no file its noun."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import worker

LONGEST_FUNCTION = 40
LONGEST_FILE = 300

FILES = sorted(Path(worker.__file__).parent.rglob("*.py"))


def functions(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno
            yield node.name, node.end_lineno - node.lineno + 1


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_no_function_outgrows_a_screen(path: Path) -> None:
    long = {name: lines for name, lines in functions(path) if lines > LONGEST_FUNCTION}
    assert not long


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_no_file_outgrows_its_noun(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= LONGEST_FILE
