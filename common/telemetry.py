"""Every instrument and the log format. One process per container, so no multiprocess mode.

No job or worker ids as labels. Every label value that a dashboard or alert can ask for exists from the
start, so that "never happened" reads 0 and not "no data". Times are seconds.
"""

from __future__ import annotations

import logging
import math
import sys
from datetime import UTC, datetime
from enum import StrEnum

import msgspec
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    ProcessCollector,
    start_http_server,
)

from common.errors import SettingsError
from common.fleet import Backlog, Reason, Tended
from common.job import TERMINAL, Cause, JobStatus, Outcome

#: From a mock's 5 ms to a long generation's 10 minutes.
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class Refusal(StrEnum):
    """Why the gateway did not accept a job."""

    FULL = "full"
    OWNER_FULL = "owner_full"
    INVALID = "invalid"
    CONFLICT = "conflict"
    UNAVAILABLE = "unavailable"
    TOO_LARGE = "too_large"


def _loop_lag(registry: CollectorRegistry) -> Gauge:
    return Gauge("iwl_loop_lag_seconds", "Delay of the event loop's last heartbeat.", registry=registry)


def _seconds(name: str, text: str, registry: CollectorRegistry) -> Histogram:
    return Histogram(name, text, buckets=SECONDS, registry=registry)


class GatewayMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.submitted = Counter("iwl_jobs_submitted", "Jobs accepted.", registry=registry)
        self.replayed = Counter("iwl_jobs_replayed", "Submits that were replays.", registry=registry)
        self.refused = Counter("iwl_jobs_refused", "Submits refused.", ["reason"], registry=registry)
        self.http = Counter(
            "iwl_http_requests",
            "HTTP requests.",
            ["method", "route", "code"],
            registry=registry,
        )
        self.http_seconds = _seconds(
            "iwl_http_request_seconds", "Time to answer, long polls and event streams left out.", registry
        )
        self.streams = Gauge("iwl_event_streams", "Open event streams.", registry=registry)
        self.loop_lag = _loop_lag(registry)
        self.backlog = BacklogGauges(registry)
        for reason in Refusal:
            self.refused.labels(reason)


