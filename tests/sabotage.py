"""The store's scripts with one line broken, for tests of the tests: whoever looks must find it out."""

from __future__ import annotations

import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from common.redis_store import loader


@contextmanager
def broken_script(file: str, line: str, instead: str) -> Generator[None]:
    """`file` is relative to the folder of scripts; `line` must be in it."""
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        copy = Path(folder) / "lua"
        shutil.copytree(loader.LUA, copy)
        source = (copy / file).read_text()
        assert line in source, f"{file} has no such line: {line}"
        (copy / file).write_text(source.replace(line, instead))
        patch.setattr(loader, "LUA", copy)
        loader.load.cache_clear()
        try:
            yield
        finally:
            # Also for a test that failed: the others must not run the broken script.
            loader.load.cache_clear()
