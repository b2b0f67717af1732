"""A model that finds nothing proves nothing: each of these broken scripts must be found out."""

from __future__ import annotations

import pytest

from tests.model.examples import check, examples
from tests.model.world import VirtualWorld
from tests.sabotage import broken_script
from tests.servers import FakeredisServer

#: What is broken: file, the line as it is, and as it must not be.
MUTANTS = {
    "any token may finish": (
        "finish.lua",
        "if job and job.token == item.token then",
        "if job then",
    ),
    "live leases are stolen": (
        "include/judge.lua",
        "if not own and job.lease + idle > now then return 'held' end",
        "",
    ),
    "settled twice": (
        "include/requeue.lua",
        "'settled', token, 'answer', answer",
        "'settled', '', 'answer', answer",
    ),
    "a chunk is written twice": (
        "append.lua",
        "if seq > (job.seq or 0) then",
        "if true then",
    ),
    "keys stay for ever": (
        "include/ending.lua",
        "if job.idem then redis.call('PEXPIRE', idem_key(job.idem), IDEM_TTL) end",
        "",
    ),
    "suspects in company": (
        "include/judge.lua",
        "if alone or (job.suspect and busy > 0) then return 'later' end",
        "",
    ),
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("what", MUTANTS)
def test_a_broken_script_is_found_out(what: str) -> None:
    with broken_script(*MUTANTS[what]), pytest.raises(AssertionError):
        check(FakeredisServer(), VirtualWorld, examples(300, shrink=False))
