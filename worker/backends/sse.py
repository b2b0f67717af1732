"""Server-sent events, as chat-completions endpoints send them: only `data` matters."""

from __future__ import annotations

from collections.abc import AsyncIterator

#: An event larger than this is no answer of a model.
LARGEST_EVENT = 16 << 20


class EventTooLarge(Exception):
    """An event of the stream is larger than any answer could be."""


async def data_of_events(received: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The data of each event. An event that the stream's end cuts off is not one.

    Splits bytes, not text: `str.splitlines` also splits at U+2028 and others, which JSON may hold as they
    are, and a character may be cut in two by the network."""
    rest = b""
    data: list[bytes] = []
    async for block in received:
        *lines, rest = (rest + block).split(b"\n")
        if len(rest) > LARGEST_EVENT:
            raise EventTooLarge
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                data.append(line[5:].removeprefix(b" "))
            elif not line and data:
                yield b"\n".join(data)
                data = []
