"""Settings: the defaults that the documentation promises, and one clear line for each that cannot work."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from common import settings as module
from common.errors import SettingsError
from common.settings import (
    ClientSettings,
    Durability,
    Settings,
    child_environment,
    load_client_settings,
    load_settings,
    set_by_the_user,
)
from common.stores import open_store

SetEnv = Callable[[str, str], None]


@pytest.fixture
def set_env(monkeypatch: pytest.MonkeyPatch) -> SetEnv:
    return monkeypatch.setenv


DEFAULTS: dict[str, object] = {
    "redis_url": "redis://127.0.0.1:6379/0",
    "namespace": "inference",
    "durability": Durability.SERVER,
    "host": "127.0.0.1",
    "port": 8080,
    "api_keys_file": None,
    "max_queue_depth": 10_000,
    "max_body_bytes": 1024 * 1024,
    "max_result_bytes": 4 * 1024 * 1024,
    "result_ttl_s": 86_400,
    "idempotency_ttl_s": 86_400,
    "dlq_maxlen": 100_000,
    "recent_max": 1_000,
    "claim_idle_ms": 30_000,
    "heartbeat_ms": None,
    "max_attempts": 3,
    "retry_backoff_ms": 500,
    "retry_backoff_max_ms": 30_000,
    "job_timeout_ms": 600_000,
    "drain_ms": 20_000,
    "worker_id": None,
    "worker_concurrency": 4,
    "backend": "mock",
    "mock_latency_ms": 50,
    "mock_faults": True,
    "vllm_url": "http://127.0.0.1:8000/v1",
    "vllm_model": None,
    "vllm_api_key": None,
    "min_workers": 1,
    "max_workers": 8,
    "scale_interval_ms": 1_000,
    "scale_stale_ms": 15_000,
    "scale_up_lag": 1,
    "scale_down_lag": 0,
    "scale_down_window_ms": 10_000,
    "metrics_port": 9100,
    "log_level": "INFO",
}


def test_defaults() -> None:
    found = load_settings().model_dump(exclude={"instance"})
    assert found == DEFAULTS


def test_the_client_talks_to_the_gateway_s_default_address() -> None:
    assert ClientSettings().api_url == "http://127.0.0.1:8080"


BAD = [
    # one row per way to be wrong: variable, value
    ("IWL_NAMESPACE", ""),
    ("IWL_NAMESPACE", "two words"),
    ("IWL_NAMESPACE", "lab:job:other"),
    ("IWL_NAMESPACE", "{half"),
    ("IWL_NAMESPACE", "a" * 49),
    ("IWL_DURABILITY", "always"),
    ("IWL_PORT", "-1"),
    ("IWL_PORT", "65536"),
    ("IWL_PORT", "http"),
    ("IWL_MAX_QUEUE_DEPTH", "-1"),
    ("IWL_MAX_BODY_BYTES", "0"),
    ("IWL_MAX_RESULT_BYTES", "0"),
    ("IWL_RESULT_TTL_S", "0"),
    ("IWL_RESULT_TTL_S", "64000000000"),
    ("IWL_JOB_TIMEOUT_MS", "64000000000000"),
    ("IWL_IDEMPOTENCY_TTL_S", "0"),
    ("IWL_IDEMPOTENCY_TTL_S", "86401"),
    ("IWL_DLQ_MAXLEN", "0"),
    ("IWL_RECENT_MAX", "-1"),
    ("IWL_CLAIM_IDLE_MS", "99"),
    ("IWL_CLAIM_IDLE_MS", "30s"),
    ("IWL_CLAIM_IDLE_MS", ""),
    ("IWL_HEARTBEAT_MS", "9"),
    ("IWL_HEARTBEAT_MS", "7501"),
    ("IWL_MAX_ATTEMPTS", "0"),
    ("IWL_MAX_ATTEMPTS", "101"),
    ("IWL_MAX_ATTEMPTS", "2.5"),
    ("IWL_RETRY_BACKOFF_MS", "-1"),
    ("IWL_RETRY_BACKOFF_MS", "30001"),
    ("IWL_RETRY_BACKOFF_MAX_MS", "-1"),
    ("IWL_JOB_TIMEOUT_MS", "0"),
    ("IWL_DRAIN_MS", "-1"),
    ("IWL_WORKER_ID", "worker 1"),
    ("IWL_WORKER_ID", 'worker"1'),
    ("IWL_WORKER_ID", ""),
    ("IWL_INSTANCE", "a/b"),
    ("IWL_WORKER_CONCURRENCY", "0"),
    ("IWL_WORKER_CONCURRENCY", "257"),
    ("IWL_MOCK_LATENCY_MS", "-1"),
    ("IWL_MOCK_FAULTS", "perhaps"),
    ("IWL_VLLM_API_KEY", "two words"),
    ("IWL_VLLM_API_KEY", "two\nlines"),
    ("IWL_VLLM_API_KEY", "schlüssel"),
    ("IWL_MIN_WORKERS", "-1"),
    ("IWL_MIN_WORKERS", "9"),
    ("IWL_MAX_WORKERS", "0"),
    ("IWL_SCALE_INTERVAL_MS", "9"),
    ("IWL_SCALE_STALE_MS", "99"),
    ("IWL_SCALE_UP_LAG", "0"),
    ("IWL_SCALE_DOWN_LAG", "-1"),
    ("IWL_SCALE_DOWN_WINDOW_MS", "-1"),
    ("IWL_METRICS_PORT", "65536"),
    ("IWL_LOG_LEVEL", "LOUD"),
]


@pytest.mark.parametrize(("variable", "value"), BAD)
def test_a_bad_setting_is_one_line_that_names_it(set_env: SetEnv, variable: str, value: str) -> None:
    set_env(variable, value)
    with pytest.raises(SettingsError) as refused:
        load_settings()
    line = str(refused.value)
    assert line.startswith(f"{variable}: ")
    assert "\n" not in line
    assert not variable.endswith("_KEY") or value not in line


def test_every_setting_that_can_be_wrong_is_tried() -> None:
    free_text = {"redis_url", "host", "api_keys_file", "backend", "vllm_url", "vllm_model"}
    tried = {variable.removeprefix("IWL_").lower() for variable, _ in BAD}
    assert tried == set(Settings.model_fields) - free_text


def test_a_secret_never_shows(set_env: SetEnv) -> None:
    for variable in ("IWL_VLLM_API_KEY", "IWL_API_KEY"):
        set_env(variable, "s3cret")
    set_env("IWL_REDIS_URL", "redis://:s3cret@127.0.0.1")
    assert "s3cret" not in repr(load_settings()) + repr(load_client_settings())


def test_a_secret_may_end_in_a_newline(set_env: SetEnv) -> None:
    """As it comes out of a file."""
    set_env("IWL_API_KEY", "s3cret\n")
    assert load_client_settings().api_key == "s3cret"


def test_a_bad_key_of_a_client_is_one_line_without_it(set_env: SetEnv) -> None:
    set_env("IWL_API_KEY", "s3 cret")
    with pytest.raises(SettingsError, match=r"^IWL_API_KEY: use printable") as refused:
        load_client_settings()
    assert "cret" not in str(refused.value)


def test_an_empty_keys_file_is_none(set_env: SetEnv) -> None:
    set_env("IWL_API_KEYS_FILE", "")
    assert load_settings().api_keys_file is None


@pytest.mark.parametrize("url", ["redis://:se/cret@host/0", "redis://host:cret/0", "redis://[cret"])
def test_a_store_url_that_cannot_be_read_is_not_shown(url: str) -> None:
    """A password with a slash makes the rest of it look like a port."""
    with pytest.raises(SettingsError, match=r"^IWL_REDIS_URL: ") as refused:
        open_store(Settings(redis_url=url))
    assert "cret" not in str(refused.value)
    assert refused.value.__cause__ is None


@pytest.mark.parametrize(
    ("variable", "value", "name", "expected"),
    [
        ("IWL_NAMESPACE", "{inference}", "namespace", "{inference}"),
        ("IWL_MIN_WORKERS", "0", "min_workers", 0),
        ("IWL_MAX_QUEUE_DEPTH", "0", "max_queue_depth", 0),
        ("IWL_RETRY_BACKOFF_MS", "0", "retry_backoff_ms", 0),
        ("IWL_MOCK_FAULTS", "0", "mock_faults", False),
        ("IWL_DURABILITY", "aof", "durability", Durability.AOF),
        ("IWL_HEARTBEAT_MS", "7500", "heartbeat_ms", 7500),
        ("IWL_MAX_ATTEMPTS", "1", "max_attempts", 1),
        ("IWL_METRICS_PORT", "0", "metrics_port", 0),
    ],
)
def test_a_setting_comes_from_its_variable(
    set_env: SetEnv, variable: str, value: str, name: str, expected: object
) -> None:
    set_env(variable, value)
    assert getattr(load_settings(), name) == expected


@pytest.mark.parametrize(("idle_ms", "heartbeat_ms"), [(30_000, 1000), (4000, 1000), (2000, 500), (100, 25)])
def test_the_heartbeat_is_a_quarter_of_the_idle_time_and_at_most_a_second(
    idle_ms: int, heartbeat_ms: int
) -> None:
    assert Settings(claim_idle_ms=idle_ms).heartbeat == timedelta(milliseconds=heartbeat_ms)


def test_a_given_heartbeat_holds() -> None:
    assert Settings(claim_idle_ms=8000, heartbeat_ms=2000).heartbeat == timedelta(seconds=2)


def test_a_default_follows_the_setting_that_bounds_it(set_env: SetEnv) -> None:
    """One short variable is enough: the defaults beside it must not refuse it."""
    set_env("IWL_RESULT_TTL_S", "60")
    set_env("IWL_RETRY_BACKOFF_MAX_MS", "100")
    set_env("IWL_CLAIM_IDLE_MS", "400")
    settings = load_settings()
    assert settings.idempotency_ttl == timedelta(seconds=60)
    assert settings.retry_backoff == timedelta(milliseconds=100)
    assert settings.heartbeat == timedelta(milliseconds=100)


def test_durations() -> None:
    settings = Settings(claim_idle_ms=1500, drain_ms=0)
    assert settings.claim_idle == timedelta(seconds=1.5)
    assert settings.drain == timedelta(0)


def test_outside_a_container_each_process_is_an_instance_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_there(_: Path) -> bool:
        return False

    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setattr(Path, "exists", not_there)
    assert Settings().instance != Settings().instance


def test_in_a_container_the_instance_is_its_hostname(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setattr(module.socket, "gethostname", lambda: "pod_7.example/x")
    assert Settings().instance == "pod_7.example-x"


def test_settings_cannot_be_changed_later() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Settings().port = 1  # pyright: ignore[reportAttributeAccessIssue]


def test_a_child_inherits_the_environment_and_takes_overrides(set_env: SetEnv) -> None:
    set_env("IWL_PORT", "1")
    set_env("IWL_NAMESPACE", "mine")
    child = child_environment(port="2", redis_url="redis://elsewhere/0")
    assert (child["IWL_PORT"], child["IWL_NAMESPACE"]) == ("2", "mine")
    assert child["IWL_REDIS_URL"] == "redis://elsewhere/0"
    assert "PATH" in child


def test_a_name_that_is_no_setting_is_told_once_with_the_nearest_one(
    set_env: SetEnv, capfd: pytest.CaptureFixture[str]
) -> None:
    set_env("IWL_MAX_ATEMPTS", "1")
    set_env("IWL_QUITE_ELSE", "1")
    set_env("IWL_TEST_SOMETHING", "1")
    set_env("IWL_API_URL", "http://127.0.0.1:1")
    for _ in range(2):
        load_settings()
        load_client_settings()
    assert capfd.readouterr().err.splitlines() == [
        "There is no setting IWL_MAX_ATEMPTS; did you mean IWL_MAX_ATTEMPTS?",
        "There is no setting IWL_QUITE_ELSE",
    ]


@pytest.mark.parametrize(
    ("variable", "value", "line"),
    [
        ("IWL_HEARTBEAT_MS", "7501", "IWL_HEARTBEAT_MS: must be at most a quarter of IWL_CLAIM_IDLE_MS"),
        ("IWL_MIN_WORKERS", "9", "IWL_MIN_WORKERS: must be at most IWL_MAX_WORKERS"),
    ],
)
def test_both_settings_of_a_pair_have_their_whole_names(
    set_env: SetEnv, variable: str, value: str, line: str
) -> None:
    set_env(variable, value)
    with pytest.raises(SettingsError) as refused:
        load_settings()
    assert str(refused.value) == line


def test_what_the_user_has_set_is_known(set_env: SetEnv) -> None:
    set_env("IWL_PORT", "8080")
    assert set_by_the_user("port", "metrics_port") == ["IWL_PORT"]
