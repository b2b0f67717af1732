"""Whatever a client sends, the gateway answers as its own description says, and never with 5xx."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from api.app import create_app
from common.job import new_job_id
from common.redis_store.store import RedisStore
from common.settings import Settings
from tests.api.keyring import KEYS, bearer, line, write_keys
from tests.api.served import GatewayProcess
from tests.conftest import Servers

pytestmark = [pytest.mark.server, pytest.mark.timeout(120)]

#: Imported by name: half of the annotations in there are unknown to a strict checker.
fuzzer = import_module("schemathesis")
checks = import_module("schemathesis.checks")
described = import_module("schemathesis.specs.openapi.checks")

CHECKS = [
    checks.not_a_server_error,
    described.status_code_conformance,
    described.content_type_conformance,
    described.response_headers_conformance,
]
#: The same requests each time: a failure can be looked at. CI gives another one each hour.
SEED = int(os.environ.get("IWL_TEST_FUZZ_SEED", "0"))
#: Valid and invalid requests to each operation.
EXAMPLES = 40
REPEATABLE = settings(
    max_examples=EXAMPLES,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)


def operations() -> Iterator[Any]:
    defaults = Settings()
    app = create_app(RedisStore(defaults), defaults, CollectorRegistry())
    for found in fuzzer.openapi.from_dict(app.openapi()).get_all_operations():
        yield found.ok()


OPERATIONS = {operation.label: operation for operation in operations()}
#: An operator sees and does everything, the other one what is its own.
CALLERS = ("ops", "ann")
SUBMIT = "POST /v1/jobs"
VALID, INVALID = fuzzer.GenerationMode.POSITIVE, fuzzer.GenerationMode.NEGATIVE
#: There is no invalid request where there is nothing to give, or but a path.
KINDS = [(label, VALID) for label in OPERATIONS] + [
    (label, INVALID)
    for label, operation in OPERATIONS.items()
    if [*operation.query, *operation.headers, *operation.body]
]


@pytest.fixture(scope="module")
def gateway(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    keys = write_keys(tmp_path_factory.mktemp("keys") / "keys.jsonl", line("ann"), line("ops", operator=True))
    server = servers.private()
    process = GatewayProcess(redis_url=server.url, api_keys_file=str(keys), metrics_port="0")
    process.wait_for_url()
    yield process
    process.kill()
    servers.stop([server])
    assert not [entry for entry in process.log if '"ERROR"' in entry]


@pytest.fixture(scope="module")
def known(gateway: GatewayProcess) -> list[str | None]:
    """Ids of ended jobs, which no call waits for, of one that never was, and none."""
    ended = dict[str, str]()
    for caller in CALLERS:
        with httpx.Client(base_url=gateway.url, headers=bearer(KEYS[caller])) as http:
            ended[caller] = http.post("/v1/jobs", json={"prompt": "hello", "stream": True}).json()["job_id"]
            http.delete(f"/v1/jobs/{ended[caller]}").raise_for_status()
    # The one that both may see more often: with whatever seed, some requests must get through.
    return [None, new_job_id(), ended["ops"], *[ended["ann"]] * 3]


@pytest.mark.parametrize(("label", "mode"), KINDS)
def test_any_request_is_answered_as_described(
    gateway: GatewayProcess, known: list[str | None], label: str, mode: Any
) -> None:
    print(f"Again: IWL_TEST_FUZZ_SEED={SEED}")  # Shown when the test fails.
    answers = Counter[int]()

    @seed(SEED)
    @REPEATABLE
    @given(
        caller=st.sampled_from(CALLERS),
        case=OPERATIONS[label].as_strategy(generation_mode=mode),
        job_id=st.sampled_from(known),
        prompt=st.none() | st.text(min_size=1),
    )
    def answered(caller: str, case: Any, job_id: str | None, prompt: str | None) -> None:
        if job_id and case.path_parameters:
            case.path_parameters["job_id"] = job_id
        if prompt and mode is VALID and label == SUBMIT:
            # What the schema does not say: one of the two, and parameters for the mock that it knows.
            case.body |= {"prompt": prompt, "messages": None, "params": {"temperature": len(prompt)}}
        response = case.call(base_url=gateway.url, headers=bearer(KEYS[caller]), timeout=10)
        # The lines of an event stream have no schema.
        expected = CHECKS if "events" in label else [*CHECKS, described.response_schema_conformance]
        case.validate_response(response, checks=expected)
        answers[response.status_code] += 1

    answered()
    # Only refused, an operation was not tried at all.
    assert mode is INVALID or any(status < 300 for status in answers), answers
