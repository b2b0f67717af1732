"""Deliveries: entries as read from the stream, on their way to being leases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

from common.job import JobRequest
from common.redis_store import records
from common.redis_store.scripts import Begun
from common.redis_store.translate import UNREADABLE
from common.store import Lease


@dataclass(frozen=True, slots=True)
class Delivery:
    entry: str
    job_id: str
    #: None when it cannot be read: written by another version, or damaged.
    request: JobRequest | None


def parse(entries: Sequence[Any]) -> tuple[list[Delivery], list[str]]:
    """Deliveries, and the ids of entries that are none: deleted ones (no fields) and foreign ones."""
    deliveries: list[Delivery] = []
    broken: list[str] = []
    for raw_id, flat in entries:
        entry = cast(bytes, raw_id).decode()
        try:
            fields = records.pairs(flat)
            job_id = fields["job_id"].decode()
        except UNREADABLE:
            broken.append(entry)
            continue
        deliveries.append(Delivery(entry, job_id, _request(fields)))
    return deliveries, broken


def _request(fields: Mapping[str, bytes]) -> JobRequest | None:
    try:
        return records.decode_request(fields["request"], fields.get("shown"))
    except UNREADABLE:
        return None


def lease_of(delivery: Delivery, request: JobRequest, token: str, begun: Begun) -> Lease:
    return Lease(
        job_id=delivery.job_id,
        token=token,
        attempt=begun.attempt,
        request=request,
        receipt=delivery.entry,
        queued_for=None if begun.waited < 0 else timedelta(milliseconds=begun.waited),
        reclaimed=begun.reclaimed,
        alone=begun.alone,
    )
