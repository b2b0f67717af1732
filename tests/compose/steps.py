"""The steps, in order. Each leaves the whole stack running and every job ended."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import msgspec

from common.job import Outcome
from lab.load import LoadReport
from lab.records import JobRecord
from tests.compose.prometheus import alert_names, panel_queries
from tests.compose.stack import CORE
from tests.compose.trial import Step, Trial
from tests.waiting import wait_until

#: Jobs that two workers run at once.
SLOTS = 8
HEALTHY_WITHIN_S = 60


def outcomes(jobs: list[JobRecord]) -> list[Outcome | None]:
    return [attempt.outcome for job in jobs for attempt in job.attempts]


async def the_files_are_valid(trial: Trial) -> str:
    await trial.stack.compose("--profile", "*", "config", "--quiet")
    await trial.stack.compose("config", "--quiet", file="docker-compose.gpu.yml")
    return "with every profile, and with the GPU file"


async def the_images_build(trial: Trial) -> str:
    await trial.stack.compose("--profile", "load", "build", "--quiet", within=400)
    size = int(await trial.stack.docker("image", "inspect", "--format", "{{.Size}}", trial.stack.image))
    return f"{size / 1e6:.0f} MB with its base"


async def the_stack_is_healthy_within_a_minute(trial: Trial) -> str:
    began = time.monotonic()
    await trial.stack.up()
    seconds = time.monotonic() - began
    assert seconds < HEALTHY_WITHIN_S, f"it took {seconds:.1f} s"
    containers = await trial.stack.containers()
    assert sorted(each.service for each in containers) == sorted([*CORE, "worker"])
    assert containers[0].service == "redis", "something started before the store"
    await trial.until_live(2)
    await trial.stack.up("prometheus")
    return f"redis first, {len(containers)} containers after {seconds:.1f} s, and then Prometheus"


async def containers_are_confined(trial: Trial) -> str:
    containers = await trial.stack.containers()
    for each in containers:
        user = await trial.stack.docker("exec", each.id, "id", "-u")
        assert int(user) > 0, f"{each.service} runs as root"
        assert each.restart_policy == "unless-stopped", each
        assert each.init, f"{each.service} has no init process"
        assert each.memory, f"{each.service} has no memory limit"
        assert each.read_only, f"{each.service} may write to its image"
        assert (each.dropped, each.added) == (("ALL",), ()), f"{each.service} has capabilities"
        assert each.security == ("no-new-privileges:true",), f"{each.service} may become more than it is"
        assert each.published <= {"127.0.0.1"}, f"{each.service} is published to the network"
    published = {each.service for each in containers if each.published}
    assert published == {"api", "prometheus"}, published
    return "no root, no capabilities, read-only, limits, init, restart policies, ports on loopback"


async def jobs_succeed(trial: Trial) -> str:
    report = await load(trial, jobs=400, latency_ms=20)
    return f"{report.succeeded} of {report.jobs}, {report.jobs_per_s} jobs/s, p95 {report.p95_ms} ms"


async def load(trial: Trial, *, jobs: int, latency_ms: int) -> LoadReport:
    """The load generator of the stack; each of its clients waits for its job's end. All must succeed."""
    options = ("--jobs", str(jobs), "--concurrency", "16", "--latency-ms", str(latency_ms), "--json")
    output = await trial.stack.compose("run", "--rm", "-T", "--no-deps", "iwl", "load", *options)
    report = msgspec.json.decode(output, type=LoadReport)
    assert report.succeeded == jobs, report
    return report


async def a_crashed_worker_is_restarted(trial: Trial) -> str:
    [job] = await trial.succeeded(await trial.submit(1, 10, fail="exit", fail_attempts=1))
    assert outcomes([job]) == [Outcome.CRASH, Outcome.SUCCEEDED], job
    workers = await trial.stack.containers("worker")
    assert sum(each.restarts for each in workers) == 1, workers
    first, second = job.attempts
    return f"{first.worker} crashed, {second.worker} succeeded, and the engine restarted the container"


async def a_killed_worker_loses_nothing(trial: Trial) -> str:
    ids = await trial.submit(2 * SLOTS, 1500)
    await trial.until(lambda stats: stats.running == SLOTS)
    victim = (await trial.stack.containers("worker"))[0]
    await trial.stack.docker("kill", victim.id)
    jobs = await trial.succeeded(ids)
    crashed = outcomes(jobs).count(Outcome.CRASH)
    assert crashed, "the worker was killed, but not in the middle of a job"
    # `docker kill` switches the restart policy off.
    await trial.stack.docker("start", victim.id)
    await trial.until_live(2)
    return f"{len(jobs)} jobs succeeded, {crashed} of them taken over by the other worker"


async def a_restarted_redis_loses_nothing(trial: Trial) -> str:
    return await interrupted_redis(trial, "restart")


async def a_killed_redis_loses_nothing(trial: Trial) -> str:
    """Every write has reached the kernel before its answer; only the machine's death could lose it."""
    return await interrupted_redis(trial, "kill", "start")


