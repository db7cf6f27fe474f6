"""Cancel, retry, discard and prune jobs in one SQLite file. Each method is one transaction."""

import sqlite3
from collections.abc import Iterable

from leaseway.domain.ids import JobId
from leaseway.domain.inspection import KEYS_PER_JOB, CancelResult, JobFilter
from leaseway.stores.sqlite.database import CANCELLED, READY, STATES, Database, Row, Transaction
from leaseway.stores.sqlite.reads import filter_conditions


class SqliteOperations:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def cancel(self, job: JobId) -> CancelResult:
        answer = await self._database.write(lambda transaction: cancel(transaction, job))
        self._database.notifier.notify()
        return answer

    async def retry(self, which: JobFilter, limit: int) -> list[JobId]:
        def work(transaction: Transaction) -> list[JobId]:
            found = find(transaction.connection, which, "state IN ('failed', 'cancelled')", limit)
            for seq, _, lane, state in found:
                transaction.run("retry", seq=seq, now=transaction.now)
                transaction.moved(lane, state, READY)
            return [id_ for _, id_, _, _ in found]

        retried = await self._database.write(work)
        self._database.notifier.notify()
        return retried

    async def discard(self, which: JobFilter, limit: int) -> list[JobId]:
        def work(transaction: Transaction) -> list[JobId]:
            found = find(transaction.connection, which, "state IN ('done', 'failed', 'cancelled')", limit)
            delete(transaction, found)
            return [id_ for _, id_, _, _ in found]

        return await self._database.write(work)

    async def prune(self, keep_us: int, limit: int) -> int:
        def work(transaction: Transaction) -> int:
            old = transaction.run("finished_before", before=transaction.now - keep_us, limit=max(limit, 0))
            delete(transaction, old)
            transaction.run("key_prune", now=transaction.now, limit=max(limit, 0) * KEYS_PER_JOB)
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
    return CancelResult.FINISHED if STATES[state].is_final else CancelResult.REQUESTED


def find(connection: sqlite3.Connection, which: JobFilter, condition: str, limit: int) -> list[Row]:
    conditions, values = filter_conditions(which)
    where = " AND ".join([*conditions, condition])
    text = f"SELECT seq, jobs.id, lane, state FROM jobs JOIN lanes ON lanes.id = lane WHERE {where} ORDER BY seq"
    return connection.execute(f"{text} LIMIT :limit", {**values, "limit": max(limit, 0)}).fetchall()


def delete(transaction: Transaction, jobs: Iterable[Row]) -> None:
    jobs = list(jobs)
    transaction.run_each("delete_job", [(seq,) for seq, _, _, _ in jobs])
    transaction.run_each("delete_errors", [(id_,) for _, id_, _, _ in jobs])
    for _, _, lane, state in jobs:
        transaction.count(lane, state, -1)
