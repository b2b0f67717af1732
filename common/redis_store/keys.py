"""The keys that Python names, and which of all keys are permanent. Scripts build theirs in `lua/include/`."""

from __future__ import annotations

from dataclasses import dataclass

GROUP = "workers"


@dataclass(frozen=True, slots=True)
class Keys:
    namespace: str

    @property
    def jobs(self) -> str:
        """Stream with one consumer group, GROUP: one entry for each live job that is not waiting."""
        return f"{self.namespace}:jobs"

    @property
    def dlq(self) -> str:
        """Stream of dead letters."""
        return f"{self.namespace}:dlq"

    @property
    def owners(self) -> str:
        """Hash: unfinished jobs of each owner, by the owner as JSON."""
        return f"{self.namespace}:owners"

    @property
    def recent(self) -> str:
        """Sorted set, capped: job ids by time of acceptance."""
        return f"{self.namespace}:recent"

    @property
    def barrier(self) -> str:
        """String with a TTL: a write for WAIT and WAITAOF to wait for. To delete it is a write, too."""
        return f"{self.namespace}:barrier"

    def record(self, job_id: str) -> str:
        """Hash: the live record."""
        return f"{self.namespace}:job:{job_id}"

    def result(self, job_id: str) -> str:
        """String, JSON: the ended record."""
        return f"{self.namespace}:result:{job_id}"

    def tokens(self, job_id: str) -> str:
        """Stream: the event log of a job submitted with `stream`."""
        return f"{self.namespace}:tokens:{job_id}"

    def channel(self, gateway: str) -> str:
        """Pub/sub channel on which one gateway hears of the jobs it watches."""
        return f"{self.namespace}:gateway:{gateway}"

    @property
    def permanent(self) -> frozenset[str]:
        """Keys that live as long as the namespace. All others have a TTL or belong to a live job (P7)."""
        names = (
            *("jobs", "dlq", "recent", "retries", "deadlines", "counts", "owners"),
            *("scale", "scale:log", "workers"),
        )
        return frozenset(f"{self.namespace}:{name}" for name in names)

    def of_live_job(self, job_id: str, idempotency: str | None) -> frozenset[str]:
        """The keys without a TTL that a live job may own; `idempotency` is the record's `idem` field."""
        owned = {self.record(job_id), self.tokens(job_id)}
        return frozenset(owned | ({f"{self.namespace}:idem:{idempotency}"} if idempotency else set[str]()))
