"""What is deployed fits the code: images, Compose files, dashboards and alerts."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from common.settings import PREFIX, Settings
from common.telemetry import GatewayMetrics, ScalerMetrics, WorkerMetrics
from tests.repository import ROOT, files, name, tree

COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
KEYS = yaml.safe_load((ROOT / "docker-compose.keys.yml").read_text())
GPU = yaml.safe_load((ROOT / "docker-compose.gpu.yml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]

ALERTS = [
    rule
    for group in yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text())["groups"]
    for rule in group["rules"]
]
DASHBOARD = json.loads((ROOT / "deploy/grafana/dashboards/lab.json").read_text())


def default(expression: str) -> str:
    """`${NAME:-value}` as it stands when nothing is set."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", expression)


# ---------------------------------------------------------------- Compose


def test_compose_passes_every_setting_that_is_not_its_own() -> None:
    """Only what the stack itself decides is left out: addresses, ports, identities and paths."""
    fixed = {"host", "port", "metrics_port", "worker_id", "instance", "api_keys_file"}
    passed = {variable.removeprefix(PREFIX).lower() for variable in COMPOSE["x-settings"]}
    assert passed == set(Settings.model_fields) - fixed


def test_compose_repeats_no_default() -> None:
    """A variable without a value is passed on when it is set; its default lives in the code alone."""
    assert {key for key, value in COMPOSE["x-settings"].items() if value is not None} == {"IWL_REDIS_URL"}


#: A client that does its work and ends; all others stay.
ERRANDS = {service for service, spec in SERVICES.items() if spec.get("profiles") == ["load"]}


@pytest.mark.parametrize("service", [*sorted(SERVICES.keys() - ERRANDS), "vllm"])
def test_every_service_is_watched_and_restarted(service: str) -> None:
    spec = {**SERVICES, **GPU["services"]}[service] if service == "vllm" else SERVICES[service]
    assert spec["restart"] == "unless-stopped"
    assert "healthcheck" in spec or service == "api"  # the image's own


@pytest.mark.parametrize("service", SERVICES)
def test_every_service_has_a_memory_limit(service: str) -> None:
    assert SERVICES[service]["mem_limit"]


@pytest.mark.parametrize("service", SERVICES)
def test_no_container_is_root_or_can_become_it(service: str) -> None:
    spec = SERVICES[service]
    assert spec["init"]
    assert spec["cap_drop"] == ["ALL"]
    assert spec["security_opt"] == ["no-new-privileges:true"]
    # Our image and Grafana's name their own.
    assert "user" in spec or service in {"api", "worker", "scaler", "iwl", "grafana"}


def test_the_engine_is_a_root_without_rights() -> None:
    assert GPU["services"]["vllm"]["cap_drop"] == ["ALL"]
    assert GPU["services"]["vllm"]["security_opt"] == ["no-new-privileges:true"]


@pytest.mark.parametrize("service", SERVICES)
def test_a_container_writes_to_its_volumes_only(service: str) -> None:
    assert SERVICES[service]["read_only"]


def test_keys_are_for_the_gateway_alone_and_cannot_be_written() -> None:
    [(service, spec)] = KEYS["services"].items()
    assert service == "api"
    [volume] = spec["volumes"]
    folder, mode = volume.rsplit("}:", 1)[1].split(":")
    assert mode == "ro"
    assert spec["environment"]["IWL_API_KEYS_FILE"].startswith(f"{folder}/")


def test_an_image_is_built_by_one_service() -> None:
    """Built by several, it would get another label each time, and `up` would restart workers for nothing."""
    built = [spec["image"] for spec in SERVICES.values() if "build" in spec]
    assert len(built) == len(set(built)) == 2
    users = [service for service, spec in SERVICES.items() if spec["image"] in built and "build" not in spec]
    assert users == ["worker", "scaler"]
    assert all(SERVICES[service]["pull_policy"] == "never" for service in users)


def test_nothing_is_published_beyond_this_machine() -> None:
    published = {service: spec["ports"] for service, spec in SERVICES.items() if "ports" in spec}
    assert set(published) == {"api", "prometheus", "grafana"}
    for ports in published.values():
        assert all(default(port).startswith("127.0.0.1:") for port in ports)
    assert SERVICES["prometheus"]["profiles"] == SERVICES["grafana"]["profiles"] == ["observe"]


def test_a_worker_may_drain_before_it_is_killed() -> None:
    grace = int(default(SERVICES["worker"]["stop_grace_period"]).removesuffix("s"))
    assert grace * 1000 > Settings().drain_ms + 5_000


def test_workers_have_no_fixed_name() -> None:
    assert "container_name" not in SERVICES["worker"]
    assert "IWL_WORKER_ID" not in SERVICES["worker"]["environment"]


def test_the_store_is_no_cache() -> None:
    command = " ".join(default(str(word)) for word in SERVICES["redis"]["command"])
    assert "--appendonly yes" in command
    assert "--appendfsync everysec" in command
    assert "--maxmemory-policy noeviction" in command


def test_the_model_is_named_once() -> None:
    text = (ROOT / "docker-compose.gpu.yml").read_text()
    assert len(re.findall(r"\$\{VLLM_MODEL", text)) == 1
    assert "IWL_VLLM_MODEL:" not in text
    image = default(GPU["services"]["vllm"]["image"])
    assert re.fullmatch(r"vllm/vllm-openai:v\d+\.\d+\.\d+", image)


