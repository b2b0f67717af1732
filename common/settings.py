"""Every setting there is, read from `IWL_*` once, in a `__main__`. docs/operations.md has the table."""

from __future__ import annotations

import os
import re
import socket
import sys
from datetime import timedelta
from difflib import get_close_matches
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar
from uuid import uuid4

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from common.errors import SettingsError

PREFIX = "IWL_"
#: Variables that only tests read.
TESTS = "IWL_TEST_"

Loaded = TypeVar("Loaded", bound=BaseSettings)

#: A hundred years. Much longer ones have no end before the last datetime there is.
LONGEST_S = 3_155_760_000
Millis = Annotated[int, Field(ge=0, le=LONGEST_S * 1000)]
Seconds = Annotated[int, Field(ge=1, le=LONGEST_S)]
Count = Annotated[int, Field(ge=0)]
Port = Annotated[int, Field(ge=0, le=65535)]


def _name(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,48}", value):
        raise ValueError("use 1 to 48 letters, digits, '.', '_' or '-'")
    return value


def _namespace(value: str) -> str:
    # No ':', or the keys of one namespace could look like those of another.
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,48}|\{[A-Za-z0-9._-]{1,48}\}", value):
        raise ValueError("use 1 to 48 letters, digits, '.', '_' or '-', in braces if need be")
    return value


#: Names end up in key names and JSON written by scripts: a small alphabet needs no escaping there.
Name = Annotated[str, AfterValidator(_name)]


def _secret(value: str) -> str:
    # Sent as a header: an HTTP library would quote what cannot be one in its error.
    if not re.fullmatch(r"[\x21-\x7e]*", value := value.strip()):
        raise ValueError("use printable ASCII characters without spaces")
    return value


Secret = Annotated[str, AfterValidator(_secret)]
#: An empty one is none, as a Compose file passes it.
OptionalPath = Annotated[Path | None, BeforeValidator(lambda value: value or None)]


class Durability(StrEnum):
    SERVER = "server"
    AOF = "aof"
    REPLICA = "replica"


def default_instance() -> str:
    """The container's hostname (stable over a restart of the process), else a random name."""
    if Path("/.dockerenv").exists() or "KUBERNETES_SERVICE_HOST" in os.environ:
        return re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname())[:48]
    return uuid4().hex[:12]


