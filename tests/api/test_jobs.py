from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from api import dead
from common.job import Cause, new_job_id
from common.store import Store
from tests.api.problem import problem
from tests.requests import submit
from tests.waiting import wait_until
from tests.workers import Worker

FIELDS = {
    *("job_id", "status", "attempt", "worker", "created_at", "started_at", "finished_at", "deadline_at"),
    *("model", "result", "error", "attempts", "metadata", "urls"),
}
#: Results are kept for a day.
LONG_AGO = timedelta(hours=25)


async def show(client: httpx.AsyncClient, job_id: str, query: str = "") -> dict[str, Any]:
    answer = await client.get(f"/v1/jobs/{job_id}{query}")
    assert answer.status_code == 200, answer.text
    return answer.json()


def instant(text: str) -> datetime:
    assert text.endswith("Z")
    return datetime.fromisoformat(text)


async def test_a_queued_job(client: httpx.AsyncClient, gateway: Store) -> None:
    job = await submit(gateway, metadata={"a": 1})
    shown = await show(client, job.job_id)
    assert shown.keys() == FIELDS
    assert (shown["status"], shown["attempt"], shown["attempts"]) == ("queued", 0, [])
    assert shown["metadata"] == {"a": 1}
    for absent in ("worker", "started_at", "finished_at", "deadline_at", "model", "result", "error"):
        assert shown[absent] is None


async def test_a_running_job(client: httpx.AsyncClient, gateway: Store, worker: Worker) -> None:
    job = await submit(gateway)
    await worker.lease()
    shown = await show(client, job.job_id)
    assert (shown["status"], shown["attempt"], shown["worker"]) == ("running", 1, worker.name)
    attempt = shown["attempts"][0]
    assert attempt.keys() == {"n", "worker", "started_at", "ended_at", "outcome", "error"}
    assert (attempt["n"], attempt["ended_at"], attempt["outcome"]) == (1, None, None)


async def test_a_succeeded_job(client: httpx.AsyncClient, gateway: Store, worker: Worker) -> None:
    job = await submit(gateway)
    await worker.run(text="an answer")
    shown = await show(client, job.job_id)
    assert shown.keys() == FIELDS
    assert shown["status"] == "succeeded"
    assert shown["result"] == {
        "text": "an answer",
        "finish_reason": "stop",
        "usage": {"prompt_tokens": 3, "completion_tokens": 5},
    }
    assert instant(shown["created_at"]) <= instant(shown["started_at"]) <= instant(shown["finished_at"])
    assert shown["attempts"][0]["outcome"] == "succeeded"


async def test_a_failed_job(client: httpx.AsyncClient, gateway: Store, worker: Worker) -> None:
    job = await submit(gateway)
    await worker.fail(await worker.lease(), Cause.PERMANENT, "no such model", retry_in=None)
    shown = await show(client, job.job_id)
    assert (shown["status"], shown["error"]) == ("failed", {"cause": "permanent", "message": "no such model"})
    assert shown["attempts"][0]["outcome"] == "permanent"


@pytest.mark.parametrize(
    "job_id",
    [
        "1",
        "x" * 5000,
        "00000000-0000-0000-0000-000000000000",
        "8f14e45f-ceea-467f-9b36-4c2f3ad8a1d4",
        new_job_id().upper(),
        new_job_id() + "%20",
        "ffffffff-ffff-7fff-bfff-ffffffffffff",
        new_job_id(),
    ],
)
@pytest.mark.parametrize(
    ("method", "below"), [("GET", ""), ("DELETE", ""), ("GET", "/events"), ("GET", "?wait=1")]
)
async def test_a_job_never_known(client: httpx.AsyncClient, method: str, below: str, job_id: str) -> None:
    problem(await client.request(method, f"/v1/jobs/{job_id}{below}"), 404)


@pytest.mark.parametrize(
    ("method", "below"), [("GET", ""), ("DELETE", ""), ("GET", "/events"), ("GET", "?wait=1")]
)
async def test_a_job_older_than_any_result(client: httpx.AsyncClient, method: str, below: str) -> None:
    old = new_job_id(int((datetime.now(UTC) - LONG_AGO).timestamp() * 1000))
    problem(await client.request(method, f"/v1/jobs/{old}{below}"), 410)


