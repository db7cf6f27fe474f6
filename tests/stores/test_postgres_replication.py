"""What a failover may and may not lose: repetitions wait for the standby, and no fence is used twice."""

import asyncio
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.stores.postgres_support import closing, connected, error_of, seen_now, until, value

from leaseway.domain.errors import LeasewayError
from leaseway.domain.exchange import Exchange
from leaseway.domain.ids import FENCE_EPOCH, WorkerId
from leaseway.imports.run.shard_jobs import shard_fence
from leaseway.stores.postgres.store import PostgresStore
from leaseway.testing.job_store_contract.fixtures import ContractWorker, id_of, new_job, snooze
from leaseway.testing.postgres import NOT_DURABLE, SMALL, PostgresServer, postgres_server


class Standby(PostgresServer):
    """A streaming standby of a primary. It starts as a copy of the primary's files."""

    def __init__(self, primary: PostgresServer, base: Path) -> None:
        super().__init__(base, {**SMALL, **NOT_DURABLE}, primary.binaries)
        self._primary = primary

    def create(self) -> None:
        (self._base / "run").mkdir()
        for folder in (self._base, self._base / "run"):
            folder.chmod(0o777)  # the server runs as another user
        copy = [str(self.binaries / "pg_basebackup"), "-D", str(self.data), "-R", "--checkpoint=fast", "--no-sync"]
        source = f"host=127.0.0.1 port={self._primary.port} user=postgres application_name=standby"
        subprocess.run([*copy, "-d", source], check=True, capture_output=True, cwd="/", **self._account)

    async def promote(self) -> None:
        async with connected(self) as connection:
            assert await connection.fetchval("SELECT pg_promote(true, 60)")


@contextmanager
def standby_of(primary: PostgresServer) -> Iterator[Standby]:
    with tempfile.TemporaryDirectory(prefix="leaseway-standby-", ignore_cleanup_errors=True) as folder:
        standby = Standby(primary, Path(folder))
        standby.create()
        standby.start()
        try:
            yield standby
        finally:
            standby.crash()


async def count_waiting(server: PostgresServer) -> int:
    """Sessions that wait until a standby confirms their commit."""
    return int(await value(server, "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"))


async def test_a_submission_that_a_cut_off_primary_has_kept_is_not_lost_in_a_failover() -> None:
    """The standby is unreachable, the primary restarts, and the submission is repeated: it is on the primary only."""
    with postgres_server(synchronous_commit="on") as primary, standby_of(primary) as standby:
        async with closing(PostgresStore(primary.url)) as store:
            await store.open()
            await require_standby(primary)
            standby.crash()
            first = asyncio.ensure_future(error_of(store.jobs.submit([new_job(1)])))
            await until(lambda: count_waiting(primary))
            primary.crash()
            primary.start()
            assert isinstance(await first, LeasewayError)
            assert await store.reads.job(id_of(1)) is not None  # visible, and not on the standby
            again = asyncio.ensure_future(store.jobs.submit([new_job(1)]))
            await until(lambda: count_waiting(primary))
            assert not again.done()
            standby.start()
            await again
        primary.crash()
        await standby.promote()
        async with closing(PostgresStore(standby.url)) as survivor:
            assert await survivor.reads.job(id_of(1)) is not None


async def test_no_fence_is_assigned_twice_after_an_asynchronous_failover() -> None:
    """The standby does not know the last claims. Outside systems refuse smaller fences, and would take the late worker
    of a lost claim for the worker that has the job now."""
    with postgres_server() as primary, standby_of(primary) as standby:
        async with closing(PostgresStore(primary.url)) as store:
            await store.open()
            await store.jobs.submit([new_job(1), new_job(2)])
            known = await ContractWorker(store).claim_one()
            await until_replicated(primary)
            standby.crash()
            await ContractWorker(store).settle(snooze(known))
            lost = [lease.fence for lease in await ContractWorker(store).claim(2)]
            assert sorted(lost) == [1, 2]
        primary.crash()
        standby.start()
        await standby.promote()
        async with closing(PostgresStore(standby.url)) as survivor:
            await survivor.jobs.exchange(Exchange(WorkerId("w"), (snooze(known),)))
            fences = [lease.fence for lease in await ContractWorker(survivor).claim(2)]
            assert fences == [FENCE_EPOCH + 1, FENCE_EPOCH + 1]
            assert max(shard_fence(id_of(1), fence) for fence in lost) < shard_fence(id_of(1), fences[0])


async def until_replicated(primary: PostgresServer) -> None:
    async with connected(primary) as connection:
        sql = "SELECT FROM pg_stat_replication WHERE replay_lsn >= pg_current_wal_insert_lsn()"
        await until(lambda: seen_now(connection, sql))


async def require_standby(primary: PostgresServer) -> None:
    """From now on, commits wait for the standby."""
    async with connected(primary) as connection:
        await connection.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        await connection.execute("SELECT pg_reload_conf()")

        async def is_synchronous() -> bool:
            return bool(await seen_now(connection, "SELECT FROM pg_stat_replication WHERE sync_state = 'sync'"))

        await until(is_synchronous)
