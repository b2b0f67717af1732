"""What a run of faults has shown, and whether all of it was promised."""

from __future__ import annotations

import msgspec

from lab.conservation import Conservation
from lab.exits import Exit
from lab.faults.books import Account
from lab.faults.fault import Fault, Observation


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One fault."""

    fault: str
    title: str
    expected: str
    observed: str
    as_expected: bool
    #: Seconds from the fault to the end of the last job that it touched, or to the first 202 after it.
    recovery_s: float | None
    jobs: int
    lost: int
    duplicates: int

    @classmethod
    def of(cls, fault: Fault, observation: Observation, account: Account) -> Row:
        return cls(
            fault=fault.name,
            title=fault.title,
            expected=fault.expected,
            observed=observation.seen,
            as_expected=observation.right and account.stats is not None,
            recovery_s=round(observation.recovery.total_seconds(), 2) if observation.recovery else None,
            jobs=account.jobs,
            lost=account.lost,
            duplicates=account.duplicates,
        )

    @property
    def good(self) -> bool:
        return self.as_expected and not self.lost and not self.duplicates


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What `iwl faults --json` prints."""

    faults: list[Row]
    conservation: Conservation
    seconds: float

    @property
    def exit(self) -> Exit:
        good = bool(self.faults) and all(row.good for row in self.faults)
        return Exit.OK if good and not self.conservation.unaccounted else Exit.FAILED
