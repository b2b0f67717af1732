"""Secrets show up nowhere: a whole lab is run with known ones, and all that it ever says is read."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from common.settings import child_environment
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

    def __init__(self, lab: RunningLab) -> None:
        self.lab = lab
        self.told: dict[str, str] = {}

    def call(self, method: str, path: str, key: str | None, **body: object) -> httpx.Response:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        content = json.dumps(body) if body else None
        answer = httpx.request(
            method, self.lab.ready.api + path, headers=headers, content=content, timeout=20
        )
        self.told[f"{method} {path} {len(self.told)}"] = f"{answer.headers.multi_items()} {answer.text}"
        return answer

    def iwl(self, *words: str, key: str, **settings: str) -> int:
        environment = child_environment(**({"api_url": self.lab.ready.api, "api_key": key} | settings))
        ended = subprocess.run([IWL, *words], env=environment, capture_output=True, text=True, timeout=30)
        self.told[f"iwl {' '.join(words)} {len(self.told)}"] = ended.stdout + ended.stderr
        return ended.returncode

    def gave_away(self) -> set[tuple[str, str]]:
        return {(who, secret) for who, said in self.told.items() for secret in SECRETS if secret in said}


async def use_everything(ear: Ear, engine: Engine) -> None:
    """A job that succeeds, one that fails, one that is cancelled; refusals; every page; every command."""
    engine.behaviours += [speaking("hello"), refusing(401, {"error": {"message": "who are you?"}})]
    assert ear.call("POST", "/v1/jobs", None, prompt="x").status_code == 401
    assert ear.call("POST", "/v1/jobs", WRONG, prompt="x").status_code == 401
    assert ear.call("GET", "/v1/stats", ANN).status_code == 403
    for _ in range(2):
        job_id = ear.call("POST", "/v1/jobs", ANN, prompt="hi", stream=True).json()["job_id"]

        def ended(job: str = job_id) -> bool:
            return ear.call("GET", f"/v1/jobs/{job}?wait=5", ANN).json()["finished_at"] is not None

        await wait_until(ended, timeout=20)
        ear.call("GET", f"/v1/jobs/{job_id}/events", ANN)
    ear.call("DELETE", f"/v1/jobs/{job_id}", ANN)
    for path in ("/v1/jobs", "/v1/dlq", "/v1/scale", "/v1/stats", "/metrics", "/openapi.json", "/readyz"):
        assert ear.call("GET", path, OPS).status_code == 200
    assert ear.iwl("stats", key=OPS) == 0
    assert ear.iwl("submit", "hi", key=WRONG) == 1
    assert ear.iwl("submit", "hi", key=f"{WRONG} {WRONG}") == 2
    assert ear.iwl("submit", "hi", key=OPS, api_url="http://127.0.0.1:1") == 3
    assert ear.iwl("dlq", "list", key=ANN) == 0
    assert ear.iwl("dlq", "redrive", "--cause", "error", "--dry-run", key=ANN) == 0


@pytest.mark.parametrize("level", ["INFO", "DEBUG"])
async def test_no_secret_is_ever_told(
    start_lab: Callable[..., RunningLab],
    private_server: ServerProcess,
    store: str,
    engine: Engine,
    tmp_path: Path,
    level: str,
) -> None:
    keys = write_keys(tmp_path / "keys.jsonl", line("ann", ANN), line("ops", OPS, operator=True))
    lab = start_lab(
        *("--redis-url", store, "--data", str(tmp_path / "lab"), "--workers", "1"),
        backend="vllm", vllm_url=engine.url, vllm_api_key=ENGINE_KEY, api_keys_file=str(keys),
        log_level=level, max_attempts="1",
    )  # fmt: skip
    ear = Ear(lab)
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


@pytest.mark.parametrize(
    "url", ["redis://:{0}@127.0.0.1:1/0", "redis://ann:{0}x@{1}", "redis://:{0}/x@h", "{0}"]
)
def test_a_store_that_cannot_be_used_is_named_without_its_password(
    store: str, url: str, private_server: ServerProcess
) -> None:
    where = f"127.0.0.1:{private_server.port}"
    for program in (["-m", "scaler"], ["-m", "api"], ["-m", "worker"]):
        told = told_by(*program, redis_url=url.format(PASSWORD, where))
        assert PASSWORD not in told


def told_by(*program: str, **settings: str) -> str:
    """Its first seconds."""
    environment = child_environment(port="0", metrics_port="0", **settings)
    process = subprocess.Popen(
        [IWL.with_name("python"), *program], env=environment, cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        return process.communicate(timeout=2)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        return process.communicate()[0]
