"""A gateway without keys does nothing for a web page that is not its own."""

from __future__ import annotations

import httpx
import pytest

from tests.api.problem import problem

HELLO = {"prompt": "hello"}
JOB = "/v1/jobs/00000000-0000-7000-8000-000000000000"
WRITES = [("POST", "/v1/jobs"), ("DELETE", JOB), ("POST", "/v1/dlq/redrive")]

FOREIGN = [
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "cross-site", "Origin": "http://gateway"},
    {"Origin": "https://evil.example"},
    {"Origin": "http://gateway.evil.example"},
    {"Origin": "http://gateway:3000"},
    {"Origin": "null"},
    {"Origin": ""},
    {"Origin": "gateway"},
]
OWN = [
    {},
    {"Sec-Fetch-Site": "none"},
    {"Sec-Fetch-Site": "same-origin", "Origin": "http://gateway"},
    {"Origin": "https://GATEWAY"},
]


@pytest.mark.parametrize("headers", FOREIGN, ids=str)
@pytest.mark.parametrize(("method", "path"), WRITES)
async def test_a_page_of_another_site_changes_nothing(
    client: httpx.AsyncClient, method: str, path: str, headers: dict[str, str]
) -> None:
    answer = await client.request(method, path, headers=headers, json=HELLO)
    assert problem(answer, 403)["type"] == "urn:iwl:problem:cross-site"
    assert (await client.get("/v1/stats")).json()["submitted"] == 0


@pytest.mark.parametrize("headers", OWN, ids=str)
async def test_programs_and_the_gateways_own_pages_are_not_hindered(
    client: httpx.AsyncClient, headers: dict[str, str]
) -> None:
    assert (await client.post("/v1/jobs", headers=headers, json=HELLO)).status_code == 202


@pytest.mark.parametrize("headers", FOREIGN, ids=str)
async def test_a_link_from_another_site_may_be_followed(
    client: httpx.AsyncClient, headers: dict[str, str]
) -> None:
    assert (await client.get("/v1/stats", headers=headers)).status_code == 200
