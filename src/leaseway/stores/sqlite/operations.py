"""Cancel, retry, run, discard and prune jobs in one SQLite file. Each method is one transaction."""

import sqlite3
from collections.abc import Callable, Iterable

from msgspec.structs import replace

from leaseway.domain.ids import JobId
from leaseway.domain.inspection import KEYS_PER_JOB, CancelResult, JobFilter
from leaseway.domain.requirements import quoted_name
from leaseway.stores.sqlite.database import BYTES, CANCELLED, READY, Database, Row, Transaction, parse_state
from leaseway.stores.sqlite.reads import filter_conditions, jobs_and_lanes
from leaseway.stores.sqlite.reclaim import counting_bytes

UNSUCCESSFUL = "state IN ('failed', 'cancelled')"
FINISHED = "state IN ('done', 'failed', 'cancelled')"

Change = Callable[[Transaction, JobFilter], list[JobId]]


class SqliteOperations:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def cancel(self, job: JobId) -> CancelResult:
        answer = await self._database.write(lambda transaction: cancel(transaction, job))
        self._database.notifier.notify()
        return answer

    async def retry(self, which: JobFilter, limit: int) -> list[JobId]:
        def work(transaction: Transaction, chosen: JobFilter) -> list[JobId]:
            found = find(transaction.connection, chosen, UNSUCCESSFUL, limit)
            ids = [id_ for _, id_, *_ in found]
            with counting_bytes(transaction, ids):
                for seq, _, lane, state, *_ in found:
                    transaction.run("retry", seq=seq, now=transaction.now)
                    transaction.moved(lane, state, READY)
            return ids

        retried = await self._change(work, which, UNSUCCESSFUL, limit)
        self._database.notifier.notify()
        return retried

    async def run_now(self, which: JobFilter, limit: int) -> list[JobId]:
        def work(transaction: Transaction) -> list[JobId]:
            found = find(transaction.connection, which, "state = 'scheduled'", limit)
            for seq, _, lane, state, *_ in found:
                transaction.run("run_now", seq=seq, now=transaction.now)
                transaction.moved(lane, state, READY)
            return [id_ for _, id_, *_ in found]

        moved = await self._database.write(work)
        self._database.notifier.notify()
        return moved

    async def open_lanes(self, name: str, limit: int, tenant: str | None = None) -> int:
        which = {"quoted": quoted_name(name), "tenant": tenant, "limit": max(limit, 0)}
        opened = await self._database.write(lambda transaction: transaction.change("lanes_of_name_open", **which))
        self._database.notifier.notify()
        return opened

    async def discard(self, which: JobFilter, limit: int) -> list[JobId]:
        def work(transaction: Transaction, chosen: JobFilter) -> list[JobId]:
            found = find(transaction.connection, chosen, FINISHED, limit)
            delete(transaction, found)
            return [id_ for _, id_, *_ in found]

        return await self._change(work, which, FINISHED, limit)

    async def _change(self, work: Change, which: JobFilter, condition: str, limit: int) -> list[JobId]:
        """Look for the jobs before the write transaction, which finds them by their ids: the search may take long."""
        ids = await self._database.connection.read(lambda connection: find_ids(connection, which, condition, limit))
        if not ids:
            return []
        chosen = replace(which, ids=ids)
        return await self._database.write(lambda transaction: work(transaction, chosen))

    async def prune(self, keep_us: int, limit: int) -> int:
        def work(transaction: Transaction) -> int:
            old = transaction.run("finished_before", before=transaction.now - keep_us, limit=max(limit, 0))
            delete(transaction, old)
            transaction.run("key_prune", now=transaction.now, limit=max(limit, 0) * KEYS_PER_JOB)
            transaction.close()  # the counters must not include the jobs that were deleted
            if transaction.change("lane_prune", limit=max(limit, 0)):
                transaction.run("flow_prune")
            return len(old)

        return await self._database.write(work)


def cancel(transaction: Transaction, job: JobId) -> CancelResult:
    found = transaction.run("job_state", id=job)
    if not found:
        return CancelResult.UNKNOWN
    ((lane, state),) = found
    if transaction.run("cancel_pending", id=job, now=transaction.now):
        transaction.moved(lane, state, CANCELLED)
        return CancelResult.CANCELLED
    transaction.run("cancel_leased", id=job)
    return CancelResult.FINISHED if parse_state(state).is_final else CancelResult.REQUESTED


def find_ids(connection: sqlite3.Connection, which: JobFilter, condition: str, limit: int) -> tuple[JobId, ...]:
    text, values = select_matching("id", which, condition, limit)
    return tuple(JobId(id_) for (id_,) in connection.execute(text, values))


def find(connection: sqlite3.Connection, which: JobFilter, condition: str, limit: int) -> list[Row]:
    matching, values = select_matching("seq", which, condition, limit)
    text = f"SELECT seq, id, lane, state, payload, result + rest FROM job_sizes WHERE seq IN ({matching}) ORDER BY seq"
    return connection.execute(text, values).fetchall()


def select_matching(column: str, which: JobFilter, condition: str, limit: int) -> tuple[str, dict[str, object]]:
    """Jobs in the order of submission. With ids, the order must not lead through all jobs: hence the plus."""
    conditions, values = filter_conditions(which)
    where, order = " AND ".join([*conditions, condition]), "seq" if which.ids is None else "+seq"
    text = f"SELECT jobs.{column} FROM {jobs_and_lanes(which)} WHERE {where} ORDER BY {order} LIMIT :limit"
    return text, {**values, "limit": max(limit, 0)}


def delete(transaction: Transaction, jobs: Iterable[Row]) -> None:
    jobs = list(jobs)
    transaction.run_each("delete_job", [(seq,) for seq, *_ in jobs])
    transaction.run_each("large_payload_delete", [(seq,) for seq, *_ in jobs])
    transaction.run_each("delete_errors", [(id_,) for _, id_, *_ in jobs])
    for _, _, lane, state, payload, extra in jobs:
        transaction.count(lane, state, -1)
        transaction.count(lane, BYTES, -payload - extra)
