"""Promise P1 as a person reads it: every submitted job is in one known state."""

from __future__ import annotations

import msgspec

from lab.records import Stats


class Conservation(msgspec.Struct, frozen=True, kw_only=True):
    """Of one lab, or of several together."""

    submitted: int = 0
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    expired: int = 0
    alive: int = 0
    unaccounted: int = 0

    @classmethod
    def of(cls, stats: Stats) -> Conservation:
        return cls(
            submitted=stats.submitted,
            succeeded=stats.succeeded,
            failed=stats.failed,
            cancelled=stats.cancelled,
            expired=stats.expired,
            alive=stats.awaiting_upload + stats.queued + stats.running + stats.retrying,
            unaccounted=stats.unaccounted,
        )

    def __add__(self, other: Conservation) -> Conservation:
        return Conservation(
            **{name: getattr(self, name) + getattr(other, name) for name in self.__struct_fields__}
        )

    @property
    def line(self) -> str:
        terms = f"{self.succeeded} succeeded + {self.failed} failed + {self.cancelled} cancelled"
        equation = f"{self.submitted} submitted = {terms} + {self.expired} expired + {self.alive} alive"
        return f"{equation}; unaccounted {self.unaccounted}"
