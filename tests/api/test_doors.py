"""A gateway with keys: who gets in, who sees what, and how much each may ask."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from redis.asyncio import Redis

from api.doors import OPEN
from common.job import new_job_id
from common.store import Store
from tests.api.conftest import Connect
from tests.api.keyring import KEYS, as_caller, bearer, line, write_keys
from tests.api.problem import problem
from tests.requests import submit
from tests.workers import Worker

HELLO = {"prompt": "hello"}
Enter = Callable[..., Awaitable[httpx.AsyncClient]]

CALLS = [
    ("POST", "/v1/jobs"),
    ("GET", "/v1/jobs"),
    ("GET", "/v1/jobs/{id}"),
    ("GET", "/v1/jobs/{id}/events"),
    ("DELETE", "/v1/jobs/{id}"),
    ("GET", "/v1/dlq"),
    ("POST", "/v1/dlq/redrive"),
    ("GET", "/v1/scale"),
    ("GET", "/v1/stats"),
    ("GET", "/metrics"),
    ("GET", "/redoc"),
    ("GET", "/no/such/page"),
    ("PUT", "/v1/jobs"),
]
JOB_CALLS = [(method, path) for method, path in CALLS if "{id}" in path]


@pytest.fixture
def enter(connect: Connect, tmp_path: Path) -> Enter:
    """`await enter("ann", rate=1)`: a client with ann's key; the keywords are her rights."""

    async def entered(name: str, **rights: Any) -> httpx.AsyncClient:
        lines = [line(each, **(rights if each == name else {})) for each in ("ann", "ben")]
        path = write_keys(tmp_path / f"{name}.jsonl", *lines, line("ops", operator=True))
        return as_caller(await connect(api_keys_file=path), name)

    return entered


@pytest.fixture
async def ann(enter: Enter) -> httpx.AsyncClient:
    return await enter("ann")


@pytest.fixture
async def ben(enter: Enter) -> httpx.AsyncClient:
    return await enter("ben")


@pytest.fixture
async def ops(enter: Enter) -> httpx.AsyncClient:
    return await enter("ops")


async def submitted(client: httpx.AsyncClient, **body: Any) -> str:
    answer = await client.post("/v1/jobs", json=HELLO | body)
    assert answer.status_code == 202, answer.text
    return answer.json()["job_id"]


# ---- getting in


@pytest.mark.parametrize(("method", "path"), CALLS)
async def test_nothing_is_done_without_a_key(
    ann: httpx.AsyncClient, raw: Redis, namespace: str, method: str, path: str
) -> None:
    job_id = await submitted(ann)
    del ann.headers["Authorization"]
    answer = await ann.request(method, path.replace("{id}", job_id))
    assert problem(answer, 401)["type"] == "urn:iwl:problem:key-required"
    assert answer.headers["www-authenticate"] == 'Bearer realm="inference-worker-lab"'
    assert job_id not in answer.text


@pytest.mark.parametrize(
    "authorization",
    [
        *("Bearer wrong", "Bearer", "Bearer ", "", f"Basic {KEYS['ann']}", KEYS["ann"]),
        *(f"Bearer {KEYS['ann']} {KEYS['ann']}", f"Bearer {KEYS['ann'].upper()}"),
    ],
)
async def test_a_wrong_key_is_none(ann: httpx.AsyncClient, authorization: str) -> None:
    answer = await ann.get("/v1/jobs", headers={"Authorization": authorization})
    problem(answer, 401)
    assert answer.headers["www-authenticate"].endswith('error="invalid_token"')
    assert KEYS["ann"] not in answer.text


async def test_two_keys_are_none(ann: httpx.AsyncClient) -> None:
    del ann.headers["Authorization"]
    twice = [*bearer(KEYS["ann"]).items()] * 2
    problem(await ann.get("/v1/jobs", headers=twice), 401)


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER", "Bearer "])
async def test_the_scheme_is_read_as_http_says(ann: httpx.AsyncClient, scheme: str) -> None:
    headers = {"Authorization": f"{scheme} {KEYS['ann']}"}
    assert (await ann.get("/v1/jobs", headers=headers)).status_code == 200


