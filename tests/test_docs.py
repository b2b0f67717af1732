"""What the documents say is true: settings, commands, files, states, alerts."""

from __future__ import annotations

import re
from enum import Enum
from pathlib import Path

import pytest

from common.fleet import Reason
from common.job import TERMINAL, TRANSITIONS
from common.settings import PREFIX, ClientSettings, Settings
from tests.repository import ROOT, documents, files, functions, make_targets, name

DOCUMENTS = documents()

#: Variables that tests read, and none of the services.
FOR_TESTS = {
    "IWL_TEST_SERVERS",
    "IWL_TEST_VLLM_URL",
    "IWL_TEST_VLLM_MODEL",
    "IWL_TEST_VLLM_CTL",
    "IWL_TEST_FUZZ_SEED",
}

SETTINGS = {f"{PREFIX}{field.upper()}" for field in (*Settings.model_fields, *ClientSettings.model_fields)}


def by_name(path: Path) -> str:
    return name(path)


# ---------------------------------------------------------------- settings

NAMING_FILES = [
    *DOCUMENTS,
    *files("Dockerfile*", "docker-compose*.yml", "Makefile", "deploy/*", ".ci/*"),
]


@pytest.mark.parametrize("path", NAMING_FILES, ids=by_name)
def test_every_variable_that_is_named_exists(path: Path) -> None:
    named = set(re.findall(r"\bIWL_[A-Z0-9_]+", path.read_text()))
    # "IWL_TEST_*" and the like name a family, not a variable.
    assert {variable for variable in named if not variable.endswith("_")} <= SETTINGS | FOR_TESTS


def settings_table() -> dict[str, str]:
    """Variable -> the default in the table of docs/operations.md."""
    text = (ROOT / "docs/operations.md").read_text()
    return dict(re.findall(r"^\| `(IWL_\w+)` \| (.+?) \|", text, re.MULTILINE))


def test_the_table_lists_every_setting_and_no_other() -> None:
    assert set(settings_table()) == SETTINGS


def shown(value: object) -> str:
    if isinstance(value, Enum):
        value = value.value
    return f"`{int(value)}`" if isinstance(value, bool) else f"`{value}`"


def test_the_table_shows_the_true_defaults() -> None:
    table = settings_table()
    for model in (Settings, ClientSettings):
        for field, info in model.model_fields.items():
            told = table[f"{PREFIX}{field.upper()}"]
            if info.default_factory is not None or info.default is None:
                assert not told.startswith("`"), f"{field}: no fixed default"
            else:
                assert told == shown(info.default), field


def test_every_reason_of_the_scaler_is_in_its_table() -> None:
    text = (ROOT / "docs/operations.md").read_text()
    table = text[text.index("| reason |") :].split("\n\n")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == list(Reason)


# ---------------------------------------------------------------- commands and files


@pytest.mark.parametrize("path", DOCUMENTS, ids=by_name)
def test_every_make_target_in_a_document_exists(path: Path) -> None:
    text = path.read_text()
    named = set(re.findall(r"(?:`|^)make ([a-z-]+)", text, re.MULTILINE))
    assert named <= set(make_targets())


def test_every_make_target_explains_itself_and_is_phony() -> None:
    text = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: (.+)$", text, re.MULTILINE)
    assert phony
    assert set(phony[1].split()) == set(make_targets())
    assert set(re.findall(r"^([a-z-]+):", text, re.MULTILINE)) == set(make_targets())


