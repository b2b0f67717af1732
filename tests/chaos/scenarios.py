"""What happens to the one job of a trial. Each plays against live processes and checks the client's view."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from tests.chaos.client import Client, Json
from tests.chaos.spots import Side, Spot
from tests.chaos.succession import Heir, Life
from tests.chaos.verdict import demand

Play = Callable[[Client], Awaitable[None]]

PROMPT = "what survives a crash"
#: Longer than a heartbeat, so that leases are renewed while the job runs.
RUN_MS = 200
#: A job that somebody ends from outside.
LONG_MS = 10_000
KEY = "order-7"
#: A deadline that no trial comes to: it must go with its job.
FAR_S = 600


@dataclass(frozen=True, kw_only=True)
class Scenario:
    name: str
    play: Play
    settings: Mapping[str, str] = field(default_factory=dict[str, str])
    #: Whose crash points are tried.
    roles: tuple[str, ...] = ("worker", "gateway")
    #: Needs a server with WAITAOF.
    durable: bool = False
    #: Lives of workers before the one whose crash points are tried.
    before: tuple[Life, ...] = ()


async def success(client: Client) -> None:
    """One job, without an idempotency key: whoever repeats a submit gets a second job, and both end."""
    job = await client.end(await client.submit(prompt=PROMPT, params=mock(latency_ms=RUN_MS)))
    succeeded(job)
    await ends_of(client, at_most=client.submits)


async def repeated(client: Client) -> None:
    """The same key again, after a death or without one: one job."""
    body = {
        "prompt": PROMPT,
        "params": mock(latency_ms=RUN_MS),
        "idempotency_key": KEY,
        "expires_in_s": FAR_S,
    }
    first = await client.submit(**body)
    demand(await client.submit(**body) == first, "one key, two jobs")
    succeeded(await client.end(first))
    demand(await client.submit(**body) == first, "one key, two jobs after the end")
    await ends_of(client, at_most=1)


async def streamed(client: Client) -> None:
    job_id = await client.submit(
        prompt=PROMPT, params=mock(latency_ms=RUN_MS), stream=True, idempotency_key=KEY
    )
    text = await client.follow(job_id)
    job = await client.end(job_id)
    succeeded(job)
    demand(text == PROMPT, "followed:", text)


async def retry(client: Client) -> None:
    orders = mock(fail="error", fail_attempts=1)
    job = await client.end(
        await client.submit(prompt=PROMPT, params=orders, expires_in_s=FAR_S, idempotency_key=KEY)
    )
    succeeded(job)
    # A start that died before its model call counts as one, and its successor does not fail.
    demand({"error", "crash"} & {line["outcome"] for line in job["attempts"]}, "never failed:", job)


async def dead_letter(client: Client) -> None:
    await failed_job(client, fail="error")


async def redrive(client: Client) -> None:
    dead = await failed_job(client, fail="permanent")
    order = {"ids": [dead["job_id"]]}
    report = await client.ask("POST", "/v1/dlq/redrive", body=order)
    demand([pair["job_id"] for pair in report["jobs"]] == order["ids"], "not redriven:", report)
    for pair in report["jobs"]:
        demand((await client.end(pair["new_job_id"]))["status"] == "failed", "redriven, and not failed")
    again = await client.ask("POST", "/v1/dlq/redrive", body=order)
    demand(again["jobs"] == report["jobs"], "redriven as", report, "and then as", again)
    repeats = [job for job in await ends_of(client, at_most=2) if job.get("redrive_of") == dead["job_id"]]
    demand([job["job_id"] for job in repeats] == [pair["new_job_id"] for pair in again["jobs"]], repeats)


async def cancel(client: Client) -> None:
    params = mock(latency_ms=LONG_MS)
    job_id = await client.submit(prompt=PROMPT, params=params, expires_in_s=FAR_S, idempotency_key=KEY)
    await client.running(job_id)
    told = await client.ask("DELETE", f"/v1/jobs/{job_id}")
    demand(told["status"] == "cancelled", "not cancelled:", told)
    demand(await client.end(job_id) == told, "cancelled, and then:", told)
    # The worker's only slot is free again: it has heard of it.
    succeeded(await client.end(await client.submit(prompt=PROMPT, params=mock(latency_ms=0))))


async def deadline(client: Client) -> None:
    params = mock(latency_ms=LONG_MS)
    job_id = await client.submit(prompt=PROMPT, params=params, expires_in_s=0.3, idempotency_key=KEY)
    job = await client.end(job_id)
    demand(job["status"] == "expired", "not expired:", job)


async def drain(client: Client) -> None:
    """SIGTERM while the job runs, and not enough time to finish it."""
    orders = mock(latency_ms=2 * RUN_MS)
    job_id = await client.submit(prompt=PROMPT, params=orders, idempotency_key=KEY)
    await client.running(job_id)
    client.workers.dismiss()
    succeeded(await client.end(job_id))
    await client.workers.left()


async def takeover(client: Client) -> None:
    job = await client.end(
        await client.submit(prompt=PROMPT, params=mock(latency_ms=RUN_MS), idempotency_key=KEY)
    )
    succeeded(job)
    demand("crash" in {line["outcome"] for line in job["attempts"]}, "nobody died:", job)


async def crash_out(client: Client) -> None:
    """A budget that the first death may spend."""
    job = await client.end(
        await client.submit(prompt=PROMPT, params=mock(latency_ms=RUN_MS), idempotency_key=KEY)
    )
    demand((job["status"], job["error"]["cause"]) == ("failed", "crash"), "not failed of a crash:", job)


async def last_start(client: Client) -> None:
    """The second start is the last: it succeeds, or its worker dies in it too."""
    job = await client.end(
        await client.submit(prompt=PROMPT, params=mock(latency_ms=RUN_MS), idempotency_key=KEY)
    )
    crashes = [line["outcome"] for line in job["attempts"]].count("crash")
    demand(job["status"] == ("failed" if crashes == 2 else "succeeded"), "wrong end:", job)


async def batch(client: Client) -> None:
    """Three jobs at a time, which begin and end together."""
    for job in await run_three(client):
        succeeded(job)


async def suspects(client: Client) -> None:
    """Three jobs on their last start after a death: each runs alone, so that the next death ends one only."""
    jobs = await run_three(client)
    failed = [job for job in jobs if job["status"] == "failed"]
    demand(len(failed) < max(1, client.workers.deaths), "one death ended more than one job:", jobs)
    for job in jobs:
        if job not in failed:
            succeeded(job)


async def scaled(client: Client) -> None:
    """A decision is published, whoever publishes it."""
    await success(client)
    scale = await client.until("/v1/scale", lambda scale: scale["desired"] is not None)
    demand(scale["desired"] >= 1, "not scaled:", scale)


# ---------------------------------------------------------------- steps


def mock(**orders: object) -> Json:
    return {"mock": orders}


def succeeded(job: Json) -> None:
    demand(job["status"] == "succeeded" and job["result"]["text"] == PROMPT, "not succeeded:", job)


async def run_three(client: Client) -> list[Json]:
    body = {"prompt": PROMPT, "params": mock(latency_ms=RUN_MS)}
    keys = [f"{KEY}{letter}" for letter in "abc"]
    ids = await asyncio.gather(*(client.submit(**body, idempotency_key=key) for key in keys))
    return list(await asyncio.gather(*(client.end(job_id) for job_id in ids)))


async def failed_job(client: Client, *, fail: str) -> Json:
    job_id = await client.submit(prompt=PROMPT, params=mock(fail=fail), idempotency_key=KEY)
    job = await client.end(job_id)
    demand(job["status"] == "failed", "not failed:", job)
    # A worker may have died in the last start.
    demand(job["error"]["cause"] in (fail, "crash"), "failed of something else:", job)
    return job


async def ends_of(client: Client, *, at_most: int) -> list[Json]:
    """Every job there is, ended; also those that nobody was told about."""
    jobs = (await client.ask("GET", "/v1/jobs"))["jobs"]
    demand(len(jobs) <= at_most, "more jobs than submits:", jobs)
    return [await client.end(job["job_id"]) for job in jobs]


DIES_IN_THE_JOB = Spot("begin", 1, Side.AFTER)

#: Whose points are tried before the store has been checked; there, all scenarios are the same.
STARTS = {"worker": "success", "gateway": "success", "scaler": "scale"}

SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario(name="success", play=success),
        Scenario(name="repeated submit", play=repeated),
        Scenario(
            name="durable submit",
            play=repeated,
            settings={"durability": "aof"},
            roles=("gateway",),
            durable=True,
        ),
        Scenario(name="event stream", play=streamed),
        Scenario(name="batch", play=batch),
        Scenario(name="retry", play=retry),
        Scenario(name="dead letter", play=dead_letter),
        Scenario(name="redrive", play=redrive),
        Scenario(name="cancel", play=cancel, settings={"worker_concurrency": "1"}),
        Scenario(name="deadline", play=deadline),
        Scenario(name="drain", play=drain, settings={"drain_ms": "50"}),
        Scenario(name="restart", play=takeover, roles=("worker",), before=(Life(spot=DIES_IN_THE_JOB),)),
        Scenario(
            name="takeover",
            play=takeover,
            roles=("worker",),
            before=(Life(spot=DIES_IN_THE_JOB, heir=Heir.STRANGER),),
        ),
        Scenario(
            name="last start",
            play=last_start,
            roles=("worker",),
            settings={"max_attempts": "2"},
            before=(Life(spot=DIES_IN_THE_JOB),),
        ),
        Scenario(
            name="suspects",
            play=suspects,
            roles=("worker",),
            settings={"max_attempts": "2"},
            before=(Life(spot=DIES_IN_THE_JOB),),
        ),
        Scenario(
            name="crash out",
            play=crash_out,
            roles=("worker",),
            settings={"max_attempts": "1"},
            before=(Life(spot=DIES_IN_THE_JOB),),
        ),
        Scenario(name="scale", play=scaled, roles=("scaler",)),
    )
}
