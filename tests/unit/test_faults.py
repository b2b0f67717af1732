"""The judge of `iwl faults`: what was lost, duplicated or not as promised is found, and is a failure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from common.job import JobStatus, Outcome
from lab.client import Api, Reply
from lab.conservation import Conservation
from lab.exits import ApiRefused, Exit
from lab.faults.books import Account, Books
from lab.faults.fault import Observation
from lab.faults.matrix import FAULTS
from lab.faults.report import Report, Row
from lab.records import AttemptRecord, JobRecord, Stats

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def stats(submitted: int) -> Stats:
    zero = dict.fromkeys(Stats.__slots__, 0)
    return Stats(**zero | {"submitted": submitted})


def report(*, right: bool = True, **found: int) -> Report:
    observation = Observation(seen="something", right=right, recovery=timedelta(seconds=1))
    lost, duplicates = found.get("lost", 0), found.get("duplicates", 0)
    account = Account(jobs=5, lost=lost, duplicates=duplicates, stats=stats(5))
    row = Row.of(FAULTS[0], observation, account)
    kept = Conservation(submitted=5, unaccounted=found.get("unaccounted", 0))
    return Report(faults=[row], conservation=kept, seconds=1)


def test_a_run_in_which_all_was_as_promised_is_a_success() -> None:
    assert report().exit is Exit.OK


def test_a_wrong_observation_is_a_failure() -> None:
    assert report(right=False).exit is Exit.FAILED


@pytest.mark.parametrize("found", ["lost", "duplicates", "unaccounted"])
def test_one_job_too_few_or_too_many_is_a_failure(found: str) -> None:
    assert report(right=True, **{found: 1}).exit is Exit.FAILED


def test_a_run_that_nobody_could_ask_about_is_a_failure() -> None:
    observation = Observation(seen="something", right=True, recovery=timedelta(0))
    assert not Row.of(FAULTS[0], observation, Account(jobs=0, lost=0, duplicates=0, stats=None)).good


def test_the_names_of_faults_are_their_own() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)


class ToldApi(Api):
    """Answers from records that the test holds; jobs without one are unknown."""

    def __init__(self, records: dict[str, JobRecord], submitted: int) -> None:
        super().__init__("http://127.0.0.1:9")
        self.records = records
        self._submitted = submitted

    async def ended(self, job_id: str) -> Reply[JobRecord]:
        if job_id not in self.records:
            raise ApiRefused("404", status=404)
        return Reply(self.records[job_id], repr(self.records[job_id]))

    async def stats(self) -> Reply[Stats]:
        return Reply(stats(self._submitted), "")


def ended(job_id: str, *outcomes: Outcome) -> JobRecord:
    attempts = tuple(
        AttemptRecord(n=n, worker="worker-1", started_at=NOW, outcome=outcome)
        for n, outcome in enumerate(outcomes, 1)
    )
    return JobRecord(
        job_id=job_id, status=JobStatus.SUCCEEDED, created_at=NOW, finished_at=NOW, attempts=attempts
    )


@pytest.fixture
def records() -> dict[str, JobRecord]:
    return {
        "a": ended("a", Outcome.SUCCEEDED),
        "b": ended("b", Outcome.CRASH, Outcome.SUCCEEDED),
    }


def books(records: dict[str, JobRecord], submitted: int = 2) -> Books:
    opened = Books(ToldApi(records, submitted), stats(0))
    opened.accepted(["a", "b"])
    return opened


async def test_jobs_that_ended_once_are_neither_lost_nor_duplicates(records: dict[str, JobRecord]) -> None:
    account = await books(records).account()
    assert (account.jobs, account.lost, account.duplicates) == (2, 0, 0)


async def test_an_accepted_job_that_nobody_knows_is_lost(records: dict[str, JobRecord]) -> None:
    del records["a"]
    assert (await books(records).account()).lost == 1


async def test_a_job_that_succeeded_twice_is_a_duplicate(records: dict[str, JobRecord]) -> None:
    records["a"] = ended("a", Outcome.SUCCEEDED, Outcome.SUCCEEDED)
    assert (await books(records).account()).duplicates == 1


async def test_a_record_that_changed_after_its_end_is_a_duplicate(records: dict[str, JobRecord]) -> None:
    opened = books(records)
    await opened.ends(["a", "b"])
    records["a"] = ended("a", Outcome.ERROR, Outcome.SUCCEEDED)
    assert (await opened.account()).duplicates == 1


async def test_a_job_that_no_client_knows_is_a_duplicate(records: dict[str, JobRecord]) -> None:
    assert (await books(records, submitted=3).account()).duplicates == 1
