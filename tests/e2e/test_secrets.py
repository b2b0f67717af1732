"""Secrets show up nowhere: a whole lab is run with known ones, and all that it ever says is read."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from common.settings import child_environment
from lab.ports import free_port
from tests.api.keyring import line, write_keys
from tests.e2e.labs import IWL, RunningLab
from tests.servers import ServerProcess
from tests.waiting import wait_until
from tests.worker.engine import Engine, refusing, speaking

pytestmark = [pytest.mark.server, pytest.mark.timeout(120)]

PASSWORD, ENGINE_KEY = "store-secret-1f6a", "engine-secret-7c2e"
ANN, OPS, WRONG = "ann-secret-93bd", "ops-secret-b5d0", "wrong-secret-0e4c"
SECRETS = (PASSWORD, ENGINE_KEY, ANN, OPS, WRONG)


@pytest.fixture
def engine() -> Iterator[Engine]:
    running = Engine()
    running.start()
    yield running
    running.stop()


@pytest.fixture
async def store(private_server: ServerProcess) -> str:
    """URL of a server that wants a password."""
    async with private_server.connect() as raw:
        await raw.config_set("requirepass", PASSWORD)  # pyright: ignore[reportUnknownMemberType]
    return private_server.url.replace("redis://", f"redis://:{PASSWORD}@")


class Ear:
    """Hears everything, and remembers who gave a secret away."""

    def __init__(self, api: str) -> None:
        self.api = api
        self.told: dict[str, str] = {}

    def call(self, method: str, path: str, key: str | None, **body: object) -> httpx.Response:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        content = json.dumps(body) if body else None
        answer = httpx.request(method, self.api + path, headers=headers, content=content, timeout=20)
        self.told[f"{method} {path} {len(self.told)}"] = f"{answer.headers.multi_items()} {answer.text}"
        return answer

    def is_served(self, path: str) -> bool:
        try:
            return httpx.get(self.api + path).is_success
        except httpx.TransportError:
            return False

    def iwl(self, *words: str, key: str, **settings: str) -> int:
        environment = child_environment(**({"api_url": self.api, "api_key": key} | settings))
        ended = subprocess.run([IWL, *words], env=environment, capture_output=True, text=True, timeout=30)
        self.told[f"iwl {' '.join(words)} {len(self.told)}"] = ended.stdout + ended.stderr
        return ended.returncode

    def gave_away(self) -> set[tuple[str, str]]:
        return {(who, secret) for who, said in self.told.items() for secret in SECRETS if secret in said}


async def use_everything(ear: Ear, engine: Engine) -> None:
    """Two jobs; refusals; every page; commands, rightly and wrongly used."""
    assert ear.call("POST", "/v1/jobs", None, prompt="x").status_code == 401
    assert ear.call("POST", "/v1/jobs", WRONG, prompt="x").status_code == 401
    assert ear.call("GET", "/v1/stats", ANN).status_code == 403
    await use_the_engine(ear, engine)
    for path in ("/v1/jobs", "/v1/dlq", "/v1/scale", "/v1/stats", "/metrics", "/openapi.json", "/readyz"):
        assert ear.call("GET", path, OPS).status_code == 200
    assert ear.iwl("stats", key=OPS) == 0
    assert ear.iwl("submit", "hi", key=WRONG) == 1
    assert ear.iwl("submit", "hi", key=f"{WRONG} {WRONG}") == 2
    assert ear.iwl("submit", "hi", key=OPS, api_url="http://127.0.0.1:1") == 3
    assert ear.iwl("dlq", "list", key=ANN) == 0
    assert ear.iwl("dlq", "redrive", "--cause", "error", "--dry-run", key=ANN) == 0


async def use_the_engine(ear: Ear, engine: Engine) -> None:
    """A job that succeeds and one that fails."""
    engine.behaviours += [speaking("hello"), refusing(401, {"error": {"message": "who are you?"}})]
    for _ in range(2):
        job_id = ear.call("POST", "/v1/jobs", ANN, prompt="hi", stream=True).json()["job_id"]

        def ended(job: str = job_id) -> bool:
            return ear.call("GET", f"/v1/jobs/{job}?wait=5", ANN).json()["finished_at"] is not None

        await wait_until(ended, timeout=20)
        ear.call("GET", f"/v1/jobs/{job_id}/events", ANN)
        assert ear.call("DELETE", f"/v1/jobs/{job_id}", ANN).status_code == 409


async def test_no_secret_is_ever_told(
    start_lab: Callable[..., RunningLab],
    private_server: ServerProcess,
    store: str,
    engine: Engine,
    tmp_path: Path,
) -> None:
    keys = write_keys(tmp_path / "keys.jsonl", line("ann", ANN), line("ops", OPS, operator=True))
    lab = start_lab(
        *("--redis-url", store, "--data", str(tmp_path / "lab"), "--workers", "1"),
        backend="vllm", vllm_url=engine.url, vllm_api_key=ENGINE_KEY, api_keys_file=str(keys),
        log_level="DEBUG", max_attempts="1",
    )  # fmt: skip
    ear = Ear(lab.ready.api)
    ear.told["iwl up --json"] = str(lab.ready)
    await use_everything(ear, engine)
    assert {headers["authorization"] for headers in engine.headers} == {f"Bearer {ENGINE_KEY}"}
    private_server.pause()
    assert ear.call("GET", "/v1/stats", OPS).status_code == 503
    private_server.kill()
    assert ear.call("POST", "/v1/jobs", ANN, prompt="hi").status_code == 503
    out, err = lab.end()
    ear.told |= {"iwl up": out + err} | {
        log.name: log.read_text() for log in (tmp_path / "lab").glob("*.log")
    }
    assert {"api.log", "scaler.log", "worker-1.log"} <= ear.told.keys()
    assert not ear.gave_away()


SERVICES = ("api", "scaler", "worker")


def shown(page: str) -> str:
    return httpx.get(page).raise_for_status().text


async def test_no_metrics_page_tells_a_secret(store: str, engine: Engine, tmp_path: Path) -> None:
    """Those that a lab does not serve: of worker and scaler, and that of a gateway with keys, open to all."""
    keys = write_keys(tmp_path / "keys.jsonl", line("ann", ANN), line("ops", OPS, operator=True))
    port, pages = free_port(), {service: free_port() for service in SERVICES}
    ear = Ear(f"http://127.0.0.1:{port}")
    running = [
        started(
            service, port=str(port), metrics_port=str(pages[service]), redis_url=store, max_attempts="1",
            backend="vllm", vllm_url=engine.url, vllm_api_key=ENGINE_KEY, api_keys_file=str(keys),
        )
        for service in SERVICES
    ]  # fmt: skip
    try:
        await wait_until(lambda: ear.is_served("/readyz"), timeout=20)
        await use_the_engine(ear, engine)
        for service, page in pages.items():
            ear.told[service] = shown(f"http://127.0.0.1:{page}/metrics")
            assert "# TYPE iwl_" in ear.told[service]
    finally:
        for process in running:
            process.terminate()
            process.communicate(timeout=60)
    assert not ear.gave_away()


@pytest.mark.parametrize(
    "url",
    [
        f"redis://:{PASSWORD}/x@host",
        f"amqp://:{PASSWORD}@host",
        PASSWORD,
        f"redis://host/?password={PASSWORD}&foo=bar",
    ],
)
def test_a_store_url_that_cannot_work_is_one_line_without_its_password(url: str) -> None:
    for process in [started(service, redis_url=url) for service in SERVICES]:
        told, _ = process.communicate(timeout=60)
        assert process.returncode == 2
        assert "IWL_REDIS_URL" in told
        assert PASSWORD not in told


def test_a_password_that_the_store_refuses_is_not_told(store: str) -> None:
    told: list[str] = []
    for process in [started(service, redis_url=store.replace("@", "x@")) for service in SERVICES]:
        assert process.stdout
        heard = ""
        while "WARNING" not in heard and (line := process.stdout.readline()):
            heard += line
        process.terminate()
        told.append(heard + process.communicate(timeout=60)[0])
    assert all("The store is away" in said for said in told)
    assert PASSWORD not in "".join(told)


def started(service: str, **settings: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", service],
        env=child_environment(**{"port": "0", "metrics_port": "0"} | settings),
        cwd=Path(__file__).parents[2],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
