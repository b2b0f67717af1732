"""Counts and times every request by its route template: raw paths would make a label per job."""

from __future__ import annotations

import time
from collections.abc import Iterable

from prometheus_client import Counter
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from common.telemetry import GatewayMetrics

_METHODS = frozenset({"GET", "POST", "DELETE", "PUT", "PATCH", "HEAD", "OPTIONS"})
_UNTIMED = "iwl.untimed"
#: Statuses that dashboards and alerts ask for; present from the start for every route.
_EXPECTED = ("200", "202", "401", "403", "404", "409", "410", "413", "422", "429", "500", "503")


def leave_untimed(scope: Scope) -> None:
    """This request waits on purpose; its length says nothing about the gateway."""
    scope[_UNTIMED] = True


class Metering:
    def __init__(self, app: ASGIApp, metrics: GatewayMetrics, routes: Iterable[BaseRoute]) -> None:
        self._app = app
        self._metrics = metrics
        self._counters: dict[tuple[str, str, int], Counter] = {}
        for route in routes:
            for method in getattr(route, "methods", None) or ():
                for code in _EXPECTED:
                    metrics.http.labels(method, getattr(route, "path", ""), code)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 500

        async def metered_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        began = time.perf_counter()
        try:
            await self._app(scope, receive, metered_send)
        finally:
            self._counter(scope, status).inc()
            if _UNTIMED not in scope:
                self._metrics.http_seconds.observe(time.perf_counter() - began)

    def _counter(self, scope: Scope, status: int) -> Counter:
        method = scope["method"] if scope["method"] in _METHODS else "other"
        route = getattr(scope.get("route"), "path", "unmatched")
        key = (method, route, status)
        if key not in self._counters:
            self._counters[key] = self._metrics.http.labels(method, route, str(status))
        return self._counters[key]
