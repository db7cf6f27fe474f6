"""Jobs in one SQLite file: the ports' verbs, each one transaction.

SQLite is a library, so the process that asks is the store, and the clock it is given is the store's clock. Each
transaction reads it once.
"""

import asyncio
import random
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from leaseway.domain.errors import SchemaVersions
from leaseway.domain.exchange import Exchange, ExchangeReply, Gate, HeldLease, ProgressReport, Renewed
from leaseway.domain.health import Finding
from leaseway.domain.ids import Instant, JobId, Token
from leaseway.domain.inspection import KEYS_PER_JOB, PAGE_MAX, CancelResult, JobFilter
from leaseway.domain.job import ErrorRecord, Job, LaneCount, NewJob, State, Submitted
from leaseway.domain.schedule import Schedule, StoredSchedule
from leaseway.domain.tenant import Tenant
from leaseway.stores.local_notifier import Bell
from leaseway.stores.sqlite import rows
from leaseway.stores.sqlite.connection import Connection
from leaseway.stores.sqlite.glances import SqliteGlances
from leaseway.stores.sqlite.keyed import SqliteKeyed
from leaseway.stores.sqlite.keys import SqliteKeys
from leaseway.stores.sqlite.migrate import migrate, schema_at
from leaseway.stores.sqlite.notify import FileWakeups
from leaseway.stores.sqlite.pauses import SqlitePauses
from leaseway.stores.sqlite.pulse import SqlitePulse
from leaseway.stores.sqlite.rows import CANCELLED, READY, STATES, Row, as_json
from leaseway.stores.sqlite.search import SqliteSearch
from leaseway.stores.sqlite.statements import statements
from leaseway.stores.sqlite.traces import SqliteTraces
from leaseway.stores.sqlite.transaction import Transaction

T = TypeVar("T")