async def interrupted_redis(trial: Trial, *commands: str, jobs: int = 1200) -> str:
    before = (await trial.stats()).submitted
    [redis] = await trial.stack.containers("redis")

    async def interrupt() -> int:
        await trial.until(lambda stats: stats.submitted >= before + jobs // 4)
        for command in commands:
            await trial.stack.docker(command, redis.id)
        await trial.until(lambda stats: stats.submitted > before)
        return (await trial.stats()).submitted - before

    async with asyncio.TaskGroup() as group:
        loading = group.create_task(load(trial, jobs=jobs, latency_ms=20))
        interrupting = group.create_task(interrupt())
    accepted, report = interrupting.result(), loading.result()
    assert accepted < jobs, "the load was over before the interruption"
    return f"{report.succeeded} accepted jobs succeeded, about {accepted} of them accepted before it"


async def workers_scale_to_four_and_back(trial: Trial) -> str:
    early = await trial.submit(5 * SLOTS, 1000)
    await trial.stack.up("worker", workers=4)
    await trial.until_live(4)
    late = await trial.submit(8 * SLOTS, 500)
    await trial.until(lambda stats: stats.running == 2 * SLOTS)
    await trial.stack.up("worker", workers=2)
    await trial.until_live(2)
    jobs = await trial.succeeded(early + late)
    names = {attempt.worker for job in jobs for attempt in job.attempts}
    assert names == {f"worker-{n}" for n in range(1, 5)}, names
    assert set(outcomes(jobs)) == {Outcome.SUCCEEDED}, "work was dropped"
    return f"{len(jobs)} jobs on {', '.join(sorted(names))}, one attempt each"


async def a_stop_drains(trial: Trial) -> str:
    ids = await trial.submit(SLOTS + 4, 3000)
    await trial.until(lambda stats: stats.running == SLOTS)
    began = time.monotonic()
    await trial.stack.compose("stop", "worker")
    seconds = time.monotonic() - began
    workers = await trial.stack.containers("worker")
    assert [each.exit_code for each in workers] == [0, 0], workers
    stats = await trial.stats()
    assert (stats.running, stats.queued) == (0, 4), stats
    await trial.stack.up()
    jobs = await trial.succeeded(ids)
    assert set(outcomes(jobs)) == {Outcome.SUCCEEDED}, "a drain cut work short"
    return f"{SLOTS} running jobs finished in {seconds:.1f} s, 4 waited for the next start"


async def the_queue_outlives_the_containers(trial: Trial) -> str:
    await trial.stack.compose("stop", "worker")
    ids = await trial.submit(20, 50)
    before = await trial.stats()
    await trial.stack.compose("--profile", "observe", "down")
    await trial.stack.up("redis", "api")
    await trial.until(lambda _: True)
    after = await trial.stats()
    assert replace(after, drain_rate=None) == replace(before, drain_rate=None)
    await trial.stack.up()
    await trial.succeeded(ids)
    await trial.stack.up("prometheus")
    return f"{after.queued} queued jobs and {after.succeeded} results found again after down and up"


async def prometheus_scrapes_every_process(trial: Trial) -> str:
    expected = {"api": 1, "worker": 2, "scaler": 1}

    async def so() -> bool:
        return await trial.prometheus.targets_up() == expected

    await wait_until(so, 60, every=0.5)
    return ", ".join(f"{job} {count}" for job, count in expected.items())


async def every_panel_shows_data(trial: Trial) -> str:
    """Numbers in the time since the start, for every query of every panel."""
    queries = list(panel_queries())
    found = await asyncio.gather(
        *(trial.prometheus.numbers(expression, trial.began) for _, expression in queries)
    )
    empty = [query for query, numbers in zip(queries, found, strict=True) if not numbers]
    assert not empty, f"no data: {empty}"
    panels = {panel for panel, _ in queries}
    return f"{len(queries)} queries of {len(panels)} panels, {sum(found)} numbers"


async def alert_rules_load_and_pass_their_tests(trial: Trial) -> str:
    async def so() -> bool:
        return await trial.prometheus.rules() == dict.fromkeys(alert_names(), "ok")

    await wait_until(so, 30, every=0.5)
    wrong = await trial.prometheus.firing() & {"JobsUnaccounted", "JobsLost", "EntriesRemovedByOthers"}
    assert not wrong, f"firing: {wrong}"
    tested = ("promtool", "test", "rules", "/etc/prometheus/alerts_test.yml")
    await trial.stack.compose("exec", "-T", "prometheus", *tested)
    return f"{len(alert_names())} alerts"


#: Before the stack runs there are no jobs to account for.
PREPARATION: tuple[Step, ...] = (the_files_are_valid, the_images_build)
STEPS: tuple[Step, ...] = (
    the_stack_is_healthy_within_a_minute,
    containers_are_confined,
    jobs_succeed,
    a_crashed_worker_is_restarted,
    a_killed_worker_loses_nothing,
    a_restarted_redis_loses_nothing,
    a_killed_redis_loses_nothing,
    workers_scale_to_four_and_back,
    a_stop_drains,
    the_queue_outlives_the_containers,
    prometheus_scrapes_every_process,
    every_panel_shows_data,
    alert_rules_load_and_pass_their_tests,
)