def anchors(path: Path) -> set[str]:
    """The fragments that GitHub gives the headings of a document."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", DOCUMENTS, ids=by_name)
def test_every_link_leads_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, fragment = target.partition("#")
        linked = (path.parent / file).resolve() if file else path
        assert linked.exists(), target
        if fragment:
            assert fragment in anchors(linked), target


@pytest.mark.parametrize("path", DOCUMENTS, ids=by_name)
def test_every_path_of_ours_in_a_document_exists(path: Path) -> None:
    rooms = "api|bench|common|deploy|docs|lab|scaler|tests|worker"
    for named in re.findall(rf"`((?:{rooms})/[\w./-]*)`", path.read_text()):
        assert (ROOT / named).exists(), named


def test_no_document_knows_where_it_was_written() -> None:
    paths = re.compile(r"/(?:work|home|root|Users)/\w")
    assert not [name(path) for path in DOCUMENTS if paths.search(path.read_text())]


# ---------------------------------------------------------------- lifecycle


def test_the_state_diagram_is_the_state_machine() -> None:
    text = (ROOT / "docs/lifecycle.md").read_text()
    diagram = re.search(r"```mermaid\nstateDiagram-v2\n(.*?)```", text, re.DOTALL)
    assert diagram
    arrows = re.findall(r"^\s*(\S+) --> (\w+): (.+)$", diagram[1], re.MULTILINE)
    drawn = {(None if source == "[*]" else source, event, to) for source, to, event in arrows}
    assert len(arrows) == len(drawn)
    assert drawn == {
        (state.value if state else None, event.value, to.value) for (state, event), to in TRANSITIONS.items()
    }
    ends = set(re.findall(r"^\s*(\w+) --> \[\*\]\s*$", diagram[1], re.MULTILINE))
    assert ends == {status.value for status in TERMINAL}


def test_every_script_is_explained() -> None:
    text = (ROOT / "docs/lifecycle.md").read_text()
    scripts = {path.stem for path in files("common/redis_store/lua/*.lua") if path.parent.name == "lua"}
    assert scripts
    assert not {script for script in scripts if f"`{script}.lua`" not in text}
    assert set(re.findall(r"`(\w+)\.lua`", text)) <= scripts


def test_every_file_of_the_services_is_explained() -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    sections = re.findall(r"^\| file in `([\w/]+)/` \| what \|\n((?:\|.*\n)+)", text, re.MULTILINE)
    assert {folder for folder, _ in sections} == {"api", "worker", "scaler", "common", "common/redis_store"}
    for folder, table in sections:
        there = {path.name for path in files(f"{folder}/*.py") if path.parent == ROOT / folder}
        assert set(re.findall(r"`(\w+\.py)`", table)) == there - {"__init__.py"}, folder


# ---------------------------------------------------------------- guarantees, failure index

INDEX, GUARANTEES = ROOT / "docs/failure-index.md", ROOT / "docs/guarantees.md"
NOT_BUILT = "Second system, not built yet."


def cited(text: str) -> set[tuple[str, str]]:
    """(file, test) of each test that is named: `file::test`, or a link from the test's name to its file."""
    linked = re.findall(r"\[(test_\w+)\]\(\.\./(tests/[\w/]+\.py)\)", text)
    return {*re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text), *((file, test) for test, file in linked)}


def defined_in(file: str) -> set[str]:
    return {function for function, _ in functions(ROOT / file) if function.startswith("test_")}


@pytest.mark.parametrize("path", DOCUMENTS, ids=by_name)
def test_every_test_in_a_document_exists(path: Path) -> None:
    text = path.read_text()
    for file, test in cited(text):
        assert (ROOT / file).exists(), file
        assert test in defined_in(file), f"{file}::{test}"
    # Written in any other way, a test would not be looked for.
    assert set(re.findall(r"\btest_\w+\b(?!\.py)", text)) == {test for _, test in cited(text)}


def failures() -> list[tuple[int, str]]:
    """(number, what stands against it)"""
    rows = re.findall(r"^\| (\d+) \| [^|]+ \| [^|]+ \| ([^|]+) \|$", INDEX.read_text(), re.MULTILINE)
    return [(int(number), answer) for number, answer in rows]


def test_the_failure_index_has_every_number_once() -> None:
    assert [number for number, _ in failures()] == list(range(1, 68))


def test_every_failure_has_a_test_or_a_reason() -> None:
    """A reason names the file that sees to it."""
    reason = re.compile(r"Cannot happen: .*`[\w/]+\.\w+`")
    assert not [
        number
        for number, answer in failures()
        if not (cited(answer) or reason.match(answer) or answer == NOT_BUILT)
    ]


def test_every_promise_is_shown_by_a_test() -> None:
    shown = dict(re.findall(r"^- \*\*(P\d+)\*\*: (.+(?:\n  .+)*)", GUARANTEES.read_text(), re.MULTILINE))
    assert list(shown) == [f"P{number}" for number in range(1, 11)]
    assert all(cited(tests) for tests in shown.values())


# ---------------------------------------------------------------- changelog, decisions


def test_the_changelog_keeps_a_changelog() -> None:
    lines = (ROOT / "CHANGELOG.md").read_text().splitlines()
    assert lines[0] == "# Changelog"
    versions = [line for line in lines if line.startswith("## ")]
    assert versions[0] == "## [Unreleased]"
    for version in versions[1:]:
        assert re.fullmatch(r"## \[\d+\.\d+\.\d+\] - \d{4}-\d{2}-\d{2}", version), version
    kinds = {line.removeprefix("### ") for line in lines if line.startswith("### ")}
    assert kinds <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_a_change_is_one_sentence() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    changes = [" ".join(change.split()) for change in re.findall(r"^- (.+(?:\n  .+)*)", text, re.MULTILINE)]
    assert changes
    for change in changes:
        assert change.endswith("."), change
        assert ". " not in change, change


def test_decisions_are_numbered_and_say_what_they_cost() -> None:
    decisions = files("docs/decisions/*.md")
    assert [path.name[:3] for path in sorted(decisions)] == [f"{n:03}" for n in range(1, len(decisions) + 1)]
    for path in decisions:
        text = path.read_text()
        for heading in ("## Context", "## Choice", "## Cost"):
            assert heading in text, f"{name(path)}: {heading}"
