"""Output that its terminal, disk or reader does not take."""

from __future__ import annotations

import codecs
import errno
import json
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from io import StringIO
from typing import TextIO

from lab.exits import Exit


@contextmanager
def shown() -> Generator[None]:
    """What is printed arrives, or that it does not is said in a line, with exit code 1.

    A reader that left gets no line, and an output that was closed from the start nothing."""
    sys.stdout = sys.stdout or StringIO()
    sys.stderr = sys.stderr or StringIO()
    codecs.register_error("json", _escaped)
    if reconfigure := getattr(sys.stdout, "reconfigure", None):
        reconfigure(errors="json")
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except OSError as error:
        _drop(sys.stdout)
        if error.errno != errno.EPIPE:
            complain(error)
        sys.exit(Exit.FAILED)


def complain(what: object) -> None:
    """One line on standard error."""
    try:
        print(f"iwl: {what}", file=sys.stderr)
    except OSError:
        _drop(sys.stderr)


def _escaped(error: UnicodeError) -> tuple[str, int]:
    """A letter that the encoding lacks, so that JSON stays JSON."""
    assert isinstance(error, UnicodeEncodeError)
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


def _drop(stream: TextIO) -> None:
    """What is left in its buffer would fail once more when Python ends, with an exit code of its own."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
