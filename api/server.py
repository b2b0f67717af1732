"""uvicorn, with an end that comes soon and request heads that end at all."""

from __future__ import annotations

import asyncio
import errno
import logging
import signal
import socket
from collections.abc import Generator
from contextlib import contextmanager
from http import HTTPStatus
from typing import cast

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


class BoundedHttp(HttpToolsProtocol):
    """uvicorn limits neither the length of a request's head nor the time it may take to arrive."""

    _too_large = False
    _in_head = False
    _head_bytes = 0
    #: Bytes of the data that is being parsed.
    _chunk = 0
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast(asyncio.Transport, transport))
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_complete()
        super().connection_lost(exc)

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

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.close)
        yield

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
    return listener


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