@pytest.mark.parametrize("path", sorted(OPEN))
async def test_probes_and_the_description_are_open(ann: httpx.AsyncClient, path: str) -> None:
    del ann.headers["Authorization"]
    assert (await ann.get(path)).status_code == 200


@pytest.mark.parametrize("path", ["/healthz/", "//v1/jobs", "/healthz/../v1/jobs", "/docs/../metrics"])
async def test_no_spelling_of_a_path_gets_around_the_key(ann: httpx.AsyncClient, path: str) -> None:
    del ann.headers["Authorization"]
    assert (await ann.get(path)).status_code == 401


async def test_the_description_names_the_key(ann: httpx.AsyncClient, client: httpx.AsyncClient) -> None:
    locked = (await ann.get("/openapi.json")).json()
    [scheme] = locked["components"]["securitySchemes"].values()
    assert (scheme["type"], scheme["scheme"]) == ("http", "bearer")
    assert locked["security"] == [{"key": []}]
    for path, operations in locked["paths"].items():
        for operation in operations.values():
            assert ("401" in operation["responses"]) == (path not in OPEN), path
            assert operation.get("security", locked["security"]) == ([] if path in OPEN else [{"key": []}])
    assert (await client.get("/openapi.json")).json()["security"] == [{}, {"key": []}]


# ---- whose job


@pytest.mark.parametrize(("method", "path"), JOB_CALLS)
async def test_the_job_of_another_is_a_job_that_is_not(
    ann: httpx.AsyncClient, ben: httpx.AsyncClient, gateway: Store, method: str, path: str
) -> None:
    theirs, nobodys = await submitted(ann), (await submit(gateway)).job_id
    answers = [
        await ben.request(method, path.replace("{id}", job_id), params={"wait": 1} if wait else {})
        for job_id in (theirs, nobodys, new_job_id())
        for wait in ([False, True] if (method, path) == ("GET", "/v1/jobs/{id}") else [False])
    ]
    for answer in answers:
        problem(answer, 404)
        assert answer.content == answers[-1].content
    assert (await gateway.get(theirs)).status == "queued"


async def test_a_job_belongs_to_the_name_that_submitted_it(
    ann: httpx.AsyncClient, gateway: Store, worker: Worker
) -> None:
    job_id = await submitted(ann, stream=True)
    assert (await gateway.get(job_id)).owner == "ann"
    assert (await ann.get(f"/v1/jobs/{job_id}")).json()["status"] == "queued"
    await worker.run(job_id)
    assert (await ann.get(f"/v1/jobs/{job_id}?wait=5")).json()["status"] == "succeeded"
    assert '"succeeded"' in (await ann.get(f"/v1/jobs/{job_id}/events")).text
    problem(await ann.delete(f"/v1/jobs/{job_id}"), 409)


async def test_an_idempotency_key_belongs_to_a_name_too(
    ann: httpx.AsyncClient, ben: httpx.AsyncClient
) -> None:
    mine = await submitted(ann, idempotency_key="k")
    theirs = await submitted(ben, prompt="another", idempotency_key="k")
    assert mine != theirs
    assert await submitted(ann, idempotency_key="k") == mine


async def test_lists_show_a_name_its_own(ann: httpx.AsyncClient, ben: httpx.AsyncClient) -> None:
    mine, theirs = await submitted(ann), await submitted(ben)
    assert [job["job_id"] for job in (await ann.get("/v1/jobs")).json()["jobs"]] == [mine]
    assert [job["job_id"] for job in (await ben.get("/v1/jobs")).json()["jobs"]] == [theirs]
    assert (await ben.get(f"/v1/jobs?before={mine}")).json()["jobs"] == []


