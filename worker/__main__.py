"""`python -m worker`: one worker process, set up by IWL_* variables."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys

import uvloop

from common.errors import SettingsError, SlotTaken, StoreRefused
from common.settings import Settings, load_settings
from common.stores import open_store
from common.telemetry import WorkerMetrics, configure_logging, serve_metrics
from worker.backends import open_backend
from worker.loop import Worker

log = logging.getLogger("worker")


def main() -> int:
    try:
        settings = load_settings()
        configure_logging("worker", settings.log_level)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(work(settings))
    except (SettingsError, StoreRefused, SlotTaken) as error:
        print(f"worker: {error}", file=sys.stderr)
        return 2
    return 0


async def work(settings: Settings) -> None:
    metrics = WorkerMetrics(serve_metrics(settings.metrics_port))
    worker = Worker(settings, open_store(settings), open_backend(settings), metrics)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, worker.drain)
    log.info("starting", extra={"instance": settings.instance, "backend": settings.backend})
    await worker.run()
    log.info("left")


if __name__ == "__main__":
    sys.exit(main())
