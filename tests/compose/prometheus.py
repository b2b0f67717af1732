"""What Prometheus says over its HTTP API."""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import yaml

from tests.repository import ROOT

DASHBOARD = ROOT / "deploy/grafana/dashboards/lab.json"
ALERTS = ROOT / "deploy/prometheus/alerts.yml"
#: As Grafana asks.
STEP_S = 5


class Prometheus:
    def __init__(self, url: str) -> None:
        self._http = httpx.AsyncClient(base_url=url, timeout=10, trust_env=False)

    async def aclose(self) -> None:
        await self._http.aclose()

    async def targets_up(self) -> dict[str, int]:
        """Job -> how many of its targets answered the last scrape."""
        targets = (await self._ask("targets", state="active"))["activeTargets"]
        return Counter(each["labels"]["job"] for each in targets if each["health"] == "up")

    async def rules(self) -> dict[str, str]:
        """Alert -> health: "ok" once it was evaluated without an error."""
        groups = (await self._ask("rules"))["groups"]
        return {rule["name"]: rule["health"] for group in groups for rule in group["rules"]}

    async def firing(self) -> set[str]:
        found = await self._ask("alerts")
        return {alert["labels"]["alertname"] for alert in found["alerts"] if alert["state"] == "firing"}

    async def numbers(self, expression: str, since: float) -> int:
        """How many numbers the query gives from then to now; NaN is none."""
        found = await self._ask("query_range", query=expression, start=since, end=time.time(), step=STEP_S)
        values = [float(value) for series in found["result"] for _, value in series["values"]]
        return sum(not math.isnan(value) for value in values)

    async def _ask(self, what: str, **query: Any) -> Any:
        response = await self._http.get(f"/api/v1/{what}", params=query)
        assert response.is_success, f"Prometheus refuses {query}: {response.text}"
        return response.json()["data"]


def panel_queries() -> Iterator[tuple[str, str]]:
    """(panel, PromQL) of the dashboard."""
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"]


def alert_names() -> set[str]:
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    return {rule["alert"] for group in groups for rule in group["rules"]}
