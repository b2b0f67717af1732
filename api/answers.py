"""Requests in and JSON out, without what FastAPI would do to them on the way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from http import HTTPStatus
from typing import Any

import msgspec
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from api.gateway import Gateway
from api.problems import BodyTooLarge, BodyTooSlow

#: How long a client may take to send a body.
BODY_TIMEOUT_S = 30.0
_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
_encode = msgspec.json.Encoder().encode


class DirectRoute(APIRoute):
    """For an endpoint that takes the request and nothing else: resolving none costs a fifth of a submit."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        return self.endpoint


def gateway_of(request: Request) -> Gateway:
    return request.app.state.gateway


def answer(view: object, status: int = HTTPStatus.OK, headers: dict[str, str] | None = None) -> Response:
    sent = _HEADERS if headers is None else _HEADERS | headers
    return Response(_encode(view), status, sent, "application/json")


async def read_body(request: Request, limit: int) -> bytes:
    """Never holds more than `limit` bytes. Raises BodyTooLarge, BodyTooSlow, ClientDisconnect."""
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > limit:
        raise BodyTooLarge(limit)
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            return await _pieces(request, limit)
    except TimeoutError:
        raise BodyTooSlow from None


async def _pieces(request: Request, limit: int) -> bytes:
    body, more = bytearray(), True
    while more:
        piece, more = await _piece(request)
        if len(body) + len(piece) > limit:
            raise BodyTooLarge(limit)
        body += piece
    return bytes(body)


async def _piece(request: Request) -> tuple[bytes, bool]:
    message = await request.receive()
    if message["type"] == "http.disconnect":
        raise ClientDisconnect
    return message.get("body", b""), message.get("more_body", False)
