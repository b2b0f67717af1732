"""A server with its folder, whose power can be cut: what was not synced to the disk by then is lost."""

from __future__ import annotations

import asyncio
import ctypes
import os
import random
import shutil
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.keyspace import command
from tests.servers import ServerProcess
from tests.waiting import wait_until

#: System call of Linux 6.5 and newer, on every architecture.
CACHESTAT = 451


class Machine(ServerProcess):
    """A kill alone loses nothing that was written: the system's page cache outlives the process. So a power
    cut is a kill and a shorter append-only file."""

    def __init__(self, name: str, binary: Path, directory: Path, *, durable: bool = True) -> None:
        directory.mkdir()
        super().__init__(name, binary, directory, durable=durable)

    async def tell(self, *words: str | int) -> Any:
        raw = self.connect(decode_responses=True)
        try:
            return await command(raw, *words)
        finally:
            await raw.aclose()

    async def info(self, name: str) -> object:
        return (await self.tell("INFO"))[name]

    async def sync_by(self, policy: str) -> None:
        await self.tell("CONFIG", "SET", "appendfsync", policy)

    @property
    def written(self) -> int:
        """How much of it there is, synced or not."""
        return self.log_file.stat().st_size

    async def synced_for_the_last_time(self) -> int:
        """Brings all that was written to the disk, and nothing of what follows: how much is there. So it is
        with `everysec` as well, between two of its syncs."""
        await self.sync_by("always")
        await self.tell("SET", "synced", 1, "PX", 1)
        await self.sync_by("no")
        return self.written

    async def has_written_what_it_answered(self) -> None:
        """While a sync runs, `everysec` puts writes off, for up to two seconds, and answers all the same."""

        async def buffer_is_empty() -> bool:
            return await self.info("aof_buffer_length") == 0

        await wait_until(buffer_is_empty)

    def cut_power(self, kept: int) -> None:
        self.kill()
        os.truncate(self.log_file, kept)

    def twin(self, directory: Path, kept: int) -> Machine:
        """A machine that had its power cut when so much was on its disk; not started."""
        twin = Machine(self.name, self.binary, directory)
        shutil.copytree(self._directory / "appendonlydir", directory / "appendonlydir")
        os.truncate(twin.log_file, kept)
        return twin


class Disk:
    """What the system says of a file: how much of it is on the disk."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.synced = 0

    @property
    def tells(self) -> bool:
        """Not before Linux 6.5."""
        return _dirty_pages(self._path) is not None

    def look(self) -> None:
        size = self._path.stat().st_size
        if _dirty_pages(self._path) == 0:
            self.synced = size


@asynccontextmanager
async def watched(path: Path) -> AsyncGenerator[Disk]:
    disk = Disk(path)

    async def watch() -> None:
        while True:
            disk.look()
            await asyncio.sleep(0.001)

    watching = asyncio.create_task(watch())
    try:
        yield disk
    finally:
        watching.cancel()


def _dirty_pages(path: Path) -> int | None:
    """Pages that are not on the disk yet; None where the system does not say."""
    counts, whole = (ctypes.c_uint64 * 5)(), (ctypes.c_uint64 * 2)(0, 0)
    with path.open("rb") as file:
        failed = ctypes.CDLL(None).syscall(CACHESTAT, file.fileno(), whole, counts, 0)
    _, dirty, writeback, _, _ = counts
    return None if failed else dirty + writeback


def commands(log: bytes) -> Iterator[tuple[bytes, int]]:
    """Name and end of each command of an append-only file."""
    at = 0

    def number(sign: bytes) -> int:
        nonlocal at
        assert log[at : at + 1] == sign, f"no append-only file: {log[at : at + 40]}"
        begin, at = at + 1, log.index(b"\r\n", at) + 2
        return int(log[begin : at - 2])

    while at < len(log):
        name = b""
        for _ in range(number(b"*")):
            size = number(b"$")
            name = name or log[at : at + size].upper()
            at += size + 2
        yield name, at


def transactions(log: bytes) -> Iterator[tuple[int, int]]:
    """Begin and end of what is applied whole or not at all: a command, or all from MULTI to EXEC."""
    begin, within = 0, False
    for name, end in commands(log):
        within = (within or name == b"MULTI") and name != b"EXEC"
        if not within:
            yield begin, end
            begin = end


def cuts(log: bytes, chance: random.Random) -> Iterator[int]:
    """Every end of a transaction, and one place in the middle of each."""
    for begin, end in transactions(log):
        yield chance.randrange(begin + 1, end)
        yield end
