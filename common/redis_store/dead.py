"""Dead letters: the gateway's part of the port that reads and redrives them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from common.errors import OwnerFull
from common.job import Cause, JobRequest, new_job_id
from common.redis_store import records
from common.redis_store.calls import Calls
from common.redis_store.keys import Keys
from common.redis_store.scripts import Scripts
from common.redis_store.translate import UNREADABLE, readable
from common.settings import Settings
from common.store import DeadLetter, Redriven

#: Dead letters read at once, each with its whole request.
PAGE = 20


@dataclass(frozen=True, slots=True)
class _Chosen:
    """What a redrive needs of a dead letter: not its request, of which a thousand may be large."""

    job_id: str
    #: "" when there is none, or none any more.
    cursor: str = ""
    expires_in: int | None = None
    stream: bool = False


class DeadLetterPart:
    _settings: Settings
    _keys: Keys
    _calls: Calls
    #: On its own connection when a redrive has to wait for the disk or a replica.
    _durable: Scripts

    async def list_dead(
        self, *, limit: int = 50, before: str | None = None, owner: str | None = None
    ) -> list[DeadLetter]:
        found: list[DeadLetter] = []
        top = f"({before}" if before else "+"
        while True:
            count = limit if owner is None else PAGE
            reply = await self._calls.start("XREVRANGE", self._keys.dlq, top, "-", "COUNT", count)
            found += [letter for letter in readable(_dead_letter, reply) if owner in (None, letter.owner)]
            if owner is None or len(found) >= limit or len(reply) < count:
                return found[:limit]
            top = f"({reply[-1][0].decode()}"

    async def redrive(
        self,
        *,
        ids: Sequence[str] | None = None,
        cause: Cause | None = None,
        limit: int = 100,
        dry_run: bool = False,
        owner: str | None = None,
        max_open: int = 0,
    ) -> Redriven:
        # The first ones, so that whoever asks again asks for the same ones.
        wanted = None if ids is None else dict.fromkeys(islice(dict.fromkeys(ids), limit))
        chosen: list[_Chosen] = []
        unusable: list[str] = []
        async for letter in self._dead_from_oldest():
            if len(chosen) >= limit or (wanted is not None and len(chosen) + len(unusable) == len(wanted)):
                break
            if (wanted is not None and letter.job_id not in wanted) or cause not in (None, letter.cause):
                continue
            if owner not in (None, letter.owner):
                continue
            if letter.request is None:
                unusable.append(letter.job_id)
            else:
                expires_in = records.milliseconds(letter.request.expires_in_s)
                chosen.append(_Chosen(letter.job_id, letter.cursor, expires_in, letter.request.stream))
        if dry_run:
            pairs = [(letter.job_id, "") for letter in chosen]
        else:
            found = {*unusable, *(letter.job_id for letter in chosen)}
            # Those named that have no letter may have been queued before.
            chosen += [_Chosen(job_id) for job_id in wanted or () if job_id not in found]
            pairs = await self._revive(chosen, owner, max_open)
        return Redriven(jobs=tuple(pairs), unusable=tuple(unusable))

    async def _revive(
        self, letters: Sequence[_Chosen], owner: str | None, max_open: int
    ) -> list[tuple[str, str]]:
        """Raises OwnerFull when there is no room for any."""
        answers = await self._durable.redrive(
            recent_max=self._settings.recent_max,
            max_open=max_open,
            asking=records.encode_text(owner) if owner else b"",
            letters=[
                (letter.cursor, letter.job_id, new_job_id(), letter.expires_in, letter.stream)
                for letter in letters
            ],
        )
        words = {word for word, _ in answers}
        if "owner_full" in words and "queued" not in words:
            raise OwnerFull(max_open, max_open)
        revived = zip(letters, answers, strict=True)
        return [(letter.job_id, new) for letter, (word, new) in revived if word == "queued"]

    async def _dead_from_oldest(self) -> AsyncGenerator[DeadLetter, None]:
        start = "-"
        while True:
            reply = await self._calls.start("XRANGE", self._keys.dlq, start, "+", "COUNT", PAGE)
            for letter in readable(_dead_letter, reply):
                yield letter
            if len(reply) < PAGE:
                return
            start = f"({reply[-1][0].decode()}"


def _dead_letter(entry: Any) -> DeadLetter:
    cursor, fields = entry[0].decode(), records.pairs(entry[1])
    request = fields.get("request")
    return DeadLetter(
        cursor=cursor,
        job_id=fields["job_id"].decode(),
        owner=records.decode_text(fields["owner"]),
        cause=Cause(fields["cause"].decode()),
        error=records.decode_text(fields["error"]),
        attempts=int(fields["attempts"]),
        died_at=records.instant(int(cursor.split("-")[0])),
        request=_request(request, fields.get("shown")) if request else None,
    )


def _request(request: bytes, shown: bytes | None) -> JobRequest | None:
    try:
        return records.decode_request(request, shown)
    except UNREADABLE:
        return None
