"""`python -m scaler`: settings in, exit code out. 2 is a setting or a store that cannot work."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from contextlib import suppress
from datetime import timedelta

import uvloop

from common.errors import LabError, SettingsError, StoreRefused, StoreUnavailable
from common.patience import Patience
from common.settings import Settings, load_settings
from common.store import Store
from common.stores import open_store
from common.telemetry import configure_logging, serve_metrics
from scaler.gauges import Gauges
from scaler.loop import Scaler, pause

log = logging.getLogger("scaler")

#: How long a command to a store that does not answer may delay the exit.
LAST_WORDS = timedelta(seconds=1)


async def serve(settings: Settings) -> None:
    """Runs until SIGTERM or SIGINT. Raises SettingsError, StoreRefused."""
    stop = asyncio.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, stop.set)
    gauges = Gauges(serve_metrics(settings.metrics_port))
    scaler = Scaler(store := open_store(settings), settings, gauges)
    try:
        work = asyncio.create_task(_scale(scaler, store, stop))
        await asyncio.wait((work, asyncio.create_task(stop.wait())), return_when=asyncio.FIRST_COMPLETED)
        async with asyncio.timeout(LAST_WORDS.total_seconds()):
            await work
    except TimeoutError:
        log.warning("the store does not answer; leaving without it")
    finally:
        with suppress(StoreUnavailable, TimeoutError):
            async with asyncio.timeout(LAST_WORDS.total_seconds()):
                await store.aclose()
    log.info("stopped")


async def _scale(scaler: Scaler, store: Store, stop: asyncio.Event) -> None:
    patience = Patience("Opening the store")
    while not stop.is_set():
        try:
            await store.start()
        except StoreUnavailable as error:
            await pause(stop, patience.failed(error))
        else:
            patience.succeeded()
            log.info("started")
            return await scaler.run(stop)


def main() -> int:
    try:
        settings = load_settings()
        configure_logging("scaler", settings.log_level)
        uvloop.run(serve(settings))
    except (SettingsError, StoreRefused) as error:
        return _refuse(error)
    return 0


def _refuse(error: LabError) -> int:
    print(f"scaler: {error}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