@pytest.mark.parametrize("service", ["worker", "scaler"])
def test_scaler_and_workers_agree_on_the_slots(service: str) -> None:
    """The scaler divides the backlog by them."""
    expected = GPU["services"]["worker"]["environment"]["IWL_WORKER_CONCURRENCY"]
    assert GPU["services"][service]["environment"]["IWL_WORKER_CONCURRENCY"] == expected


def images() -> Iterator[str]:
    for spec in (*SERVICES.values(), *GPU["services"].values()):
        if "image" in spec:
            yield default(spec["image"])


def test_every_image_has_a_version() -> None:
    assert not [image for image in images() if ":" not in image or image.endswith(":latest")]


# ---------------------------------------------------------------- image

DOCKERFILE = (ROOT / "Dockerfile").read_text()


def test_an_old_engine_can_build_the_image() -> None:
    assert not re.search(r"^# *syntax=|<<-?['\"]?\w|--link|--mount", DOCKERFILE, re.MULTILINE)


def test_dependencies_are_installed_before_the_code_is_copied() -> None:
    assert DOCKERFILE.index("pip") < DOCKERFILE.index("COPY common")
    assert "constraints.txt" in DOCKERFILE


def test_the_image_does_not_run_as_root() -> None:
    assert re.search(r"^USER [1-9]\d*:[1-9]\d*$", DOCKERFILE, re.MULTILINE)


@pytest.mark.parametrize("path", files("Dockerfile", "docker-compose*.yml"), ids=name)
def test_health_checks_need_no_curl(path: Any) -> None:
    assert "curl" not in path.read_text()


# ---------------------------------------------------------------- metrics


def registries() -> list[CollectorRegistry]:
    made: list[CollectorRegistry] = []
    for kind in (GatewayMetrics, WorkerMetrics, ScalerMetrics):
        registry = CollectorRegistry()
        kind(registry)
        made.append(registry)
    return made


SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
FAMILIES = {family.name: family for registry in registries() for family in registry.collect()}
SERIES = {
    family.name + suffix: family.name for family in FAMILIES.values() for suffix in SUFFIXES[family.type]
}
#: (series, label, value) that exist before anything happened.
INITIAL = {
    (sample.name, label, value)
    for registry in registries()
    for family in registry.collect()
    for sample in family.samples
    for label, value in sample.labels.items()
}


def expressions() -> Iterator[tuple[str, str]]:
    """(where, PromQL)"""
    for rule in ALERTS:
        yield f"alert {rule['alert']}", rule["expr"]
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", []):
            yield f"panel {panel['title']}", target["expr"]


EXPRESSIONS = list(expressions())


@pytest.mark.parametrize(("where", "expression"), EXPRESSIONS)
def test_every_metric_that_is_asked_for_exists(where: str, expression: str) -> None:
    assert set(re.findall(r"\biwl_\w+", expression)) <= set(SERIES), where


@pytest.mark.parametrize(("where", "expression"), EXPRESSIONS)
def test_every_label_value_that_is_asked_for_exists_from_the_start(where: str, expression: str) -> None:
    for series, matchers in re.findall(r"\b(iwl_\w+)\{([^}]*)\}", expression):
        for label, values in re.findall(r'(\w+)=~?"([^"]*)"', matchers):
            if label in ("job", "instance") or "." in values:
                continue
            for value in values.split("|"):
                assert (series, label, value) in INITIAL, where


#: Each with a handful of values. An id would make a series of its own, for ever.
LABELS = {"reason", "method", "route", "code", "status", "cause", "outcome", "direction", "state"}


def test_no_metric_has_a_job_or_a_worker_as_label() -> None:
    calls = [node for node in ast.walk(tree(ROOT / "common/telemetry.py")) if isinstance(node, ast.Call)]
    lists = [argument for call in calls for argument in call.args if isinstance(argument, ast.List)]
    assert {label for names in lists for label in ast.literal_eval(names)} == LABELS


def test_every_metric_is_on_the_dashboard() -> None:
    shown = " ".join(expression for where, expression in EXPRESSIONS if where.startswith("panel"))
    seen = {SERIES[series] for series in re.findall(r"\biwl_\w+", shown)}
    assert seen == set(FAMILIES)


def test_panels_have_titles_of_their_own_and_do_not_overlap() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (panel["gridPos"]["x"] + dx, panel["gridPos"]["y"] + dy)
        for panel in panels
        for dx in range(panel["gridPos"]["w"])
        for dy in range(panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells)


def test_every_alert_is_tested_both_ways_and_has_instructions() -> None:
    cases = yaml.safe_load((ROOT / "deploy/prometheus/alerts_test.yml").read_text())["tests"]
    tried = {case["name"] for case in cases}
    names = [rule["alert"] for rule in ALERTS]
    assert len(names) == len(set(names))
    assert tried == {f"{alert} {does}" for alert in names for does in ("fires", "stays quiet")}
    headings = set(re.findall(r"^### (\w+)$", (ROOT / "docs/operations.md").read_text(), re.MULTILINE))
    assert set(names) <= headings
    assert all(rule["labels"]["severity"] in ("page", "warn") for rule in ALERTS)


def test_prometheus_scrapes_all_three_services() -> None:
    config = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    ports = {job["job_name"]: job["dns_sd_configs"][0]["port"] for job in config["scrape_configs"]}
    settings = Settings()
    assert ports == {"api": settings.port, "worker": settings.metrics_port, "scaler": settings.metrics_port}
