from __future__ import annotations

import math
from datetime import timedelta

import httpx
import pytest
from redis.asyncio import Redis

from common.fleet import Decision, Reason
from common.pulse import BEAT_S
from common.redis_store.store import RedisStore
from common.store import Store
from tests.api.problem import problem
from tests.requests import submit
from tests.waiting import hold_up_the_loop, wait_until
from tests.workers import Worker

STATES = ("awaiting_upload", "queued", "running", "retrying", "succeeded", "failed", "cancelled", "expired")


async def test_stats_account_for_every_job(client: httpx.AsyncClient, gateway: Store, worker: Worker) -> None:
    for _ in range(3):
        await submit(gateway)
    await worker.run()
    await worker.lease()
    stats = (await client.get("/v1/stats")).json()
    assert stats.keys() == {
        "submitted", *STATES, "dead_letters", "unaccounted", "lag", "pending", "drain_rate"
    }  # fmt: skip
    assert stats["submitted"] == 3 == sum(stats[state] for state in STATES)
    assert (stats["unaccounted"], stats["lag"], stats["pending"]) == (0, 1, 1)


SCALE = {
    *("desired", "live", "active", "busy", "lag", "pending", "retrying", "min", "max", "reason"),
    *("updated_at", "age_s", "stale", "leader", "history"),
}


async def test_before_the_first_decision_nothing_is_desired(
    client: httpx.AsyncClient, worker: Worker
) -> None:
    scale = (await client.get("/v1/scale")).json()
    assert scale.keys() == SCALE
    assert (scale["desired"], scale["reason"], scale["updated_at"]) == (None, None, None)
    assert (scale["live"], scale["active"], scale["stale"]) == (1, 1, True)


async def test_scale_shows_the_decision_and_who_obeys_it(
    client: httpx.AsyncClient, gateway: Store, worker: Worker
) -> None:
    decision = Decision(desired=0, reason=Reason.SCALE_DOWN, lag=0, pending=0, retrying=0, min=0, max=4)
    term = await gateway.lead("scaler-1", timedelta(seconds=10))
    assert term is not None
    await gateway.publish_scale(decision, term)
    await worker.heartbeat(busy=1)
    scale = (await client.get("/v1/scale")).json()
    assert scale.keys() == SCALE
    assert (scale["desired"], scale["min"], scale["max"], scale["reason"]) == (0, 0, 4, "scale_down")
    assert (scale["live"], scale["active"], scale["busy"]) == (1, 0, 1)
    assert (scale["stale"], scale["leader"]) == (False, "scaler-1")
    assert 0 <= scale["age_s"] < 10
    assert scale["updated_at"].endswith("Z")
    [change] = scale["history"]
    assert (change["desired"], change["reason"]) == (0, "scale_down")


async def test_health_and_readiness(client: httpx.AsyncClient) -> None:
    assert (await client.get("/healthz")).json() == {"status": "ok"}
    assert (await client.get("/readyz")).json() == {"status": "ready"}


async def metric(client: httpx.AsyncClient, name: str) -> float:
    lines = (await client.get("/metrics")).text.splitlines()
    values = [float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"{name} ")]
    return values[0] if values else math.nan


async def test_metrics_follow_the_backlog(client: httpx.AsyncClient, gateway: Store) -> None:
    await submit(gateway)

    async def seen() -> bool:
        return await metric(client, "iwl_queue_lag") == 1

    await wait_until(seen)
    assert await metric(client, "iwl_jobs_unaccounted") == 0
    assert await metric(client, 'iwl_jobs{state="queued"}') == 1


async def test_a_held_up_loop_shows(client: httpx.AsyncClient) -> None:
    hold_up_the_loop(BEAT_S + 0.2)

    async def seen() -> bool:
        return await metric(client, "iwl_loop_lag_seconds") >= 0.15

    await wait_until(seen)


async def test_requests_are_counted_by_route_and_never_by_path(client: httpx.AsyncClient) -> None:
    job_id = (await client.post("/v1/jobs", json={"prompt": "x"})).json()["job_id"]
    await client.get(f"/v1/jobs/{job_id}")
    await client.get("/wp-login.php")
    await client.request("BREW", "/coffee")
    text = (await client.get("/metrics")).text
    assert 'iwl_http_requests_total{code="202",method="POST",route="/v1/jobs"} 1.0' in text
    assert 'iwl_http_requests_total{code="200",method="GET",route="/v1/jobs/{job_id}"} 1.0' in text
    assert 'iwl_http_requests_total{code="404",method="GET",route="unmatched"} 1.0' in text
    assert 'iwl_http_requests_total{code="404",method="other",route="unmatched"} 1.0' in text
    assert job_id not in text
    assert "wp-login" not in text


async def test_what_waits_on_purpose_is_not_timed(client: httpx.AsyncClient, gateway: Store) -> None:
    job_id = (await submit(gateway)).job_id
    before = await metric(client, "iwl_http_request_seconds_count")
    await client.get(f"/v1/jobs/{job_id}?wait=0.01")
    # The count before was taken while its own request was still being served.
    assert await metric(client, "iwl_http_request_seconds_count") == before + 1


@pytest.mark.parametrize("code", ["202", "429", "503"])
async def test_what_never_happened_reads_zero(client: httpx.AsyncClient, code: str) -> None:
    name = f'iwl_http_requests_total{{code="{code}",method="POST",route="/v1/jobs"}}'
    assert await metric(client, name) == 0


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("PUT", "/v1/jobs", "GET, POST"),
        ("POST", "/v1/jobs/x", "DELETE, GET"),
        ("GET", "/v1/dlq/redrive", "POST"),
        ("DELETE", "/v1/stats", "GET"),
    ],
)
async def test_a_wrong_method_is_told_the_right_ones(
    client: httpx.AsyncClient, method: str, path: str, allow: str
) -> None:
    answer = await client.request(method, path)
    problem(answer, 405)
    assert answer.headers["allow"] == allow


@pytest.mark.vandal
async def test_damaged_keys_are_an_outage_that_is_logged_and_not_told(
    client: httpx.AsyncClient, raw: Redis, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    await raw.set(f"{namespace}:recent", "somebody else's")
    answer = await client.get("/v1/jobs")
    problem(answer, 503)
    assert int(answer.headers["retry-after"]) > 0
    assert "WRONGTYPE" not in answer.text
    assert "WRONGTYPE" in caplog.text


async def test_an_error_nobody_foresaw_is_not_told(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server logs it with its traceback; the client gets a problem."""

    async def break_down(_: RedisStore, **asked: object) -> None:
        raise RuntimeError("a secret of the inside")

    monkeypatch.setattr(RedisStore, "list_jobs", break_down)
    answer = await client.get("/v1/jobs")
    problem(answer, 500)
    assert "secret" not in answer.text


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/jobs/", "/v2/jobs", "/v1/jobs/a/b"])
async def test_an_unknown_path(client: httpx.AsyncClient, path: str) -> None:
    problem(await client.get(path), 404)