class TestWait:
    async def test_an_ended_job_is_answered_at_once(
        self, client: httpx.AsyncClient, gateway: Store, worker: Worker
    ) -> None:
        job = await submit(gateway)
        await worker.run()
        async with asyncio.timeout(5):
            assert (await show(client, job.job_id, "?wait=60"))["status"] == "succeeded"

    async def test_the_end_of_the_job_ends_the_wait(
        self, client: httpx.AsyncClient, gateway: Store, worker: Worker
    ) -> None:
        job = await submit(gateway)
        waiting = asyncio.create_task(show(client, job.job_id, "?wait=60"))
        await worker.run()
        async with asyncio.timeout(5):
            assert (await waiting)["status"] == "succeeded"

    async def test_a_job_that_has_not_ended_is_shown_as_it_stands(
        self, client: httpx.AsyncClient, gateway: Store
    ) -> None:
        job = await submit(gateway)
        assert (await show(client, job.job_id, "?wait=0.05"))["status"] == "queued"

    async def test_nothing_goes_on_waiting_for_a_client_that_left(
        self, client: httpx.AsyncClient, gateway: Store
    ) -> None:
        job = await submit(gateway)
        before = asyncio.all_tasks()
        waiting = asyncio.create_task(show(client, job.job_id, "?wait=60"))
        await wait_until(lambda: len(asyncio.all_tasks()) > len(before) + 2)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await wait_until(lambda: not [t for t in asyncio.all_tasks() - before if "api" in repr(t)])


class TestCancel:
    async def test_a_queued_job(self, client: httpx.AsyncClient, gateway: Store) -> None:
        job = await submit(gateway)
        for _ in range(2):
            answer = await client.delete(f"/v1/jobs/{job.job_id}")
            assert answer.status_code == 200
            assert answer.json()["status"] == "cancelled"

    async def test_a_running_job(self, client: httpx.AsyncClient, gateway: Store, worker: Worker) -> None:
        job = await submit(gateway)
        await worker.lease()
        assert (await client.delete(f"/v1/jobs/{job.job_id}")).json()["status"] == "cancelled"

    async def test_an_ended_job_stays_as_it_is(
        self, client: httpx.AsyncClient, gateway: Store, worker: Worker
    ) -> None:
        job = await submit(gateway)
        await worker.run()
        refused = problem(await client.delete(f"/v1/jobs/{job.job_id}"), 409)
        assert refused["job_status"] == "succeeded"
        assert (await show(client, job.job_id))["status"] == "succeeded"


class TestList:
    async def test_pages_newest_first(self, client: httpx.AsyncClient, gateway: Store) -> None:
        ids = {(await submit(gateway)).job_id for _ in range(5)}
        seen: list[dict[str, Any]] = []
        url = "/v1/jobs?limit=2"
        while True:
            page = (await client.get(url)).json()
            seen += page["jobs"]
            if page["next"] is None:
                break
            url = f"/v1/jobs?limit=2&before={page['next']}"
        assert len(seen) == 5
        assert {job["job_id"] for job in seen} == ids
        assert seen == sorted(seen, key=lambda job: job["created_at"], reverse=True)

    async def test_by_status(self, client: httpx.AsyncClient, gateway: Store, worker: Worker) -> None:
        done, queued = await submit(gateway), await submit(gateway)
        await worker.run(done.job_id)
        for status, expected in (("succeeded", [done]), ("queued", [queued]), ("failed", [])):
            page = (await client.get(f"/v1/jobs?status={status}")).json()
            assert [job["job_id"] for job in page["jobs"]] == [job.job_id for job in expected]

    async def test_no_jobs(self, client: httpx.AsyncClient) -> None:
        assert (await client.get("/v1/jobs")).json() == {"jobs": [], "next": None}


