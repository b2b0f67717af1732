"""The rules of the house: who may import whom, who reads the environment, how long things may get."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.repository import PACKAGES, ROOT, SERVICES, files, functions, imports, name, tree

#: package -> packages of ours that it may import.
MAY_IMPORT = {
    "common": {"common"},
    "api": {"api", "common"},
    "worker": {"worker", "common"},
    "scaler": {"scaler", "common"},
    "lab": {"lab", "common"},
    "bench": {"bench", "common", "lab", "worker"},
}
OURS = {*MAY_IMPORT, "tests"}

CODE = files(*(f"{package}/*.py" for package in PACKAGES))


def by_name(path: Path) -> str:
    return name(path)


@pytest.mark.parametrize("package", list(MAY_IMPORT))
def test_imports_run_one_way(package: str) -> None:
    for path in files(f"{package}/*.py"):
        ours = {module.split(".")[0] for module in imports(path)} & OURS
        assert ours <= MAY_IMPORT[package], name(path)


@pytest.mark.parametrize("path", CODE, ids=by_name)
def test_only_the_redis_adapter_knows_redis(path: Path) -> None:
    if not name(path).startswith("common/redis_store/"):
        assert not [module for module in imports(path) if module.split(".")[0] in ("redis", "valkey")]


@pytest.mark.parametrize("path", CODE, ids=by_name)
def test_adapters_are_opened_in_one_place(path: Path) -> None:
    if not name(path).startswith(("common/redis_store/", "common/stores.py")):
        assert not [module for module in imports(path) if module.startswith("common.redis_store")]


@pytest.mark.parametrize("path", CODE, ids=by_name)
def test_only_the_settings_read_the_environment(path: Path) -> None:
    if name(path) == "common/settings.py":
        return
    reads = [
        node.lineno
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Attribute) and node.attr in ("environ", "environb", "getenv", "putenv")
    ]
    assert not reads
    assert not imports(path) & {"os.environ", "os.environb", "os.getenv", "os.putenv"}


@pytest.mark.parametrize("path", CODE, ids=by_name)
def test_a_service_loads_its_settings_in_its_main_module(path: Path) -> None:
    """Everything below gets them passed down."""
    if path.name == "__main__.py" or name(path).startswith(("common/settings.py", "lab/")):
        return
    assert "common.settings.load_settings" not in imports(path)


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_starts_as_a_module(service: str) -> None:
    assert (ROOT / service / "__main__.py").is_file()


@pytest.mark.parametrize("path", CODE, ids=by_name)
def test_no_function_is_longer_than_a_screen(path: Path) -> None:
    if name(path) == "common/telemetry.py":  # a list of instruments, not steps
        return
    assert not [(function, lines) for function, lines in functions(path) if lines > 40]


def test_no_script_is_longer_than_sixty_lines() -> None:
    scripts = files("common/redis_store/lua/*.lua")
    assert scripts
    assert not [(name(path), n) for path in scripts if (n := path.read_text().count("\n")) > 60]


def test_scripts_raise_errors_and_do_not_catch_them() -> None:
    """A script that catches one would go on to write half a transition."""
    assert not [name(path) for path in files("*.lua") if "pcall" in path.read_text()]


def test_no_file_names_a_package_registry() -> None:
    """People install from a registry of their own choice."""
    dot = r"\."
    hosts = ["python" + "hosted", "pypi" + dot + "org", "registry" + dot + "npm", "deb" + dot + "debian"]
    pattern = re.compile("|".join(hosts).encode())
    assert not [name(path) for path in files() if pattern.search(path.read_bytes())]


@pytest.mark.parametrize("path", CODE, ids=by_name)
def test_waits_keep_a_cancellation(path: Path) -> None:
    """Up to Python 3.11 asyncio.wait_for swallows one that comes together with what was waited for."""
    assert "wait_for(" not in re.sub(r"(_wait_for|def wait_for)\(", "", path.read_text())