class SqliteStore(SqliteKeys, SqliteGlances, SqlitePulse, SqliteSearch, SqlitePauses, SqliteKeyed, SqliteTraces):
    def __init__(
        self,
        path: str,
        now_us: Callable[[], Instant],
        *,
        durable: bool = True,
        inline: bool = False,
        sql: Mapping[str, str] | None = None,
        random: Callable[[], float] = random.random,
    ) -> None:
        self.path = path
        self.now_us = now_us
        self._sql = statements() if sql is None else sql
        self.connection = Connection(path, random, durable=durable, inline=inline)
        self._bell = Bell()
        self._wakeups = FileWakeups(self._bell, self.connection.connect)

    async def open(self) -> int:
        """Open the file, create it if it is missing, bring its schema up to date; how many migrations that took."""
        await self.connection.open()
        return await self.connection.write(lambda connection: migrate(connection, self.path))

    async def versions(self) -> SchemaVersions:
        return await asyncio.to_thread(schema_at, self.path)

    async def close(self) -> None:
        self._wakeups.close()
        await self.connection.close()

    async def wait(self, seconds: float) -> bool:
        return await self._wakeups.wait(seconds)

    async def checkup(self, *, deep: bool = False) -> list[Finding]:
        from leaseway.stores.sqlite.health import checkup  # here, because workers never need it

        return await asyncio.to_thread(checkup, self.path, self.now_us(), deep)

    # -- jobs: writing ----------------------------------------------------------------------------------------------

    async def submit(self, jobs: Sequence[NewJob]) -> list[Submitted]:
        answers = await self._write(lambda transaction: transaction.submit(jobs))
        self._bell.ring()
        return answers

    def submit_now(self, jobs: Sequence[NewJob]) -> list[Submitted]:
        answers = self.connection.write_now(self._step(lambda transaction: transaction.submit(jobs)))
        self._bell.ring()
        return answers

    async def exchange(self, call: Exchange) -> ExchangeReply:
        answer = await self._write(lambda transaction: transaction.exchange(call))
        if any(settlement.state is State.PENDING or settlement.children for settlement in call.settlements):
            self._bell.ring()
        return answer

    async def renew(self, leases: Sequence[HeldLease]) -> Renewed:
        sent = as_json([(held.id, held.token, held.lease_us) for held in leases])
        answers = await self._write(lambda transaction: transaction.run("renew", leases=sent, now=transaction.now))
        renewed = {(id_, token): is_to_cancel for id_, token, is_to_cancel in answers}
        lost = tuple(held.id for held in leases if (held.id, held.token) not in renewed)
        return Renewed(lost, tuple(held.id for held in leases if renewed.get((held.id, held.token))))

    async def checkpoint(self, job: JobId, token: Token, cursor: str) -> bool:
        def work(transaction: Transaction) -> list[Row]:
            return transaction.run("checkpoint", id=job, token=token, cursor=cursor, now=transaction.now)

        return bool(await self._write(work))

    async def report(self, reports: Sequence[ProgressReport]) -> None:
        def work(transaction: Transaction) -> None:
            for report in reports:
                transaction.run("report", id=report.id, token=report.token, progress=report.progress)

        await self._write(work)

    async def cancel(self, job: JobId) -> CancelResult:
        def work(transaction: Transaction) -> CancelResult:
            found = transaction.run("stage", id=job)
            if not found:
                return CancelResult.UNKNOWN
            ((lane, stage),) = found
            if transaction.run("cancel_pending", id=job, now=transaction.now):
                transaction.moved(lane, stage, CANCELLED)
                return CancelResult.CANCELLED
            transaction.run("cancel_leased", id=job)
            return CancelResult.FINISHED if STATES[stage].is_final else CancelResult.REQUESTED

        answer = await self._write(work)
        self._bell.ring()
        return answer

    async def replay(self, which: JobFilter, limit: int) -> list[JobId]:
        def work(transaction: Transaction) -> list[JobId]:
            found = self._find(transaction.connection, which, "stage IN (4, 5)", limit)
            for seq, _, lane, stage in found:
                transaction.run("replay", seq=seq, now=transaction.now)
                transaction.moved(lane, stage, READY)
            return [id_ for _, id_, _, _ in found]

        replayed = await self._write(work)
        self._bell.ring()
        return replayed

    async def discard(self, which: JobFilter, limit: int) -> list[JobId]:
        def work(transaction: Transaction) -> list[JobId]:
            found = self._find(transaction.connection, which, "stage > 2", limit)
            forget(transaction, found)
            return [id_ for _, id_, _, _ in found]

        return await self._write(work)

    async def prune(self, keep_us: int, limit: int) -> int:
        def work(transaction: Transaction) -> int:
            old = transaction.run("finished_before", before=transaction.now - keep_us, limit=max(limit, 0))
            forget(transaction, old)
            transaction.run("key_prune", now=transaction.now, limit=max(limit, 0) * KEYS_PER_JOB)
            return len(old)

        return await self._write(work)

    # -- jobs: reading ----------------------------------------------------------------------------------------------

    async def now(self) -> Instant:
        return self.now_us()

    async def wait_us(self, queues: Sequence[str], closed: Sequence[Gate] = ()) -> int | None:
        gates = as_json([(gate.needs, gate.tenant) for gate in closed])
        ((is_ready, run_at, until),) = await self._read("wait", queues=as_json(queues), closed=gates)
        if is_ready:
            return 0
        return max(0, min(at for at in (run_at, until) if at is not None) - self.now_us()) if run_at or until else None

    async def job(self, job: JobId) -> Job | None:
        found = await self.jobs(JobFilter(ids=(job,)), limit=1)
        return found[0] if found else None

    async def jobs(self, which: JobFilter, *, before: JobId | None = None, limit: int = 50) -> list[Job]:
        conditions, values = conditions_of(which)
        if before is not None:
            conditions.append("jobs.id < :before")
        text = (
            f"{self._sql['select_jobs']} WHERE {' AND '.join(conditions) or 'TRUE'} ORDER BY jobs.id DESC LIMIT :limit"
        )

        def work(connection: sqlite3.Connection) -> list[Job]:
            cursor = connection.cursor()
            cursor.row_factory = sqlite3.Row
            found = cursor.execute(text, {**values, "before": before, "limit": max(min(limit, PAGE_MAX), 0)})
            return [rows.job_of(row) for row in found.fetchall()]

        return await self.connection.read(work)

    async def errors(self, job: JobId) -> list[ErrorRecord]:
        return [rows.error_of(row) for row in await self._read("error_list", job=job)]

    async def lanes(self) -> list[LaneCount]:
        return [rows.lane_of(row) for row in await self._read("lane_list")]

    # -- schedules --------------------------------------------------------------------------------------------------

    async def declare(self, schedules: Sequence[Schedule]) -> None:
        def work(transaction: Transaction) -> None:
            for schedule in schedules:
                transaction.run(
                    "schedule_declare",
                    **{
                        "name": schedule.name,
                        "kind": schedule.kind,
                        "cron": schedule.cron,
                        "tz": schedule.tz,
                    },
                    **{"missed": schedule.missed.value, "now": transaction.now},
                )

        await self._write(work)

    async def schedules(self) -> list[StoredSchedule]:
        found = await self._read("schedule_list")
        return [rows.schedule_of(row, self.now_us()) for row in found]

    async def fire(self, name: str, seen: Instant, upto: Instant, jobs: Sequence[NewJob]) -> bool:
        def work(transaction: Transaction) -> bool:
            if not transaction.run("schedule_fire", name=name, seen=seen, upto=upto):
                return False
            transaction.submit(jobs, conflicts_replay=True)
            return True

        fired = await self._write(work)
        self._bell.ring()
        return fired

    async def pause(self, name: str, paused: bool) -> bool:
        def work(transaction: Transaction) -> list[Row]:
            return transaction.run("schedule_pause", name=name, paused=paused, now=transaction.now)

        return bool(await self._write(work))

    # -- tenants ----------------------------------------------------------------------------------------------------

    async def set_tenant(self, tenant: Tenant) -> None:
        agreed = {"weight": tenant.weight, "starts": as_json(tenant.starts), "concurrency": tenant.concurrency}

        def work(transaction: Transaction) -> None:
            transaction.run("tenant_set", name=tenant.name, is_capped=int(tenant.is_capped), **agreed)

        await self._write(work)
        self._bell.ring()

    async def tenants(self) -> list[Tenant]:
        return [rows.tenant_of(row) for row in await self._read("tenant_list")]

    async def forget_tenant(self, name: str) -> bool:
        forgotten = await self._write(lambda transaction: transaction.run("tenant_forget", name=name))
        self._bell.ring()
        return bool(forgotten)

    # -- transactions -----------------------------------------------------------------------------------------------

    async def _write(self, step: Callable[[Transaction], T]) -> T:
        return await self.connection.write(self._step(step))

    def _step(self, step: Callable[[Transaction], T]) -> Callable[[sqlite3.Connection], T]:
        def work(connection: sqlite3.Connection) -> T:
            transaction = Transaction(connection, self.now_us(), self._sql)
            answer = step(transaction)
            transaction.close()
            return answer

        return work

    async def _read(self, verb: str, **values: object) -> list[Row]:
        return await self.connection.read(lambda connection: connection.execute(self._sql[verb], values).fetchall())

    def _find(self, connection: sqlite3.Connection, which: JobFilter, stage: str, limit: int) -> list[Row]:
        conditions, values = conditions_of(which)
        where = " AND ".join([*conditions, stage])
        text = f"SELECT seq, jobs.id, lane, stage FROM jobs JOIN lanes ON lanes.id = lane WHERE {where} ORDER BY seq"
        return connection.execute(f"{text} LIMIT :limit", {**values, "limit": max(limit, 0)}).fetchall()


