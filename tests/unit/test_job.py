"""The job model: ids that tell their time, fingerprints that tell requests apart, a sound state machine."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import RFC_4122, UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.job import (
    TERMINAL,
    TRANSITIONS,
    Event,
    Job,
    JobRequest,
    JobStatus,
    job_id_time,
    long_gone,
    new_job_id,
)

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
DAY = timedelta(days=1)

milliseconds = st.integers(min_value=0, max_value=253_402_300_799_999)  # 1970 to the end of 9999


# ---------------------------------------------------------------- ids


@given(milliseconds)
def test_an_id_is_a_uuid_of_version_7(ms: int) -> None:
    job_id = new_job_id(ms)
    parsed = UUID(job_id)
    assert (parsed.version, parsed.variant) == (7, RFC_4122)
    assert str(parsed) == job_id


@given(milliseconds)
def test_an_id_tells_the_millisecond_it_was_made(ms: int) -> None:
    assert job_id_time(new_job_id(ms)) == datetime.fromtimestamp(ms / 1000, UTC)


@given(milliseconds, milliseconds)
def test_ids_sort_by_time(one: int, other: int) -> None:
    if one != other:
        assert (new_job_id(one) < new_job_id(other)) == (one < other)


def test_ids_of_one_millisecond_differ() -> None:
    ids = {new_job_id(1_700_000_000_000) for _ in range(10_000)}
    assert len(ids) == 10_000


def test_a_new_id_carries_the_present_time() -> None:
    before = datetime.now(UTC)
    made = job_id_time(new_job_id())
    assert made is not None
    assert abs(made - before) < timedelta(seconds=5)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "job-1",
        str(uuid4()),
        new_job_id().upper(),
        new_job_id().replace("-", ""),
        f"{{{new_job_id()}}}",
        f"urn:uuid:{new_job_id()}",
        "ffffffff-ffff-7fff-bfff-ffffffffffff",
    ],
    ids=["empty", "no uuid", "version 4", "upper case", "no dashes", "braces", "urn", "year 10889"],
)
def test_anything_but_a_canonical_uuid7_has_no_time(text: str) -> None:
    assert job_id_time(text) is None


def test_an_id_is_long_gone_when_it_is_older_than_any_result() -> None:
    def id_at(when: datetime) -> str:
        return new_job_id(int(when.timestamp() * 1000))

    assert long_gone(id_at(NOW - DAY - timedelta(milliseconds=1)), DAY, NOW)
    assert not long_gone(id_at(NOW - DAY), DAY, NOW)
    assert not long_gone(id_at(NOW), DAY, NOW)
    assert not long_gone(id_at(NOW + DAY), DAY, NOW)


def test_what_is_no_job_id_was_never_a_job() -> None:
    assert not long_gone("job-1", DAY, NOW)
    assert not long_gone(str(uuid4()), DAY, NOW)


# ---------------------------------------------------------------- fingerprints

REQUEST = JobRequest(
    prompt="hello",
    model="m",
    params={"temperature": 0, "stop": ["a", "b"], "nested": {"x": 1, "y": 2}},
    timeout_s=1.0,
    metadata={"team": "a", "run": 7},
)


def test_a_fingerprint_is_a_sha256_in_hex() -> None:
    assert len(REQUEST.fingerprint()) == 64
    assert set(REQUEST.fingerprint()) <= set("0123456789abcdef")


def test_a_fingerprint_does_not_depend_on_the_order_of_fields() -> None:
    shuffled = replace(
        REQUEST,
        params={"nested": {"y": 2, "x": 1}, "stop": ["a", "b"], "temperature": 0},
        metadata={"run": 7, "team": "a"},
    )
    assert shuffled.fingerprint() == REQUEST.fingerprint()


def test_a_fingerprint_depends_on_the_order_of_lists() -> None:
    other = replace(REQUEST, params={**REQUEST.params, "stop": ["b", "a"]})
    assert other.fingerprint() != REQUEST.fingerprint()


CHANGES: list[dict[str, Any]] = [
    {"prompt": "hello "},
    {"prompt": None, "messages": ({"role": "user", "content": "hello"},)},
    {"model": None},
    {"params": {}},
    {"timeout_s": 2.0},
    {"expires_in_s": 60.0},
    {"stream": True},
    {"metadata": {}},
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: next(reversed(change)))
def test_every_field_of_a_request_is_part_of_its_fingerprint(change: dict[str, Any]) -> None:
    assert replace(REQUEST, **change).fingerprint() != REQUEST.fingerprint()


def test_no_field_of_a_request_was_forgotten_above() -> None:
    assert {name for change in CHANGES for name in change} == set(JobRequest.__dataclass_fields__)


def test_a_request_holds_no_key_and_no_owner() -> None:
    """So the fingerprint is free of them: the same body under two keys is the same request."""
    assert not {"idempotency_key", "owner", "job_id"} & set(JobRequest.__dataclass_fields__)


# ---------------------------------------------------------------- states


def test_terminal_states_have_no_exit() -> None:
    assert not {state for state, _ in TRANSITIONS if state in TERMINAL}


def test_a_state_is_terminal_exactly_when_it_is_listed_so() -> None:
    assert {status for status in JobStatus if status.terminal} == TERMINAL
    assert {status.value for status in TERMINAL} == {"succeeded", "failed", "cancelled", "expired"}


def test_every_event_happens_somewhere() -> None:
    assert {event for _, event in TRANSITIONS} == set(Event)


def test_a_job_begins_its_life_queued() -> None:
    assert {to for (state, _), to in TRANSITIONS.items() if state is None} == {JobStatus.QUEUED}


def test_every_live_state_can_end_in_each_terminal_state_but_only_a_running_job_succeeds() -> None:
    for live in (JobStatus.QUEUED, JobStatus.RUNNING):
        ends = {to for (state, _), to in TRANSITIONS.items() if state == live and to.terminal}
        assert ends == (TERMINAL if live is JobStatus.RUNNING else TERMINAL - {JobStatus.SUCCEEDED})


def test_only_the_start_of_an_attempt_leads_to_running() -> None:
    into = {(state, event) for (state, event), to in TRANSITIONS.items() if to is JobStatus.RUNNING}
    assert {event for state, event in into if state is not JobStatus.RUNNING} == {Event.BEGIN}
    assert {event for state, event in into if state is JobStatus.RUNNING} == {Event.TAKEOVER, Event.REQUEUE}


def test_values_are_frozen() -> None:
    job = Job(job_id=new_job_id(), status=JobStatus.QUEUED, created_at=NOW)
    with pytest.raises(AttributeError):
        job.status = JobStatus.RUNNING  # pyright: ignore[reportAttributeAccessIssue]
