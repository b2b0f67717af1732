"""How many workers there should be. Pure: no clock, no store, no I/O.

Up at once, down only after a whole quiet window, never on a guess: an input that is not known holds the
last decision, and is not read as zero.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta

from common.fleet import Backlog, Decision, Reason
from common.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    min: int
    max: int
    #: Jobs one worker runs at once.
    concurrency: int
    #: Lag from which the fleet grows.
    up_lag: int
    #: Lag up to which the fleet may shrink.
    down_lag: int
    #: How long it must have been quiet before the fleet shrinks.
    window: timedelta

    @classmethod
    def of(cls, settings: Settings) -> Limits:
        return cls(
            min=settings.min_workers,
            max=settings.max_workers,
            concurrency=settings.worker_concurrency,
            up_lag=settings.scale_up_lag,
            down_lag=settings.scale_down_lag,
            window=timedelta(milliseconds=settings.scale_down_window_ms),
        )

    def clamp(self, workers: int) -> int:
        return max(self.min, min(workers, self.max))


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What the store said, in jobs; None is "not known"."""

    lag: int | None
    pending: int | None
    retrying: int | None

    @classmethod
    def of(cls, backlog: Backlog) -> Observation:
        return cls(lag=backlog.lag, pending=backlog.pending, retrying=backlog.retrying)


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What one decision leaves for the next."""

    #: The count in force; None before the first decision that had an input.
    desired: int | None = None
    #: Since when fewer workers would do, on the caller's clock; None while they would not, or nobody knows.
    quiet_since: timedelta | None = None


@dataclass(frozen=True, slots=True)
class _Load:
    lag: int
    pending: int
    retrying: int

    @property
    def jobs(self) -> int:
        return self.lag + self.pending + self.retrying

    def workers(self, limits: Limits) -> int:
        return limits.clamp(-(-self.jobs // limits.concurrency))


def decide(
    observation: Observation, limits: Limits, memory: Memory, now: timedelta
) -> tuple[Decision, Memory]:
    """The next decision, and what to remember. `now` is any clock that never goes back."""
    load = _known(observation)
    if load is None:
        return _hold(observation, limits, memory)
    quiet_since = _quiet_since(load, limits, memory, now)
    desired, reason = _choose(load, limits, memory.desired, quiet_since, now)
    return _decision(observation, limits, desired, reason), Memory(desired=desired, quiet_since=quiet_since)


def _known(observation: Observation) -> _Load | None:
    match observation:
        case Observation(lag=int(lag), pending=int(pending), retrying=int(retrying)):
            return _Load(lag, pending, retrying)
        case _:
            return None


def _hold(observation: Observation, limits: Limits, memory: Memory) -> tuple[Decision, Memory]:
    # A fleet about which nothing was ever known runs in full: too many workers cost money, too few cost jobs.
    desired = limits.clamp(limits.max if memory.desired is None else memory.desired)
    decision = replace(_decision(observation, limits, desired, Reason.UNKNOWN_INPUT), observed=False)
    return decision, replace(memory, quiet_since=None)


def _quiet_since(load: _Load, limits: Limits, memory: Memory, now: timedelta) -> timedelta | None:
    busy = load.pending > 0 or load.lag > limits.down_lag
    if busy or memory.desired is None or load.workers(limits) >= limits.clamp(memory.desired):
        return None
    return now if memory.quiet_since is None else memory.quiet_since


def _choose(
    load: _Load, limits: Limits, last: int | None, quiet_since: timedelta | None, now: timedelta
) -> tuple[int, Reason]:
    wanted = load.workers(limits)
    if last is None:
        return wanted, Reason.START
    held = limits.clamp(last)
    pressed = load.lag >= limits.up_lag or load.pending > held * limits.concurrency
    if held == 0 and load.jobs > 0:
        return wanted if pressed else 1, Reason.WAKE
    if wanted > held and pressed:
        return wanted, Reason.BACKLOG_UP
    if held != last:
        return held, Reason.CLAMPED
    if wanted >= held:
        return held, Reason.STEADY
    if quiet_since is None:
        return held, Reason.HOLD_BUSY
    if now - quiet_since < limits.window:
        return held, Reason.HOLD_WINDOW
    return wanted, Reason.SCALE_DOWN


def _decision(observation: Observation, limits: Limits, desired: int, reason: Reason) -> Decision:
    return Decision(
        desired=desired,
        reason=reason,
        lag=observation.lag,
        pending=observation.pending,
        retrying=observation.retrying,
        min=limits.min,
        max=limits.max,
    )
