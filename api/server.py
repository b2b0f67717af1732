"""uvicorn, with an end that comes soon, and with limits on what clients may leave unfinished."""

from __future__ import annotations

import asyncio
import errno
import logging
import signal
import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, cast

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from api.problems import Problem, problem_response
from common.errors import SettingsError

log = logging.getLogger(__name__)

#: What is still open after this is cut off: a client that has stopped reading or sending.
GRACE_S = 3
#: Longer than the idle time of the proxies in front, so that they close first and never meet a reset.
KEEP_ALIVE_S = 75
MAX_HEAD_BYTES = 64 * 1024
MAX_HEADERS = 100
#: How long a connection may stay without a whole request head.
HEAD_TIMEOUT_S = 30.0
#: How long a client may read nothing of an answer that waits for it.
UNREAD_TIMEOUT_S = 30.0
#: Of all answers that wait for their clients: a gateway holds no more, whatever its clients do.
MAX_UNREAD_BYTES = 64 << 20
#: Bytes that are given to a transport at once.
PIECE = 64 * 1024


class InPieces:
    """A transport that keeps no more than what is still to be sent: uvloop keeps all that it was given in one
    piece until the last byte of it is gone."""

    def __init__(self, transport: asyncio.Transport, written: Callable[[], None]) -> None:
        """`written` is called after each write."""
        self._transport = transport
        self._written = written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        for start in range(0, len(data), PIECE):
            self._transport.write(data[start : start + PIECE])
        self._written()


class Unread:
    """Connections with more of an answer than their client has read; who has waited longest is first."""

    def __init__(self) -> None:
        self._waiting: dict[BoundedHttp, None] = {}

    def add(self, connection: BoundedHttp) -> None:
        self._waiting[connection] = None
        size = sum(each.unread for each in self._waiting)
        # The newest stays, however large: its client has had no time to read.
        for oldest in list(self._waiting)[:-1]:
            if size <= MAX_UNREAD_BYTES:
                return
            size -= oldest.unread
            oldest.cut_off()

    def remove(self, connection: BoundedHttp) -> None:
        self._waiting.pop(connection, None)


class BoundedHttp(HttpToolsProtocol):
    """uvicorn limits neither a request head, in length and in time, nor what of an answer is left unread."""

    _all_unread = Unread()
    _unread_timer: asyncio.TimerHandle | None = None

    _too_large = False
    _in_head = False
    _head_bytes = 0
    #: Bytes of the data that is being parsed.
    _chunk = 0
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        in_pieces = InPieces(cast(asyncio.Transport, transport), self._wrote)
        super().connection_made(cast(asyncio.Transport, in_pieces))
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_complete()
        self._is_read()
        super().connection_lost(exc)

    @property
    def unread(self) -> int:
        """Bytes that wait for the client to read."""
        return self.transport.get_write_buffer_size()

    def _wrote(self) -> None:
        if self.flow.write_paused and not self.transport.is_closing():
            self._all_unread.add(self)
            if self._unread_timer is None:
                self._await_reading()

    def resume_writing(self) -> None:
        self._is_read()
        super().resume_writing()

    def cut_off(self) -> None:
        self._is_read()
        self.transport.abort()

    def _await_reading(self) -> None:
        before = self.unread

        def look() -> None:
            if self.unread < before:
                self._await_reading()
            else:
                self.cut_off()

        self._unread_timer = self.loop.call_later(UNREAD_TIMEOUT_S, look)

    def _is_read(self) -> None:
        self._all_unread.remove(self)
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None

    def on_message_begin(self) -> None:
        self._in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        if len(self.headers) > MAX_HEADERS or self._head_bytes + self._chunk > MAX_HEAD_BYTES < self._size():
            self._too_large = True
            raise ValueError("request head too large")  # the parser stops, and a 400 is asked for
        self._head_complete()
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        self._chunk = len(data)
        super().data_received(data)
        # uvicorn takes an empty line, or the rest of a body that is already answered, for the next request,
        # and its limit on idle time off.
        if self._in_head or self._idle():
            self._await_head()
        if not self._in_head:
            return
        self._head_bytes += len(data)
        if self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._too_large = True
            self.send_400_response("")

    def send_400_response(self, msg: str) -> None:
        status = HTTPStatus.BAD_REQUEST
        if self._too_large:
            status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            msg = f"More than {MAX_HEADERS} headers, or than {MAX_HEAD_BYTES} bytes of them."
        answer = problem_response(
            Problem(type="about:blank", title=status.phrase, status=status, detail=msg),
            {"Connection": "close"},
        )
        head = b"".join(b"%b: %b\r\n" % header for header in answer.raw_headers)
        line = f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode()
        self.transport.write(b"%b%b\r\n%b" % (line, head, answer.body))
        self.transport.close()

    def _idle(self) -> bool:
        return not self.cycle or self.cycle.response_complete

    def _size(self) -> int:
        return len(self.url) + sum(len(name) + len(value) for name, value in self.headers)

    def _await_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self.transport.close)

    def _head_complete(self) -> None:
        self._head_bytes = 0
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


class GatewayServer(uvicorn.Server):
    """Ends with exit status 0 on SIGTERM and SIGINT; a second one cuts everything off."""

    def __init__(self, app: FastAPI, host: str, port: int) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                host=host,
                port=port,
                http=BoundedHttp,
                ws="none",
                lifespan="on",
                access_log=False,
                log_config=None,
                proxy_headers=False,
                server_header=False,
                timeout_graceful_shutdown=GRACE_S,
                timeout_keep_alive=KEEP_ALIVE_S,
            )
        )
        self._closing: asyncio.Event = app.state.gateway.closing

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for each in sockets or []:
            log.info("listening", extra={"url": _url(each)})

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        if self.force_exit:
            # uvicorn would leave the app's own tasks running.
            await self.lifespan.shutdown()

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        self.heed_signals()
        yield

    def heed_signals(self) -> None:
        """From here on; before, they end the process."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.close)

    def close(self) -> None:
        # uvicorn waits for open streams before it tells the app to end, and they wait for the app.
        self.force_exit = self.should_exit
        self.should_exit = True
        self._closing.set()


def listen(host: str, port: int) -> socket.socket:
    """Raises SettingsError; uvicorn's own would exit with a status that asks for a restart."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        variable = "IWL_PORT" if error.errno in (errno.EADDRINUSE, errno.EACCES) else "IWL_HOST"
        raise SettingsError(f"{variable}: cannot listen on {host}:{port}: {error.strerror}") from None
    except (TypeError, UnicodeError):  # what it raises for a name that it cannot encode
        listener.close()
        raise SettingsError(f"IWL_HOST: {host} cannot be a host's name") from None
    return listener


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
