"""What the network does to messages."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Weather:
    """Chances for each message, and seconds."""

    latency: float = 0.001
    #: A message takes up to `stall` seconds.
    slow: float = 0.0
    stall: float = 8.0
    #: The connection breaks: before the request arrives, after it was run, or while it goes on by itself.
    lost_request: float = 0.0
    lost_reply: float = 0.0
    late_request: float = 0.0
