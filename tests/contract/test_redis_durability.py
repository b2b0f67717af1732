"""What a server must be like, and what IWL_DURABILITY asks of it before a job counts as accepted."""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from common.errors import JobNotFound, NotDurable, StoreRefused, StoreUnavailable
from common.redis_store.store import RedisStore, check_version
from common.settings import Durability, Settings
from common.store import Store, Submitted
from tests.keyspace import command
from tests.relay import relayed
from tests.requests import submission
from tests.servers import ServerProcess
from tests.waiting import wait_until

pytestmark = pytest.mark.server

StartServer = Callable[..., ServerProcess]


@asynccontextmanager
async def started(
    server: ServerProcess, namespace: str, durability: Durability
) -> AsyncGenerator[Store, None]:
    store = RedisStore(Settings(redis_url=server.url, namespace=namespace, durability=durability))
    try:
        await store.start()
        yield store
    finally:
        await store.aclose()


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl", "allkeys-random"])
async def test_a_server_that_would_evict_jobs_is_refused(
    start_server: StartServer, namespace: str, policy: str
) -> None:
    server = start_server(maxmemory_policy=policy)
    with pytest.raises(StoreRefused, match=policy):
        async with started(server, namespace, Durability.SERVER):
            pass


@pytest.mark.parametrize("version", ["6.2.14", "5.0.0", "4.0"])
def test_a_server_too_old_for_script_flags_is_refused(version: str) -> None:
    with pytest.raises(StoreRefused, match="too old"):
        check_version(version)
    check_version("7.0.0")


async def waits(submitting: asyncio.Task[Submitted]) -> bool:
    """It is for this that time passes: an acceptance that waits for nothing would have come long ago."""
    done, _ = await asyncio.wait([submitting], timeout=0.3)
    return not done


async def test_aof_durability_accepts_only_what_is_on_disk(start_server: StartServer, namespace: str) -> None:
    """The server holds its syncs back: until the next one nobody is told that a job is accepted."""
    server = start_server(durable=True, appendfsync="always")
    sent = submission()
    async with started(server, namespace, Durability.AOF) as store, server.connect() as raw:
        await command(raw, "CONFIG", "SET", "appendfsync", "no")
        submitting = asyncio.create_task(store.submit(sent))
        await wait_until(lambda: raw.exists(f"{namespace}:job:{sent.job_id}"))
        assert await waits(submitting)
        await command(raw, "CONFIG", "SET", "appendfsync", "always")
        await command(raw, "SET", "synced", 1, "PX", 1)
        assert (await submitting).job.job_id == sent.job_id


async def test_aof_durability_is_refused_by_a_server_without_an_append_only_file(
    start_server: StartServer, namespace: str
) -> None:
    server = start_server(durable=False)
    with pytest.raises(StoreRefused, match="appendonly"):
        async with started(server, namespace, Durability.AOF):
            pass


async def test_aof_durability_is_refused_by_a_server_that_cannot_wait_for_its_disk(
    start_server: StartServer, namespace: str
) -> None:
    """As one before Redis 7.2, which does not know WAITAOF."""
    server = start_server(durable=True)
    raw = server.connect()
    await command(raw, "ACL", "SETUSER", "default", "-waitaof")
    await raw.aclose()
    with pytest.raises(StoreRefused, match=r"7\.2"):
        async with started(server, namespace, Durability.AOF):
            pass


async def test_replica_durability_without_a_replica_says_so_in_time(
    start_server: StartServer, namespace: str
) -> None:
    async with started(start_server(), namespace, Durability.REPLICA) as store:
        before = time.monotonic()
        with pytest.raises(NotDurable):
            await store.submit(submission())
        assert time.monotonic() - before < 5


async def test_replica_durability_accepts_only_what_the_replica_has(
    start_server: StartServer, namespace: str
) -> None:
    """What goes to the replica is held back, and it is held back from the client too."""
    primary, replica = start_server(), start_server()
    sent = submission()
    record = f"{namespace}:job:{sent.job_id}"
    async with primary.connect() as leader, replica.connect() as follower, relayed(primary.port) as link:
        # By default a primary waits five seconds for more replicas before it sends its data.
        await command(leader, "CONFIG", "SET", "repl-diskless-sync-delay", 0)
        await command(follower, "REPLICAOF", "127.0.0.1", link.port)

        async def linked() -> bool:
            return (await command(follower, "INFO", "replication"))["master_link_status"] == "up"

        await wait_until(linked)
        async with started(primary, namespace, Durability.REPLICA) as store:
            link.part()
            submitting = asyncio.create_task(store.submit(sent))
            await wait_until(lambda: leader.exists(record))
            assert await waits(submitting)
            assert not await follower.exists(record)
            link.heal()
            await submitting
            assert await follower.exists(record)


async def test_a_replay_is_as_durable_as_the_first_answer(start_server: StartServer, namespace: str) -> None:
    """What another gateway accepted without waiting may not be on disk yet; here it never gets there."""
    server = start_server(durable=True, appendfsync="always")
    sent = submission(idempotency_key="k")
    async with started(server, namespace, Durability.AOF) as store:
        raw = server.connect(decode_responses=True)
        await raw.config_set("appendfsync", "no")  # pyright: ignore[reportUnknownMemberType]
        await raw.aclose()
        async with started(server, namespace, Durability.SERVER) as hasty:
            await hasty.submit(sent)
        for again in (sent, submission(idempotency_key="k")):
            with pytest.raises(NotDurable):
                await store.submit(again)


async def test_without_waiting_for_the_disk_a_job_accepted_as_it_fills_lasts_as_long_as_the_process(
    start_server: StartServer, namespace: str
) -> None:
    """The server answers the batch whose write to the log fails, and refuses the next ones."""
    server = start_server(durable=True)
    async with started(server, namespace, Durability.SERVER) as store:
        on_disk, in_memory = submission(), submission()
        await store.submit(on_disk)
        await wait_until(lambda: holds(server.log_file, on_disk.job_id))
        resource.prlimit(
            server.pid, resource.RLIMIT_FSIZE, (server.log_file.stat().st_size, resource.RLIM_INFINITY)
        )
        await store.submit(in_memory)
        await wait_until(lambda: refuses(store.ping))
        with pytest.raises(StoreUnavailable, match="MISCONF"):
            await store.submit(submission())
        assert (await store.get(in_memory.job_id)).job_id == in_memory.job_id
        server.kill()
        server.start()
        assert (await store.get(on_disk.job_id)).job_id == on_disk.job_id
        with pytest.raises(JobNotFound):
            await store.get(in_memory.job_id)


def holds(log: Path, job_id: str) -> bool:
    """While a sync runs, `everysec` puts writes off, for up to two seconds, and answers all the same."""
    return job_id.encode() in log.read_bytes()


async def refuses(call: Callable[[], Awaitable[None]]) -> bool:
    try:
        await call()
    except StoreUnavailable as error:
        return "MISCONF" in str(error)
    return False
