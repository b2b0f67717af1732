"""What the API answers about the whole. Durations are seconds, absent is null."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from api.drain import rough
from api.shapes import Instant, instant, instant_or_null
from common.fleet import Backlog, Reason, ScaleChange, ScaleView

DRAIN_RATE = (
    "Jobs ended per second while there was work, over the last minute; null before anything is known."
)
REASONS = """Why the desired count is what it is. `start`: the first decision. `backlog_up`: more work than
the workers hold. `wake`: work, and nobody there. `steady`: as many as are wanted. `hold_busy`: fewer
would do, but work is in flight. `hold_window`: fewer would do, but it has not been quiet for long
enough. `scale_down`: it has. `clamped`: new limits. `unknown_input`: the backlog is not known, and
the last decision stands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    submitted: int
    awaiting_upload: int
    queued: int
    running: int
    retrying: int
    succeeded: int
    failed: int
    cancelled: int
    expired: int
    dead_letters: int
    #: Submitted less everything else known of; anything but 0 means that somebody wrote to our keys.
    unaccounted: int
    lag: int | None
    pending: int | None
    drain_rate: Annotated[float | None, Field(description=DRAIN_RATE)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleStep:
    at: Instant
    desired: int
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    desired: int | None
    live: int
    #: Live workers that the scale lets read.
    active: int
    busy: int
    lag: int | None
    pending: int | None
    retrying: int | None
    min: int | None
    max: int | None
    reason: Annotated[Reason | None, Field(description=REASONS)]
    updated_at: Instant | None
    age_s: float | None
    stale: bool
    leader: str | None
    #: Newest first; only changes of the desired count.
    history: list[ScaleStep]


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    status: Literal["ok", "ready"]


def stats(backlog: Backlog, drain_rate: float | None) -> Stats:
    return Stats(
        submitted=backlog.submitted,
        awaiting_upload=backlog.awaiting_upload,
        queued=backlog.queued,
        running=backlog.running,
        retrying=backlog.retrying,
        succeeded=backlog.succeeded,
        failed=backlog.failed,
        cancelled=backlog.cancelled,
        expired=backlog.expired,
        dead_letters=backlog.dead_letters,
        unaccounted=backlog.unaccounted,
        lag=backlog.lag,
        pending=backlog.pending,
        drain_rate=None if drain_rate is None else rough(drain_rate),
    )


def scale_step(change: ScaleChange) -> ScaleStep:
    return ScaleStep(at=instant(change.at), desired=change.desired, reason=change.reason)


def scale(view: ScaleView) -> Scale:
    decision = view.decision
    return Scale(
        desired=decision.desired if decision else None,
        live=view.live,
        active=view.active,
        busy=view.busy,
        lag=decision.lag if decision else None,
        pending=decision.pending if decision else None,
        retrying=decision.retrying if decision else None,
        min=decision.min if decision else None,
        max=decision.max if decision else None,
        reason=decision.reason if decision else None,
        updated_at=instant_or_null(view.updated_at),
        age_s=view.age.total_seconds() if view.age is not None else None,
        stale=view.stale,
        leader=view.leader,
        history=[scale_step(each) for each in view.history],
    )