class KeeperMetrics:
    """What workers and scalers count alike: the jobs they end, and what they find when they keep time."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.jobs = Counter(
            "iwl_jobs_ended", "Jobs this process ended, by status.", ["status"], registry=registry
        )
        self.failures = Counter("iwl_job_failures", "Jobs failed, by cause.", ["cause"], registry=registry)
        self.promoted = Counter("iwl_retries_promoted", "Delayed retries queued again.", registry=registry)
        self.requeued = Counter(
            "iwl_jobs_requeued", "Jobs whose lost entry was added again.", registry=registry
        )
        self.lost = Counter(
            "iwl_jobs_lost", "Jobs ended because entry and request were gone.", registry=registry
        )
        # The gateway cancels.
        for status in TERMINAL - {JobStatus.CANCELLED}:
            self.jobs.labels(status)
        for cause in Cause:
            self.failures.labels(cause)

    def tended(self, tended: Tended) -> None:
        self.promoted.inc(tended.promoted)
        self.requeued.inc(tended.requeued)
        self.lost.inc(tended.lost)
        self.failed(Cause.LOST, tended.lost)
        self.jobs.labels(JobStatus.EXPIRED).inc(tended.expired)

    def failed(self, cause: Cause, jobs: int) -> None:
        self.jobs.labels(JobStatus.FAILED).inc(jobs)
        self.failures.labels(cause).inc(jobs)


class WorkerMetrics(KeeperMetrics):
    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        self.attempts = Counter("iwl_attempts", "Attempts by outcome.", ["outcome"], registry=registry)
        self.reclaims = Counter("iwl_reclaims", "Attempts begun after another was lost.", registry=registry)
        self.short_circuits = Counter(
            "iwl_short_circuits", "Deliveries of jobs that had already ended, not run.", registry=registry
        )
        self.discarded = Counter(
            "iwl_entries_discarded", "Deliveries without a job behind them, removed.", registry=registry
        )
        self.stale_writes = Counter(
            "iwl_stale_writes", "Outcomes refused because the lease was lost.", registry=registry
        )
        self.model_calls = Counter("iwl_model_calls", "Calls to the backend.", registry=registry)
        self.queue_seconds = _seconds("iwl_job_queue_seconds", "Acceptance to first start.", registry)
        self.crashed_out = Counter(
            "iwl_jobs_crashed_out", "Jobs ended at a claim, their budget spent by crashes.", registry=registry
        )
        self.run_seconds = _seconds("iwl_job_run_seconds", "Start to end of an attempt.", registry)
        self.total_seconds = _seconds(
            "iwl_job_total_seconds", "Acceptance to the end of a job that needed one attempt.", registry
        )
        self.busy = Gauge("iwl_worker_busy", "Jobs running on this worker.", registry=registry)
        self.slots = Gauge("iwl_worker_slots", "Jobs this worker can run at once.", registry=registry)
        self.ready = Gauge(
            "iwl_worker_ready",
            "1 when the backend is, claims and outcomes go through, and it is not draining.",
            registry=registry,
        )
        self.active = Gauge("iwl_worker_active", "1 when the scale lets this worker read.", registry=registry)
        self.tokens = Counter("iwl_tokens", "Tokens through the model.", ["direction"], registry=registry)
        self.loop_lag = _loop_lag(registry)
        for outcome in Outcome:
            self.attempts.labels(outcome)
        for direction in ("in", "out"):
            self.tokens.labels(direction)


class BacklogGauges:
    """The store's counts, as last read by the process that exports them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.lag = Gauge("iwl_queue_lag", "Queued and never delivered; NaN when unknown.", registry=registry)
        self.pending = Gauge(
            "iwl_queue_pending", "Delivered, not settled; NaN when unknown.", registry=registry
        )
        self.retrying = Gauge("iwl_queue_retrying", "Waiting for a delayed retry.", registry=registry)
        self.dead_letters = Gauge("iwl_dead_letters", "Length of the dead-letter queue.", registry=registry)
        self.unaccounted = Gauge(
            "iwl_jobs_unaccounted", "Submitted less all that is known of; must be 0.", registry=registry
        )
        self.jobs = Gauge("iwl_jobs", "Jobs by state.", ["state"], registry=registry)
        for state in ("queued", "running", "retrying", "succeeded", "failed", "cancelled", "expired"):
            self.jobs.labels(state)

    def show(self, backlog: Backlog) -> None:
        self.lag.set(math.nan if backlog.lag is None else backlog.lag)
        self.pending.set(math.nan if backlog.pending is None else backlog.pending)
        self.retrying.set(backlog.retrying)
        self.dead_letters.set(backlog.dead_letters)
        self.unaccounted.set(backlog.unaccounted)
        for state, count in (
            ("queued", backlog.queued),
            ("running", backlog.running),
            ("retrying", backlog.retrying),
            ("succeeded", backlog.succeeded),
            ("failed", backlog.failed),
            ("cancelled", backlog.cancelled),
            ("expired", backlog.expired),
        ):
            self.jobs.labels(state).set(count)

    def show_unknown(self) -> None:
        """The store cannot be read: NaN, which no alert reads as "fine"."""
        for gauge in (self.lag, self.pending, self.retrying, self.unaccounted):
            gauge.set(math.nan)


class ScalerMetrics(KeeperMetrics):
    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        self.desired = Gauge("iwl_workers_desired", "Published worker count.", registry=registry)
        self.live = Gauge("iwl_workers_live", "Workers seen lately.", registry=registry)
        self.busy = Gauge("iwl_workers_busy", "Workers with a job.", registry=registry)
        self.leader = Gauge("iwl_scaler_leader", "1 when this scaler leads.", registry=registry)
        self.age = Gauge("iwl_scale_age_seconds", "Age of the last observed input.", registry=registry)
        self.decisions = Counter("iwl_scale_decisions", "Decisions by reason.", ["reason"], registry=registry)
        self.loop_lag = _loop_lag(registry)
        self.backlog = BacklogGauges(registry)
        for reason in Reason:
            self.decisions.labels(reason)


#: Attributes every LogRecord has; whatever else it carries came in `extra` and goes into the line.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, service, message, then the `extra` fields (job_id, attempt)."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "service": self._service,
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {key: value for key, value in vars(record).items() if key not in _STANDARD}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        try:
            return msgspec.json.encode(line, enc_hook=str).decode()
        except (UnicodeEncodeError, TypeError, OverflowError):
            # A lone surrogate, as file names bring it, or keys that are no text: repr escapes all of them.
            return msgspec.json.encode({key: ascii(value) for key, value in line.items()}).decode()


def configure_logging(service: str, level: str) -> None:
    """JSON lines on standard error, for this process."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(service))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.getLogger("httpx").setLevel(logging.WARNING)


def process_registry() -> CollectorRegistry:
    """A registry that has this process's own figures: memory, CPU, open files, garbage collection."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


def serve_metrics(port: int, host: str = "0.0.0.0") -> CollectorRegistry:
    """Prometheus on its own thread, so that scrapes are answered while the event loop is busy; 0 is off.

    Raises SettingsError."""
    registry = process_registry()
    if port:
        try:
            start_http_server(port, addr=host, registry=registry)
        except OSError as error:
            raise SettingsError(f"IWL_METRICS_PORT: cannot listen on {port}: {error.strerror}") from error
    return registry
