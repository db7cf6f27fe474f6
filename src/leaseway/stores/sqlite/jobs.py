"""Submit, exchange, renew, checkpoint and operate jobs in one SQLite file. Each method is one transaction."""

import sqlite3
from collections.abc import Iterable, Mapping, Sequence

from leaseway.domain.exchange import Exchange, ExchangeReply, Gate, HeldLease, ProgressReport, Renewed
from leaseway.domain.ids import JobId, Token
from leaseway.domain.inspection import KEYS_PER_JOB, CancelResult, JobFilter
from leaseway.domain.job import NewJob, State, Submitted
from leaseway.stores.sqlite.database import Database
from leaseway.stores.sqlite.rows import CANCELLED, READY, STATES, Row, as_json, filter_conditions
from leaseway.stores.sqlite.transaction import Transaction


class SqliteJobs:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def submit(self, jobs: Sequence[NewJob]) -> list[Submitted]:
        answers = await self._database.write(lambda transaction: transaction.submit(jobs))
        self._database.notifier.ring()
        return answers

    async def exchange(self, call: Exchange) -> ExchangeReply:
        answer = await self._database.write(lambda transaction: transaction.exchange(call))
        if any(settlement.state is State.PENDING or settlement.children for settlement in call.settlements):
            self._database.notifier.ring()
        return answer

    async def renew(self, leases: Sequence[HeldLease]) -> Renewed:
        sent = as_json([(held.id, held.token, held.lease_us) for held in leases])
        answers = await self._database.write(
            lambda transaction: transaction.run("renew", leases=sent, now=transaction.now)
        )
        renewed = {(id_, token): is_to_cancel for id_, token, is_to_cancel in answers}
        lost = tuple(held.id for held in leases if (held.id, held.token) not in renewed)
        return Renewed(lost, tuple(held.id for held in leases if renewed.get((held.id, held.token))))

    async def checkpoint(self, job: JobId, token: Token, cursor: str) -> bool:
        def work(transaction: Transaction) -> list[Row]:
            return transaction.run("checkpoint", id=job, token=token, cursor=cursor, now=transaction.now)

        return bool(await self._database.write(work))

    async def report(self, reports: Sequence[ProgressReport]) -> None:
        def work(transaction: Transaction) -> None:
            for report in reports:
                transaction.run("report", id=report.id, token=report.token, progress=report.progress)

        await self._database.write(work)

    async def wait_us(self, queues: Sequence[str], closed: Sequence[Gate] = ()) -> int | None:
        gates = as_json([(gate.needs, gate.tenant) for gate in closed])
        ((is_ready, run_at, until),) = await self._database.read("wait", queues=as_json(queues), closed=gates)
        if is_ready:
            return 0
        due = [at for at in (run_at, until) if at is not None]
        return max(0, min(due) - self._database.now_us()) if due else None

    async def traces(self, leases: Sequence[HeldLease]) -> Mapping[JobId, str]:
        held = as_json([(each.id, each.token) for each in leases])
        return dict(await self._database.read("trace_list", leases=held))


class SqliteBlockingSubmission:
    def __init__(self, database: Database) -> None:
        self._database = database

    def submit(self, jobs: Sequence[NewJob]) -> list[Submitted]:
        answers = self._database.write_blocking(lambda transaction: transaction.submit(jobs))
        self._database.notifier.ring()
        return answers


class SqliteOperations:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def cancel(self, job: JobId) -> CancelResult:
        answer = await self._database.write(lambda transaction: cancel(transaction, job))
        self._database.notifier.ring()
        return answer

    async def retry(self, which: JobFilter, limit: int) -> list[JobId]:
        def work(transaction: Transaction) -> list[JobId]:
            found = find(transaction.connection, which, "stage IN (4, 5)", limit)
            for seq, _, lane, stage in found:
                transaction.run("replay", seq=seq, now=transaction.now)
                transaction.moved(lane, stage, READY)
            return [id_ for _, id_, _, _ in found]

        retried = await self._database.write(work)
        self._database.notifier.ring()
        return retried

    async def discard(self, which: JobFilter, limit: int) -> list[JobId]:
        def work(transaction: Transaction) -> list[JobId]:
            found = find(transaction.connection, which, "stage > 2", limit)
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
    found = transaction.run("stage", id=job)
    if not found:
        return CancelResult.UNKNOWN
    ((lane, stage),) = found
    if transaction.run("cancel_pending", id=job, now=transaction.now):
        transaction.moved(lane, stage, CANCELLED)
        return CancelResult.CANCELLED
    transaction.run("cancel_leased", id=job)
    return CancelResult.FINISHED if STATES[stage].is_final else CancelResult.REQUESTED


def find(connection: sqlite3.Connection, which: JobFilter, stage: str, limit: int) -> list[Row]:
    conditions, values = filter_conditions(which)
    where = " AND ".join([*conditions, stage])
    text = f"SELECT seq, jobs.id, lane, stage FROM jobs JOIN lanes ON lanes.id = lane WHERE {where} ORDER BY seq"
    return connection.execute(f"{text} LIMIT :limit", {**values, "limit": max(limit, 0)}).fetchall()


def delete(transaction: Transaction, jobs: Iterable[Row]) -> None:
    jobs = list(jobs)
    transaction.run_each("delete_job", [(seq,) for seq, _, _, _ in jobs])
    transaction.run_each("delete_errors", [(id_,) for _, id_, _, _ in jobs])
    for _, _, lane, stage in jobs:
        transaction.count(lane, stage, -1)
