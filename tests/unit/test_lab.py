"""The lab's figures, ports and parameters."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from functools import partial

import pytest
import typer

from common.errors import SettingsError
from lab.commands import nested
from lab.figures import percentile
from lab.ports import PORTS, free_port, is_free


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [
        ([], 50, None),
        ([3.0], 95, 3.0),
        ([1.0, 2.0, 3.0, 4.0], 50, 2.0),
        ([float(n) for n in range(80, 0, -1)], 95, 76.0),
        ([float(n) for n in range(1, 501)], 95, 475.0),
        ([1.0, 2.0], 100, 2.0),
    ],
)
def test_percentiles_are_measured_values(values: list[float], percent: int, expected: float | None) -> None:
    assert percentile(values, percent) == expected


def test_a_free_port_is_outside_the_range_of_outgoing_connections() -> None:
    port = free_port()
    assert port in PORTS
    assert is_free(port)


@pytest.mark.parametrize(
    ("host", "line"),
    [
        ("192.0.2.1", "IWL_HOST: 192.0.2.1 is not an address of this machine"),
        ("nope.invalid", "IWL_HOST: nope.invalid cannot be resolved"),
        ("a..b", "IWL_HOST: a..b cannot be resolved"),
    ],
)
@pytest.mark.parametrize("ask", [partial(is_free, 8080), free_port], ids=["this port", "any port"])
def test_a_host_that_is_not_ours_is_no_busy_port(ask: Callable[[str], object], host: str, line: str) -> None:
    with pytest.raises(SettingsError, match=f"^{line}$"):
        ask(host)


def test_a_port_that_is_not_ours_to_use_is_no_busy_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: socket.socket, address: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(socket.socket, "bind", refuse)
    with pytest.raises(SettingsError, match=r"^Port 80 is not yours to use: "):
        is_free(80)


def test_a_busy_port_is_not_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert not is_free(taken.getsockname()[1])


def test_parameters_are_json_where_they_can_be_and_nested_at_dots() -> None:
    assert nested(["mock.tokens=3", "mock.fail=error", "temperature=0.5", "stop=a=b", 'x="1"']) == {
        "mock": {"tokens": 3, "fail": "error"},
        "temperature": 0.5,
        "stop": "a=b",
        "x": "1",
    }


@pytest.mark.parametrize("params", [["novalue"], ["=1"], ["a=1", "a.b=2"]])
def test_parameters_that_make_no_sense_are_refused(params: list[str]) -> None:
    with pytest.raises(typer.BadParameter):
        nested(params)
