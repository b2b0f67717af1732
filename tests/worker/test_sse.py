"""Server-sent events out of whatever pieces the network makes of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.backends import sse
from worker.backends.sse import EventTooLarge, data_of_events


async def blocks(pieces: Iterable[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


async def events(*pieces: bytes) -> list[bytes]:
    return [data async for data in data_of_events(blocks(pieces))]


@pytest.mark.parametrize(
    ("stream", "data"),
    [
        (b"data: a\n\ndata: b\n\n", [b"a", b"b"]),
        (b"data:a\r\n\r\ndata:b\r\n\r\n", [b"a", b"b"]),
        (b": a comment\n\ndata: a\n\n", [b"a"]),
        (b"event: x\nid: 7\ndata: a\n\n", [b"a"]),
        (b"data: a\ndata: b\n\n", [b"a\nb"]),
        (b"\n\n\ndata: a\n\n\n\n", [b"a"]),
        (b"data: cut off", []),
        (b"data: cut off\n", []),
        (b"", []),
        # str.splitlines would break the line at each of these, and the JSON with it.
        ("data: a\u2028b\x0bc\x85d\n\n".encode(), ["a\u2028b\x0bc\x85d".encode()]),
    ],
)
async def test_only_the_data_of_whole_events_counts(stream: bytes, data: list[bytes]) -> None:
    assert await events(stream) == data


@given(
    texts=st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), min_size=1), min_size=1),
    cuts=st.lists(st.integers(0, 500)),
    newline=st.sampled_from([b"\n", b"\r\n"]),
)
async def test_it_does_not_matter_where_the_network_cuts(
    texts: list[str], cuts: list[int], newline: bytes
) -> None:
    stream = b"".join(b"data: " + text.encode() + newline * 2 for text in texts)
    edges = [0, *sorted(cut for cut in cuts if cut < len(stream)), len(stream)]
    pieces = [stream[start:end] for start, end in pairwise(edges)]
    assert await events(*pieces) == [text.encode() for text in texts]


async def test_a_line_without_end_is_not_gathered_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "LARGEST_EVENT", 100)
    with pytest.raises(EventTooLarge):
        await events(*[b"x" * 60] * 2)
