"""What the network does to messages."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Fate(Enum):
    """What becomes of a request. Unless it arrives, its sender sees the connection break."""

    ARRIVES = "arrives"
    LOST = "lost"
    #: It is served, and the answer is lost.
    UNANSWERED = "unanswered"
    #: It goes on by itself, and is served when nobody waits for it any more.
    LATE = "late"


@dataclass(frozen=True)
class Weather:
    """Chances for each message, and seconds."""

    latency: float = 0.001
    #: A message takes up to `stall` seconds.
    slow: float = 0.0
    stall: float = 8.0
    lost_request: float = 0.0
    lost_reply: float = 0.0
    late_request: float = 0.0

    def fate(self, chance: float) -> Fate:
        """For a number drawn between 0 and 1."""
        if chance < self.lost_request:
            return Fate.LOST
        if chance < self.lost_request + self.lost_reply:
            return Fate.UNANSWERED
        if chance < self.lost_request + self.lost_reply + self.late_request:
            return Fate.LATE
        return Fate.ARRIVES


CALM = Weather()
