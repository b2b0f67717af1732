"""The checks after a trial: what the client was told, what the store says, what is left in it."""

from __future__ import annotations

from typing import Any

from redis.asyncio import Redis

from common.redis_store.keys import Keys
from tests.chaos.client import ENDED, Client, Json
from tests.chaos.succession import Fault
from tests.instant import wrong_now
from tests.keyspace import leaks

#: Where a job may be that has not ended.
UNFINISHED = ("awaiting_upload", "queued", "running", "retrying", "lag", "pending")
MAX_REFUNDS = 10


def demand(holds: object, *words: object) -> None:
    if not holds:
        raise Fault(" ".join(str(word) for word in words))


async def pass_verdict(client: Client, raw: Redis, namespace: str, *, budget: int, deaths: int) -> None:
    """Raises Fault. `deaths` is how many workers died."""
    jobs = {job["job_id"]: job for job in (await client.ask("GET", "/v1/jobs"))["jobs"]}
    letters = (await client.ask("GET", "/v1/dlq"))["jobs"]
    stats = await client.ask("GET", "/v1/stats")
    for job in jobs.values():
        check_job(job, budget, deaths)
    check_told(client, jobs)
    check_letters(letters, jobs)
    check_counts(stats, jobs)
    wrong = await wrong_now(raw, namespace)
    demand(not wrong, "after the end:", wrong)
    left = await leaks(raw, namespace, Keys(namespace).permanent)
    demand(not left, "promise P7, keys left behind:", left)


def check_job(job: Json, budget: int, deaths: int) -> None:
    """Ended once, within its budget, with at most one effect."""
    lines: list[Any] = job["attempts"]
    outcomes = [line["outcome"] for line in lines]
    numbers = [line["n"] for line in lines]
    demand(job["status"] in ENDED, "not ended:", job)
    demand(all(line["ended_at"] and line["outcome"] for line in lines), "an open attempt:", job)
    demand(numbers == list(range(1, len(lines) + 1)), "attempts with wrong numbers:", job)
    refunds = min(outcomes.count("released"), MAX_REFUNDS)
    demand(len(lines) - refunds <= budget, "more starts than the budget allows:", job)
    demand(outcomes.count("succeeded") == (job["status"] == "succeeded"), "not one effect:", job)
    demand(outcomes.count("crash") <= deaths, "crashes without a death:", job)


def check_told(client: Client, jobs: dict[str, Json]) -> None:
    """Whatever the client was told is so, and stays so (P9)."""
    for job_id, told in client.told.items():
        demand(job_id in jobs, "accepted, but not there:", job_id)
        demand(not told or told == jobs[job_id], "told", told, "and then", jobs.get(job_id))


def check_letters(letters: list[Json], jobs: dict[str, Json]) -> None:
    """A dead letter for each failed job, until it is redriven once."""
    dead = sorted(letter["job_id"] for letter in letters)
    repeated = sorted(job["redrive_of"] for job in jobs.values() if job.get("redrive_of"))
    failed = sorted(job_id for job_id, job in jobs.items() if job["status"] == "failed")
    demand(sorted(dead + repeated) == failed, "failed", failed, "dead", dead, "redriven", repeated)


def check_counts(stats: Json, jobs: dict[str, Json]) -> None:
    demand(stats["unaccounted"] == 0, "promise P1:", stats)
    demand(stats["submitted"] == len(jobs), "jobs that are not listed:", stats)
    demand(not any(stats[name] for name in UNFINISHED), "unfinished:", stats)
    for status in ENDED:
        count = sum(job["status"] == status for job in jobs.values())
        demand(stats[status] == count, status, "counted", stats[status], "of", count)