async def test_dead_letters_are_shown_to_their_name_and_redriven_by_it(
    ann: httpx.AsyncClient, ben: httpx.AsyncClient, worker: Worker
) -> None:
    for client in (ann, ben):
        await worker.fail(await worker.lease(await submitted(client)), retry_in=None)
    [mine] = (await ann.get("/v1/dlq")).json()["jobs"]
    [theirs] = (await ben.get("/v1/dlq")).json()["jobs"]
    report = await ann.post("/v1/dlq/redrive", json={"ids": [theirs["job_id"]]})
    assert report.json()["jobs"] == []
    [again] = (await ann.post("/v1/dlq/redrive")).json()["jobs"]
    assert again["job_id"] == mine["job_id"]
    assert (await ann.get(f"/v1/jobs/{again['new_job_id']}")).status_code == 200
    order = {"ids": [mine["job_id"]]}
    assert (await ann.post("/v1/dlq/redrive", json=order)).json()["jobs"] == [again]
    assert (await ben.post("/v1/dlq/redrive", json=order)).json()["jobs"] == []
    assert (await ben.get("/v1/dlq")).json()["jobs"] == [theirs]


@pytest.mark.parametrize("path", ["/v1/stats", "/v1/scale", "/metrics"])
async def test_the_whole_is_for_operators(ann: httpx.AsyncClient, ops: httpx.AsyncClient, path: str) -> None:
    assert problem(await ann.get(path), 403)["type"] == "urn:iwl:problem:operators-only"
    assert (await ops.get(path)).status_code == 200


async def test_operators_see_and_may_do_everything(
    ann: httpx.AsyncClient, ben: httpx.AsyncClient, ops: httpx.AsyncClient, gateway: Store, worker: Worker
) -> None:
    dead = await submitted(ann)
    await worker.fail(await worker.lease(dead), retry_in=None)
    jobs = {dead, await submitted(ben), (await submit(gateway)).job_id, await submitted(ops)}
    assert {job["job_id"] for job in (await ops.get("/v1/jobs")).json()["jobs"]} == jobs
    for job_id in jobs:
        assert (await ops.get(f"/v1/jobs/{job_id}")).status_code == 200
    for job_id in jobs - {dead}:
        assert (await ops.delete(f"/v1/jobs/{job_id}")).json()["status"] == "cancelled"
    [again] = (await ops.post("/v1/dlq/redrive")).json()["jobs"]
    assert (await gateway.get(again["new_job_id"])).owner == "ann"


# ---- how much


async def test_more_requests_than_the_rate_are_429(enter: Enter) -> None:
    ann, ben = await enter("ann", rate=2), await enter("ben")
    answers = [await ann.get("/v1/jobs") for _ in range(8)]
    refused = [answer for answer in answers if answer.status_code != 200]
    assert len(answers) - len(refused) in (2, 3)
    for answer in refused:
        assert problem(answer, 429)["type"] == "urn:iwl:problem:rate-exceeded"
        assert int(answer.headers["retry-after"]) == 1
    assert (await ann.get("/healthz")).status_code == 200
    assert (await ben.get("/v1/jobs")).status_code == 200


async def test_more_unfinished_jobs_than_the_limit_are_429_at_every_gateway(
    enter: Enter, worker: Worker
) -> None:
    one, other, ben = await enter("ann", open_jobs=2), await enter("ann", open_jobs=2), await enter("ben")
    await submitted(one)
    await submitted(other)
    for client in (one, other):
        answer = await client.post("/v1/jobs", json=HELLO)
        assert problem(answer, 429)["type"] == "urn:iwl:problem:owner-full"
        assert 1 <= int(answer.headers["retry-after"]) <= 300
    await submitted(ben)
    await worker.run()
    await submitted(other)
    assert (
        'iwl_jobs_refused_total{reason="owner_full"} 1.0'
        in (await as_caller(one, "ops").get("/metrics")).text
    )


async def test_a_redrive_needs_room_for_its_jobs(enter: Enter, worker: Worker) -> None:
    ann = await enter("ann", open_jobs=1)
    await worker.fail(await worker.lease(await submitted(ann)), retry_in=None)
    await submitted(ann)
    problem(await ann.post("/v1/dlq/redrive"), 429)
    assert len((await ann.get("/v1/dlq")).json()["jobs"]) == 1
    [again] = (await as_caller(ann, "ops").post("/v1/dlq/redrive")).json()["jobs"]
    assert again["new_job_id"]
