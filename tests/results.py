"""Sections of docs/results.md: each measurement replaces its own, and leaves the others' alone."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tests.repository import ROOT

RESULTS = ROOT / "docs" / "results.md"


def write_section(heading: str, lines: Sequence[str]) -> None:
    """Adds it at the end, when it is not there yet."""
    text = RESULTS.read_text() if RESULTS.exists() else "# Results\n"
    end = f"<!-- end of {heading.lower()} -->"
    section = "\n".join([f"## {heading}", "", *lines, "", end])
    pattern = re.compile(rf"^## {heading}$.*?^{end}$", re.DOTALL | re.MULTILINE)
    rest = f"{text.rstrip()}\n\n{section}\n"
    RESULTS.write_text(pattern.sub(lambda _: section, text) if pattern.search(text) else rest)
