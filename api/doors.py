"""What stands before every route: the key, the rate, web pages that are none of ours, closing time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api import manual
from api.callers import ANYBODY, let_in
from api.keys import Keyring
from api.problems import CrossSite, NotReady
from common.errors import LabError

#: Open to all: probes, and a description that says nothing of this gateway.
OPEN = frozenset({"/healthz", "/readyz", "/openapi.json", *manual.PATHS})
_READING = frozenset({"GET", "HEAD", "OPTIONS"})

Refuse = Callable[[Request, Exception], Awaitable[Response]]


class Doors:
    """Without a keyring everybody may come in, except a browser that another site has sent."""

    def __init__(self, app: ASGIApp, keyring: Keyring | None, refuse: Refuse) -> None:
        self._app = app
        self._keyring = keyring
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            self._enter(scope)
        except LabError as error:
            await self._turn_away(error, scope, receive, send)
            return
        begun = False

        async def noted_send(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, noted_send)
        except asyncio.CancelledError:
            # By the server, which leaves and has waited long enough.
            if begun:
                raise
            await self._turn_away(NotReady("The gateway is shutting down."), scope, receive, send)

    async def _turn_away(self, error: LabError, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self._refuse(Request(scope), error)
        await response(scope, receive, send)

    def _enter(self, scope: Scope) -> None:
        if self._keyring is None:
            if scope["method"] not in _READING:
                refuse_other_sites(scope)
            let_in(scope, ANYBODY)
        elif scope["path"] not in OPEN:
            let_in(scope, self._keyring.admit(_bearer(scope)))


def refuse_other_sites(scope: Scope) -> None:
    """Any page may post to this machine with the browser of somebody on it, though it cannot read the answer.

    With keys that is no danger: a browser adds no `Authorization` by itself. Raises CrossSite."""
    headers = dict[bytes, bytes](scope["headers"])
    if headers.get(b"sec-fetch-site") == b"cross-site":
        raise CrossSite
    origin = headers.get(b"origin")
    if origin is not None and origin.partition(b"://")[2].lower() != headers.get(b"host", b"").lower():
        raise CrossSite


def _bearer(scope: Scope) -> bytes | None:
    """The key that came with the request; b"" for what is no single one."""
    given = [value for name, value in scope["headers"] if name == b"authorization"]
    if not given:
        return None
    scheme, _, key = given[0].partition(b" ")
    return key.strip() if len(given) == 1 and scheme.lower() == b"bearer" else b""
