"""All faults, in the order in which they are run, and the labs that they are run in."""

from __future__ import annotations

from lab.faults import jobs, server, services, vandals, workers
from lab.faults.fault import Fault

WORKERS = 3

#: All that the runs depend on, so that nobody's environment changes what they show. Six slots in all.
SETTINGS = {
    "namespace": "inference",
    "durability": "server",
    "api_keys_file": "",
    "backend": "mock",
    "mock_faults": "1",
    "worker_concurrency": "2",
    "min_workers": str(WORKERS),
    "claim_idle_ms": "2000",
    "heartbeat_ms": "400",
    "max_attempts": "3",
    "retry_backoff_ms": "100",
    "retry_backoff_max_ms": "100",
    "max_queue_depth": "0",
    "result_ttl_s": "3600",
    "idempotency_ttl_s": "3600",
    "dlq_maxlen": "1000",
    "job_timeout_ms": "60000",
    "drain_ms": "700",
    "scale_interval_ms": "100",
    "scale_stale_ms": "15000",
    "scale_up_lag": "1",
    "scale_down_lag": "0",
    "scale_down_window_ms": "500",
    "log_level": "INFO",
}

FAULTS: tuple[Fault, ...] = (
    workers.KILL_WORKER,
    workers.KILL_WORKER_FOR_GOOD,
    workers.PAUSE_WORKER,
    workers.DRAIN,
    services.KILL_API,
    services.KILL_SCALER,
    server.KILL_REDIS,
    server.PAUSE_REDIS,
    server.FULL_REDIS,
    vandals.FLUSH_GROUP,
    vandals.LOST_ENTRIES,
    jobs.POISON,
    jobs.HANG,
    services.SCALE,
)
