"""`python -m api`: the gateway as a process. Exit status 2 when it is set up wrongly."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
from contextlib import suppress
from ipaddress import ip_address

import uvloop
from prometheus_client import CollectorRegistry

from api.app import create_app
from api.gateway import Gateway
from api.server import GatewayServer, listen
from api.while_wanted import stop
from common.errors import SettingsError, StoreError, StoreRefused, StoreUnavailable
from common.settings import Settings, load_settings
from common.stores import open_store
from common.telemetry import configure_logging, process_registry, serve_metrics

log = logging.getLogger("api")

MISCONFIGURED = 2

#: How long a store that does not answer may delay the exit.
CLOSE_S = 1.0


def main() -> int:
    try:
        settings = load_settings()
        configure_logging("api", settings.log_level)
        # Its own start and stop messages say less than ours.
        logging.getLogger("uvicorn").setLevel(logging.WARNING)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(settings))
    except (SettingsError, StoreRefused) as error:
        print(f"api: {error}", file=sys.stderr)
        return MISCONFIGURED
    return 0


async def serve(settings: Settings) -> None:
    """Raises SettingsError, and StoreRefused: at once, or when the store comes up later."""
    refusals: list[StoreRefused] = []

    def refuse(error: StoreRefused) -> None:
        refusals.append(error)
        server.close()

    store = open_store(settings)
    try:
        app = create_app(store, settings, _registry(settings), refuse)
        server = GatewayServer(app, settings.host, settings.port)
        server.heed_signals()
        await _first_look(app.state.gateway)
        if server.should_exit:
            return
        # A full collection that walks every module's objects stops all requests for 30 ms.
        gc.collect()
        gc.freeze()
        listener = listen(settings.host, settings.port)
        if settings.api_keys_file is None and not ip_address(listener.getsockname()[0]).is_loopback:
            log.warning("anybody who can reach this address may use the gateway: it has no IWL_API_KEYS_FILE")
        await server.serve(sockets=[listener])
    finally:
        with suppress(StoreError, TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await store.aclose()
    if refusals:
        raise refusals[0]


def _registry(settings: Settings) -> CollectorRegistry:
    """With keys, Prometheus needs a door of its own. Raises SettingsError."""
    if settings.api_keys_file is None:
        return process_registry()
    return serve_metrics(settings.metrics_port, settings.host)


async def _first_look(gateway: Gateway) -> None:
    """Until told to stop. Raises StoreRefused. A store that is away is waited for while serving."""
    look, told = asyncio.create_task(gateway.trust()), asyncio.create_task(gateway.closing.wait())
    await asyncio.wait([look, told], return_when=asyncio.FIRST_COMPLETED)
    try:
        if look.done():
            look.result()
    except StoreUnavailable as error:
        log.warning("store away at start", extra={"error": str(error)})
    finally:
        await stop(look, told)


if __name__ == "__main__":
    sys.exit(main())