class TestDeadLetters:
    async def kill(self, gateway: Store, worker: Worker, cause: Cause = Cause.PERMANENT) -> str:
        job = await submit(gateway)
        await worker.fail(await worker.lease(job.job_id), cause, "why it died", retry_in=None)
        return job.job_id

    async def test_a_dead_job_shows_what_it_was_and_why_it_died(
        self, client: httpx.AsyncClient, gateway: Store, worker: Worker
    ) -> None:
        job_id = await self.kill(gateway, worker)
        page = (await client.get("/v1/dlq")).json()
        letter = page["jobs"][0]
        assert letter.keys() == {"cursor", "job_id", "cause", "error", "attempts", "died_at", "request"}
        assert (letter["job_id"], letter["cause"], letter["attempts"]) == (job_id, "permanent", 1)
        assert letter["error"] == "why it died"
        assert letter["request"]["prompt"] == "hello"
        instant(letter["died_at"])

    async def test_pages_newest_first(
        self, client: httpx.AsyncClient, gateway: Store, worker: Worker
    ) -> None:
        ids = [await self.kill(gateway, worker) for _ in range(3)]
        first = (await client.get("/v1/dlq?limit=2")).json()
        second = (await client.get(f"/v1/dlq?limit=2&before={first['next']}")).json()
        assert [each["job_id"] for each in first["jobs"] + second["jobs"]] == ids[::-1]
        assert second["next"] is None

    async def test_a_page_of_large_requests_is_short_and_leads_to_the_rest(
        self, client: httpx.AsyncClient, gateway: Store, worker: Worker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(dead, "PAGE_BYTES", 10_000)
        ids: list[str] = []
        for _ in range(12):
            job = await submit(gateway, "x" * 5_000)
            await worker.fail(await worker.lease(job.job_id), Cause.PERMANENT, "no", retry_in=None)
            ids.append(job.job_id)
        seen: list[str] = []
        pages = 0
        url = "/v1/dlq?limit=100"
        while url:
            page = (await client.get(url)).json()
            seen += [letter["job_id"] for letter in page["jobs"]]
            pages += 1
            url = f"/v1/dlq?limit=100&before={page['next']}" if page["next"] else ""
        assert seen == ids[::-1]
        assert pages > 1

    async def test_a_redriven_job_is_new_and_linked_to_the_old(
        self, client: httpx.AsyncClient, gateway: Store, worker: Worker
    ) -> None:
        old = await self.kill(gateway, worker)
        report = (await client.post("/v1/dlq/redrive", json={"ids": [old, old]})).json()
        assert report["unusable"] == []
        [pair] = report["jobs"]
        assert pair["job_id"] == old
        new = await show(client, pair["new_job_id"])
        assert (new["status"], new["attempt"], new["redrive_of"]) == ("queued", 0, old)
        assert (await show(client, old))["status"] == "failed"
        assert (await client.get("/v1/dlq")).json()["jobs"] == []
        assert (await client.post("/v1/dlq/redrive", json={"ids": [old]})).json() == report

    async def test_by_cause_and_limit_oldest_first(
        self, client: httpx.AsyncClient, gateway: Store, worker: Worker
    ) -> None:
        permanent = [await self.kill(gateway, worker) for _ in range(2)]
        timeout = await self.kill(gateway, worker, Cause.TIMEOUT)
        report = (await client.post("/v1/dlq/redrive", json={"cause": "timeout"})).json()
        assert [each["job_id"] for each in report["jobs"]] == [timeout]
        report = (await client.post("/v1/dlq/redrive", json={"limit": 1})).json()
        assert [each["job_id"] for each in report["jobs"]] == permanent[:1]

    async def test_a_dry_run_changes_nothing(
        self, client: httpx.AsyncClient, gateway: Store, worker: Worker
    ) -> None:
        old = await self.kill(gateway, worker)
        report = (await client.post("/v1/dlq/redrive", json={"dry_run": True})).json()
        assert report == {"dry_run": True, "jobs": [{"job_id": old, "new_job_id": None}], "unusable": []}
        assert len((await client.get("/v1/dlq")).json()["jobs"]) == 1

    async def test_an_empty_body_means_all(
        self, client: httpx.AsyncClient, gateway: Store, worker: Worker
    ) -> None:
        await self.kill(gateway, worker)
        assert len((await client.post("/v1/dlq/redrive")).json()["jobs"]) == 1
