"""The wire that sends every script twice must not forget what was done the second time."""

from __future__ import annotations

from tests.twice import together


def test_what_fell_due_between_two_runs_is_counted() -> None:
    assert together(0, 1) == 1
    assert together([0, 1], [1, -1]) == [1, -1], "count and what is next"
    assert together([2, 40], [0, 39]) == [2, 39]
    assert together([b"requeued", b"fine"], [b"fine", b"lost"]) == [b"requeued", b"lost"]
