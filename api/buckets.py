"""A token bucket: so many requests a second, and a second's worth of them at once. Pure."""

from __future__ import annotations


class Bucket:
    def __init__(self, rate: float, now: float) -> None:
        """`rate` is requests a second, `now` a monotonic time in seconds."""
        self.rate = rate
        self._size = max(1.0, rate)
        self._tokens = self._size
        self._at = now

    def take(self, now: float) -> float:
        """0 when there was one to take, else the seconds until there is."""
        self._tokens = min(self._size, self._tokens + (now - self._at) * self.rate)
        self._at = now
        if self._tokens < 1:
            return (1 - self._tokens) / self.rate
        self._tokens -= 1
        return 0.0
