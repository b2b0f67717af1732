"""The gateway as a process: how it starts, what it does without its store, how it ends."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from redis.asyncio import Redis

from api.server import GRACE_S, MAX_HEAD_BYTES
from common.fleet import Presence
from common.redis_store.store import RedisStore
from common.settings import Settings, child_environment
from lab.ports import free_port
from tests.api.conftest import Serve
from tests.api.keyring import as_caller, line, write_keys
from tests.api.problem import problem
from tests.api.served import GatewayProcess
from tests.api.test_events import events
from tests.servers import ServerProcess
from tests.waiting import wait_until
from tests.workers import Worker

pytestmark = pytest.mark.server

HELLO = {"prompt": "hello"}
PROMPT_S = 3


@pytest.fixture
def client() -> Callable[[str], httpx.AsyncClient]:
    return lambda url: httpx.AsyncClient(base_url=url, timeout=10)


async def status(client: httpx.AsyncClient, path: str) -> int:
    return (await client.get(path)).status_code


def connection(url: str) -> socket.socket:
    parts = urlsplit(url)
    return socket.create_connection((parts.hostname, parts.port or 80), timeout=10)


def test_the_log_says_where_it_listens(serve: Serve, private_server: ServerProcess) -> None:
    gateway = serve(redis_url=private_server.url)
    assert httpx.get(f"{gateway.url}/readyz").status_code == 200
    assert all(json.loads(line)["service"] == "api" for line in gateway.log)


@pytest.mark.parametrize(
    ("setting", "value"), [("max_queue_depth", "many"), ("redis_url", "amqp://queue"), ("port", "-1")]
)
def test_a_wrong_setting_is_one_line_and_exit_status_2(setting: str, value: str) -> None:
    ended = run_to_its_end(**{setting: value})
    assert ended.returncode == 2
    [line] = ended.stderr.splitlines()
    assert f"IWL_{setting.upper()}" in line


def test_a_store_that_would_lose_jobs_is_refused(start_server: Callable[..., ServerProcess]) -> None:
    server = start_server(maxmemory_policy="allkeys-lru")
    ended = run_to_its_end(redis_url=server.url, port="0")
    assert ended.returncode == 2
    assert "noeviction" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("keys", [None, '{"name": "ann", "sha256": "a-key-by-mistake"}'])
def test_a_keys_file_that_cannot_be_used_is_one_line_and_exit_status_2(
    tmp_path: Path, keys: str | None
) -> None:
    path = tmp_path / "keys.jsonl"
    if keys is not None:
        path.write_text(keys)
    ended = run_to_its_end(api_keys_file=str(path))
    assert ended.returncode == 2
    [line] = ended.stderr.splitlines()
    assert "IWL_API_KEYS_FILE: " in line
    assert keys is None or "line 1: sha256: " in line
    assert "mistake" not in line


@pytest.mark.parametrize(
    ("host", "keys", "warnings"),
    [("127.0.0.1", False, 0), ("localhost", False, 0), ("0.0.0.0", False, 1), ("0.0.0.0", True, 0)],
)
def test_a_door_open_to_the_network_is_told_once(
    serve: Serve, private_server: ServerProcess, tmp_path: Path, host: str, keys: bool, warnings: int
) -> None:
    path = write_keys(tmp_path / "keys.jsonl", line("ann"))
    settings = {"api_keys_file": str(path), "metrics_port": "0"} if keys else {}
    gateway = serve(redis_url=private_server.url, host=host, **settings)
    told = [each for each in map(json.loads, gateway.log) if each["level"] == "WARNING"]
    assert len(told) == warnings
    assert all("IWL_API_KEYS_FILE" in each["message"] for each in told)


def test_with_keys_metrics_have_a_port_of_their_own(
    serve: Serve, private_server: ServerProcess, tmp_path: Path
) -> None:
    path, port = write_keys(tmp_path / "keys.jsonl", line("ann")), free_port()
    gateway = serve(redis_url=private_server.url, api_keys_file=str(path), metrics_port=str(port))
    assert httpx.get(f"{gateway.url}/metrics").status_code == 401
    text = httpx.get(f"http://127.0.0.1:{port}/metrics").text
    assert "iwl_http_requests_total{" in text
    assert "process_resident_memory_bytes" in text
    again = run_to_its_end(redis_url=private_server.url, api_keys_file=str(path), metrics_port=str(port))
    assert again.returncode == 2
    assert "IWL_METRICS_PORT" in again.stderr


async def test_a_changed_keys_file_counts_while_it_runs(
    serve: Serve, private_server: ServerProcess, tmp_path: Path, client: Callable[[str], httpx.AsyncClient]
) -> None:
    path = write_keys(tmp_path / "keys.jsonl", line("ann"))
    gateway = serve(redis_url=private_server.url, api_keys_file=str(path), metrics_port="0")
    async with client(gateway.url) as http:
        as_caller(http, "ben")
        assert await status(http, "/v1/jobs") == 401
        write_keys(path, line("ben"))

        async def admitted() -> bool:
            return await status(http, "/v1/jobs") == 200

        await wait_until(admitted)
        assert await status(as_caller(http, "ann"), "/v1/jobs") == 401


def test_a_busy_port_is_one_line_and_exit_status_2(private_server: ServerProcess) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = run_to_its_end(redis_url=private_server.url, port=str(port))
    assert ended.returncode == 2
    assert ended.stderr == f"api: IWL_PORT: cannot listen on 127.0.0.1:{port}: Address already in use\n"


def test_an_address_of_another_machine_is_one_line_too(private_server: ServerProcess) -> None:
    ended = run_to_its_end(redis_url=private_server.url, port="0", host="192.0.2.1")
    assert ended.returncode == 2
    assert ended.stderr.startswith("api: IWL_HOST: cannot listen on 192.0.2.1:0: ")


def test_what_can_be_no_host_is_one_line_too(private_server: ServerProcess) -> None:
    ended = run_to_its_end(redis_url=private_server.url, port="0", host="ü" * 70)
    assert ended.returncode == 2
    assert ended.stderr == f"api: IWL_HOST: {'ü' * 70} cannot be a host's name\n"


def test_what_may_not_be_safe_is_told_so(serve: Serve, private_server: ServerProcess) -> None:
    """It is queued all the same, and the same key finds it."""
    gateway = serve(redis_url=private_server.url, durability="replica")
    body = {**HELLO, "idempotency_key": "k"}
    answer = httpx.post(f"{gateway.url}/v1/jobs", json=body, timeout=20)
    told = problem(answer, 503)
    assert told["type"] == "urn:iwl:problem:not-durable"
    assert "same idempotency key" in told["detail"]
    assert httpx.get(f"{gateway.url}/v1/stats").json()["queued"] == 1
    problem(httpx.post(f"{gateway.url}/v1/jobs", json=body, timeout=20), 503)
    assert httpx.get(f"{gateway.url}/v1/stats").json()["queued"] == 1


def run_to_its_end(**settings: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "api"],
        env=child_environment(**settings),
        cwd=Path(__file__).parents[2],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
    )


async def test_it_starts_without_its_store_and_takes_jobs_once_that_is_there(
    serve: Serve, private_server: ServerProcess, client: Callable[[str], httpx.AsyncClient]
) -> None:
    private_server.kill()
    async with client(serve(redis_url=private_server.url).url) as http:
        assert await status(http, "/healthz") == 200
        problem(await http.get("/readyz"), 503)
        problem(await http.post("/v1/jobs", json=HELLO), 503)
        private_server.start()
        await wait_until(lambda: ready(http), timeout=15)
        assert (await http.post("/v1/jobs", json=HELLO)).status_code == 202


async def ready(http: httpx.AsyncClient) -> bool:
    return await status(http, "/readyz") == 200


async def test_a_store_found_wrong_later_ends_the_gateway(
    serve: Serve, start_server: Callable[..., ServerProcess]
) -> None:
    server = start_server(maxmemory_policy="allkeys-lru")
    server.kill()
    gateway = serve(redis_url=server.url)
    server.start()
    assert await asyncio.to_thread(gateway.wait) == 2
    assert "noeviction" in gateway.log[-1]


async def test_an_outage_is_503_and_ends_by_itself(
    serve: Serve, private_server: ServerProcess, client: Callable[[str], httpx.AsyncClient]
) -> None:
    gateway = serve(redis_url=private_server.url)
    async with client(gateway.url) as http:
        job_id = (await http.post("/v1/jobs", json=HELLO)).json()["job_id"]
        private_server.kill()
        for answer in (
            await http.post("/v1/jobs", json=HELLO),
            await http.get(f"/v1/jobs/{job_id}"),
            await http.get(f"/v1/jobs/{job_id}?wait=1"),
            await http.get(f"/v1/jobs/{job_id}/events"),
            await http.get("/v1/jobs"),
            await http.delete(f"/v1/jobs/{job_id}"),
            await http.get("/v1/dlq"),
            await http.post("/v1/dlq/redrive"),
            await http.get("/v1/scale"),
            await http.get("/v1/stats"),
            await http.get("/readyz"),
        ):
            problem(answer, 503)
            assert int(answer.headers["retry-after"]) >= 1
            assert str(private_server.port) not in answer.text
        assert await status(http, "/healthz") == 200
        assert await status(http, "/metrics") == 200
        private_server.start()
        await wait_until(lambda: ready(http), timeout=15)
        assert (await http.post("/v1/jobs", json=HELLO)).status_code == 202
    assert sum('"store away"' in line for line in gateway.log) <= 1


async def test_a_full_store_refuses_work_and_still_answers(
    serve: Serve, private_server: ServerProcess, client: Callable[[str], httpx.AsyncClient]
) -> None:
    async with client(serve(redis_url=private_server.url).url) as http, private_server.connect() as raw:
        job_id = (await http.post("/v1/jobs", json=HELLO)).json()["job_id"]
        await limit_memory(raw, 1)
        answer = await http.post("/v1/jobs", json=HELLO)
        assert problem(answer, 503)["type"] == "urn:iwl:problem:store-full"
        assert int(answer.headers["retry-after"]) >= 1
        assert await status(http, f"/v1/jobs/{job_id}") == 200
        assert (await http.delete(f"/v1/jobs/{job_id}")).json()["status"] == "cancelled"
        await limit_memory(raw, 0)
        assert (await http.post("/v1/jobs", json=HELLO)).status_code == 202


async def limit_memory(raw: Redis, limit: int) -> None:
    await raw.config_set("maxmemory", limit)  # pyright: ignore[reportUnknownMemberType]


async def test_chunks_arrive_while_the_job_runs(
    serve: Serve, private_server: ServerProcess, client: Callable[[str], httpx.AsyncClient]
) -> None:
    gateway = serve(redis_url=private_server.url)
    store = RedisStore(Settings(redis_url=private_server.url))
    await store.start()
    worker = await Worker.seated(store, Presence(instance="here"))
    async with client(gateway.url) as http:
        job_id = (await http.post("/v1/jobs", json={**HELLO, "stream": True})).json()["job_id"]
        async with http.stream("GET", f"/v1/jobs/{job_id}/events") as answer:
            told = answer.aiter_text()
            lease = await worker.lease(job_id)
            await store.append(lease, 1, "first")
            text = ""
            while "first" not in text:
                text += await anext(told)
            assert "succeeded" not in text
            await worker.finish(lease)
            text += "".join([piece async for piece in told])
    assert events(text)[-1][2]["job"]["status"] == "succeeded"
    await store.aclose()


async def test_the_end_does_not_wait_for_streams_or_long_polls(
    serve: Serve, private_server: ServerProcess, client: Callable[[str], httpx.AsyncClient]
) -> None:
    gateway = serve(redis_url=private_server.url)
    async with client(gateway.url) as http:
        job_id = (await http.post("/v1/jobs", json={**HELLO, "stream": True})).json()["job_id"]
        async with http.stream("GET", f"/v1/jobs/{job_id}/events") as answer:
            told = answer.aiter_text()
            await anext(told)
            poll = asyncio.create_task(http.get(f"/v1/jobs/{job_id}?wait=60"))
            stalled = connection(gateway.url)
            stalled.sendall(b"GET /v1/jobs/%b/events HTTP/1.1\r\nHost: x\r\n\r\n" % job_id.encode())
            await wait_until(lambda: streams(http, 2))
            began = time.monotonic()
            gateway.terminate()
            assert await asyncio.to_thread(gateway.wait) == 0
            assert time.monotonic() - began < PROMPT_S
            [piece async for piece in told]
        assert (await poll).json()["status"] == "queued"
        stalled.close()
    assert not [line for line in gateway.log if json.loads(line)["level"] in ("WARNING", "ERROR")]


async def test_a_store_that_hangs_does_not_keep_it_and_who_waits_is_told(
    serve: Serve, private_server: ServerProcess, client: Callable[[str], httpx.AsyncClient]
) -> None:
    gateway = serve(redis_url=private_server.url)
    async with client(gateway.url) as http:
        job_id = (await http.post("/v1/jobs", json=HELLO)).json()["job_id"]
        private_server.pause()
        asked = [
            asyncio.create_task(each)
            for each in (
                http.post("/v1/jobs", json=HELLO),
                http.get(f"/v1/jobs/{job_id}"),
                http.get(f"/v1/jobs/{job_id}?wait=60"),
            )
        ]
        await asyncio.sleep(0.5)
        began = time.monotonic()
        gateway.terminate()
        assert await asyncio.to_thread(gateway.wait) == 0
        assert time.monotonic() - began < GRACE_S + PROMPT_S
        for answer in await asyncio.gather(*asked):
            assert problem(answer, 503)["type"] == "urn:iwl:problem:not-ready"
    assert not [line for line in gateway.log if "exception" in json.loads(line)]
    private_server.resume()


async def test_told_twice_it_waits_for_nothing(
    serve: Serve, private_server: ServerProcess, client: Callable[[str], httpx.AsyncClient]
) -> None:
    gateway = serve(redis_url=private_server.url)
    async with client(gateway.url) as http:
        private_server.pause()
        asked = asyncio.create_task(http.post("/v1/jobs", json=HELLO))
        await asyncio.sleep(0.5)
        began = time.monotonic()
        gateway.terminate()
        await asyncio.sleep(0.3)
        gateway.terminate()
        assert await asyncio.to_thread(gateway.wait) == 0
        assert time.monotonic() - began < PROMPT_S
        problem(await asked, 503)
    assert not [line for line in gateway.log if json.loads(line)["level"] == "ERROR"]
    private_server.resume()


def test_told_to_leave_while_it_looks_at_its_store_it_leaves() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(15)
        gateway = GatewayProcess(redis_url=f"redis://127.0.0.1:{silent.getsockname()[1]}/0")
        try:
            looking, _ = silent.accept()
            with looking:
                began = time.monotonic()
                gateway.terminate()
                assert gateway.wait() == 0
            assert time.monotonic() - began < PROMPT_S
        finally:
            gateway.kill()


async def streams(http: httpx.AsyncClient, count: int) -> bool:
    return f"iwl_event_streams {count}.0" in (await http.get("/metrics")).text


async def test_a_client_that_leaves_its_stream_is_forgotten(
    serve: Serve, private_server: ServerProcess, client: Callable[[str], httpx.AsyncClient]
) -> None:
    async with client(serve(redis_url=private_server.url).url) as http:
        job_id = (await http.post("/v1/jobs", json=HELLO)).json()["job_id"]
        async with http.stream("GET", f"/v1/jobs/{job_id}/events") as answer:
            await anext(answer.aiter_text())
            assert await streams(http, 1)
        await wait_until(lambda: streams(http, 0))


def test_an_endless_request_head_is_cut_off(serve: Serve, private_server: ServerProcess) -> None:
    with connection(serve(redis_url=private_server.url).url) as client:
        client.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Endless: ")
        answer = b""
        for _ in range(MAX_HEAD_BYTES // 1024 + 8):
            try:
                client.sendall(b"x" * 1024)
            except OSError:
                break
        answer = client.recv(4096)
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert b"application/problem+json" in answer


def test_what_is_not_http_is_a_problem_too(serve: Serve, private_server: ServerProcess) -> None:
    with connection(serve(redis_url=private_server.url).url) as client:
        client.sendall(b"how do you do\r\n\r\n")
        assert b"application/problem+json" in client.recv(4096)


def test_a_body_larger_than_a_head_is_no_head(serve: Serve, private_server: ServerProcess) -> None:
    url = serve(redis_url=private_server.url).url
    with httpx.Client(base_url=url) as http:
        for _ in range(3):
            answer = http.post("/v1/jobs", json={"prompt": "x" * MAX_HEAD_BYTES * 4})
            assert answer.status_code == 202
