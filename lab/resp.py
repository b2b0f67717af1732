"""One command to a server, in its own protocol (RESP2): all that the lab needs, without a client library."""

from __future__ import annotations

import asyncio

from common.errors import LabError

ANSWER_WITHIN_S = 1.0

Reply = str | int | None | list["Reply"]


class ServerSaidNo(LabError):
    """The server answered with an error."""


async def command(host: str, port: int, *words: str) -> Reply:
    """Raises ServerSaidNo, and OSError or TimeoutError when no whole answer came."""
    async with asyncio.timeout(ANSWER_WITHIN_S):
        reader, writer = await asyncio.open_connection(host, port)
        try:
            writer.write(_packed(words))
            return await _reply(reader)
        except asyncio.IncompleteReadError as error:
            raise ConnectionResetError("the server hung up") from error
        finally:
            writer.close()


def _packed(words: tuple[str, ...]) -> bytes:
    encoded = [word.encode() for word in words]
    return b"*%d\r\n" % len(encoded) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in encoded)


async def _reply(reader: asyncio.StreamReader) -> Reply:
    line = (await reader.readuntil(b"\r\n"))[:-2].decode()
    kind, rest = line[:1], line[1:]
    match kind:
        case "+":
            return rest
        case "-":
            raise ServerSaidNo(rest)
        case ":":
            return int(rest)
        case "$" if int(rest) >= 0:
            return (await reader.readexactly(int(rest) + 2))[:-2].decode()
        case "*" if int(rest) >= 0:
            return [await _reply(reader) for _ in range(int(rest))]
        case _:
            return None
