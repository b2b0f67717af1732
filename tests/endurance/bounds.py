"""What a long run must not show: one line for each bound that is broken. Unknown is broken, and not 0."""

from __future__ import annotations

from collections.abc import Iterator

from tests.endurance.run import Account, Plan
from tests.endurance.samples import MIB, Samples

#: One heartbeat of the plan, and where the alert LoopLag begins: a worker that is later misses a renewal.
LOOP_LAG_S = 1.0
PARTS = ("api", "scaler", "worker")
#: Of resident set, beyond the first sample. A leak of 100 bytes a job is more than that after 100,000.
GROWTH = 8 * MIB
#: The server's, for a job that waits or runs: record, request, entry, lease.
LIVE_JOB = 4096
#: And for one that has ended: its result, kept for a day. 410 bytes were seen, with keys' tables half full.
ENDED_JOB = 600
#: Whatever the jobs: clients' buffers, scripts, tables that double.
SERVER_SLACK = 4 * MIB


def faults(plan: Plan, account: Account) -> list[str]:
    return [*_jobs(account), *_left_over(account), *_fleet(plan, account), *_sizes(account.samples)]


def _jobs(account: Account) -> Iterator[str]:
    if account.ends["succeeded"] != account.accepted:
        yield f"jobs that did not succeed: {account.accepted} accepted, {dict(account.ends)}"
    if unaccounted := [each for each in account.samples.unaccounted if each]:
        yield f"samples with jobs unaccounted for: {unaccounted}"
    if account.took_effect_twice:
        yield f"took effect twice: {account.took_effect_twice[:5]}"


def _left_over(account: Account) -> Iterator[str]:
    if account.leaked:
        yield f"keys of no job: {account.leaked[:5]}"
    for what, count in {"entries": account.entries, "deliveries": account.pending}.items():
        if count != 0:
            yield f"{what} of no job: {'unknown' if count is None else count}"


def _fleet(plan: Plan, account: Account) -> Iterator[str]:
    if account.kills != plan.kills:
        yield f"workers killed: {account.kills}, planned {plan.kills}"
    consumers = account.samples.consumers
    if not 0 < consumers <= plan.workers:
        yield f"consumers of the group: {consumers}, of {plan.workers} workers"


def _sizes(seen: Samples) -> Iterator[str]:
    for part in PARTS:
        lags = seen.loop_lags.get(part, [])
        if not lags or max(lags) >= LOOP_LAG_S:
            yield f"event loop's delay of {part}: {f'{max(lags):.3f} s' if lags else 'unknown'}"
        grown = seen.rss[part] - seen.rss_at_first[part] if part in seen.rss else None
        if grown is None or grown > GROWTH:
            yield f"growth of {part}: {'unknown' if grown is None else f'{grown / MIB:.1f} MiB'}"
    beyond = [each.used - seen.server_at_first - _due_to(each.live, each.ended) for each in seen.server]
    if not beyond or max(beyond) > SERVER_SLACK:
        yield f"server's memory beyond its jobs: {f'{max(beyond) / MIB:.1f} MiB' if beyond else 'unknown'}"


def _due_to(live: int, ended: int) -> int:
    return live * LIVE_JOB + ended * ENDED_JOB