class Settings(BaseSettings):
    """Durations end in `_ms` (milliseconds) or `_s` (seconds), sizes in `_bytes`."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, extra="ignore", frozen=True, hide_input_in_errors=True
    )

    redis_url: str = Field(default="redis://127.0.0.1:6379/0", repr=False)
    namespace: Annotated[str, AfterValidator(_namespace)] = "inference"
    durability: Durability = Durability.SERVER

    host: str = "127.0.0.1"
    port: Port = 8080
    api_keys_file: OptionalPath = None
    max_queue_depth: Count = 10_000
    max_body_bytes: Annotated[int, Field(ge=1)] = 1 << 20
    max_result_bytes: Annotated[int, Field(ge=1)] = 4 << 20
    result_ttl_s: Seconds = 86_400
    idempotency_ttl_s: Seconds = 86_400
    dlq_maxlen: Annotated[int, Field(ge=1)] = 100_000
    recent_max: Count = 1_000

    claim_idle_ms: Annotated[Millis, Field(ge=100)] = 30_000
    heartbeat_ms: Annotated[Millis, Field(ge=10)] | None = None
    max_attempts: Annotated[int, Field(ge=1, le=100)] = 3
    retry_backoff_ms: Millis = 500
    retry_backoff_max_ms: Millis = 30_000
    job_timeout_ms: Annotated[Millis, Field(ge=1)] = 600_000
    drain_ms: Millis = 20_000
    worker_id: Name | None = None
    instance: Name = Field(default_factory=default_instance)
    worker_concurrency: Annotated[int, Field(ge=1, le=256)] = 4

    backend: str = "mock"
    mock_latency_ms: Millis = 50
    mock_faults: bool = True
    vllm_url: str = "http://127.0.0.1:8000/v1"
    vllm_model: str | None = None
    vllm_api_key: Secret | None = Field(default=None, repr=False)

    min_workers: Count = 1
    max_workers: Annotated[int, Field(ge=1)] = 8
    scale_interval_ms: Annotated[Millis, Field(ge=10)] = 1_000
    scale_stale_ms: Annotated[Millis, Field(ge=100)] = 15_000
    scale_up_lag: Annotated[int, Field(ge=1)] = 1
    scale_down_lag: Count = 0
    scale_down_window_ms: Millis = 10_000

    metrics_port: Port = 9100
    log_level: Annotated[str, Field(pattern="^(DEBUG|INFO|WARNING|ERROR)$")] = "INFO"

    @model_validator(mode="after")
    def _fit_together(self) -> Settings:
        if self.heartbeat_ms is not None and self.heartbeat_ms * 4 > self.claim_idle_ms:
            raise ValueError("HEARTBEAT_MS: must be at most a quarter of IWL_CLAIM_IDLE_MS")
        given = self.model_fields_set
        if "idempotency_ttl_s" in given and self.idempotency_ttl_s > self.result_ttl_s:
            raise ValueError("IDEMPOTENCY_TTL_S: must be at most IWL_RESULT_TTL_S")
        if self.min_workers > self.max_workers:
            raise ValueError("MIN_WORKERS: must be at most IWL_MAX_WORKERS")
        if "retry_backoff_ms" in given and self.retry_backoff_ms > self.retry_backoff_max_ms:
            raise ValueError("RETRY_BACKOFF_MS: must be at most IWL_RETRY_BACKOFF_MAX_MS")
        return self

    @property
    def heartbeat(self) -> timedelta:
        """Time between two renewals: a quarter of the idle time, at most one second."""
        ms = self.heartbeat_ms if self.heartbeat_ms is not None else min(1000, self.claim_idle_ms // 4)
        return timedelta(milliseconds=ms)

    @property
    def idempotency_ttl(self) -> timedelta:
        """As set; left at its default it follows a shorter result TTL."""
        return timedelta(seconds=min(self.idempotency_ttl_s, self.result_ttl_s))

    @property
    def retry_backoff(self) -> timedelta:
        """As set; left at its default it follows a shorter maximum."""
        return timedelta(milliseconds=min(self.retry_backoff_ms, self.retry_backoff_max_ms))

    @property
    def claim_idle(self) -> timedelta:
        return timedelta(milliseconds=self.claim_idle_ms)

    @property
    def drain(self) -> timedelta:
        return timedelta(milliseconds=self.drain_ms)


class ClientSettings(BaseSettings):
    """What the `iwl` client commands read."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, extra="ignore", frozen=True, hide_input_in_errors=True
    )

    api_url: str = "http://127.0.0.1:8080"
    api_key: Secret | None = Field(default=None, repr=False)


def load_settings(**overrides: Any) -> Settings:
    """Raises SettingsError with one line naming the variable. Overrides win over the environment."""
    return _load(Settings, **overrides)


def load_client_settings() -> ClientSettings:
    """Raises SettingsError."""
    return _load(ClientSettings)


def set_by_the_user(*names: str) -> list[str]:
    """Which of these settings the environment holds, as variables."""
    variables = [f"{PREFIX}{name.upper()}" for name in names]
    return [variable for variable in variables if variable in os.environ]


def _load(kind: type[Loaded], **overrides: Any) -> Loaded:
    known = {f"{PREFIX}{name.upper()}" for each in (Settings, ClientSettings) for name in each.model_fields}
    ours = {name for name in os.environ if name.startswith(PREFIX) and not name.startswith(TESTS)}
    for name in sorted(ours - known):
        _warn_of_a_typo(name, *get_close_matches(name, sorted(known), n=1))
    try:
        return kind(**overrides)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = "_".join(str(part) for part in first["loc"]).upper()
        message = str(first["msg"]).removeprefix("Value error, ")
        line = f"{PREFIX}{name}: {message}" if name else f"{PREFIX}{message}"
        raise SettingsError(line) from None


@cache
def _warn_of_a_typo(name: str, nearest: str = "") -> None:
    hint = f"; did you mean {nearest}?" if nearest else ""
    print(f"There is no setting {name}{hint}", file=sys.stderr, flush=True)


def child_environment(**overrides: str) -> dict[str, str]:
    """This process's environment for a child, with `IWL_*` overrides given without the prefix."""
    return {**os.environ, **{f"{PREFIX}{name.upper()}": value for name, value in overrides.items()}}