def forget(transaction: Transaction, jobs: Iterable[Row]) -> None:
    jobs = list(jobs)
    transaction.run_each("delete_job", [(seq,) for seq, _, _, _ in jobs])
    transaction.run_each("delete_errors", [(id_,) for _, id_, _, _ in jobs])
    for _, _, lane, stage in jobs:
        transaction.count(lane, stage, -1)


def conditions_of(which: JobFilter) -> tuple[list[str], dict[str, object]]:
    """A filter as SQL: fixed texts, values always bound."""
    conditions = []
    values: dict[str, object] = {}
    if which.ids is not None:
        conditions.append("jobs.id IN (SELECT value FROM json_each(:ids))")
        values["ids"] = as_json(which.ids)
    if which.states is not None:
        stages = [stage for stage, state in enumerate(STATES) if state in which.states]
        # One stage is named by equality: only then does SQLite find the index that holds nothing else.
        conditions.append(f"stage = {stages[0]}" if len(stages) == 1 else f"stage IN ({', '.join(map(str, stages))})")
    for field in ("kind", "queue", "tenant", "shard_key"):
        if getattr(which, field) is not None:
            conditions.append(f"{field} = :{field}")
            values[field] = getattr(which, field)
    if which.error_code is not None:
        conditions.append("last_error_code = :error_code")
        values["error_code"] = which.error_code
    return conditions, values
