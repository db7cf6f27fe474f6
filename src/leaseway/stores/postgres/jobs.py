"""Jobs in PostgreSQL: the ports' verbs, each one call of a function in our schema, one transaction, one round trip.

The server's clock decides. `now_us` is for tests that move time: what it answers is then sent along as the instant.
"""

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from leaseway.domain.errors import LeasewayError, SchemaVersions, UnknownOutcome
from leaseway.domain.exchange import Exchange, ExchangeReply, Gate, HeldLease, ProgressReport, Renewed
from leaseway.domain.health import Finding
from leaseway.domain.ids import Instant, JobId, Token
from leaseway.domain.inspection import PAGE_MAX, CancelResult, JobFilter
from leaseway.domain.job import ErrorRecord, Job, LaneCount, NewJob, Settlement, State, Submitted
from leaseway.domain.schedule import Schedule, StoredSchedule
from leaseway.domain.tenant import Tenant
from leaseway.stores.local_notifier import Bell
from leaseway.stores.postgres import rows
from leaseway.stores.postgres.address import address_of
from leaseway.stores.postgres.caller_transaction import fetch_within, fetch_within_now
from leaseway.stores.postgres.connection import Connections, Record
from leaseway.stores.postgres.errors import may_be_stored
from leaseway.stores.postgres.glances import PostgresGlances
from leaseway.stores.postgres.keyed import PostgresKeyed
from leaseway.stores.postgres.keys import PostgresKeys
from leaseway.stores.postgres.migrate import migrate, read_versions
from leaseway.stores.postgres.notify import Belief, Listener, Ringer
from leaseway.stores.postgres.pauses import PostgresPauses
from leaseway.stores.postgres.pulse import PostgresPulse
from leaseway.stores.postgres.rows import as_json
from leaseway.stores.postgres.search import PostgresSearch
from leaseway.stores.postgres.statements import statements_for
from leaseway.stores.postgres.submit_coalescer import Gathered
from leaseway.stores.postgres.traces import PostgresTraces

Question = tuple[tuple[str, ...], tuple[Gate, ...]]
"""Is there something to do in these queues, while these gates are closed?"""

BELIEFS_MAX = 100
"""Gates open and close, and each set of closed ones is another question: only the last answers are kept."""


class PostgresStore(
    PostgresKeys, PostgresGlances, PostgresPulse, PostgresSearch, PostgresPauses, PostgresKeyed, PostgresTraces
):
    def __init__(self, url: str, now_us: Callable[[], Instant] | None = None) -> None:
        self.address = address_of(url)
        self._now_us = now_us
        self.connections = Connections(self.address)
        self._bell = Bell()
        self._ringer = Ringer(self.connections, self._bell)
        self._listener = Listener(self.connections, self._bell, self._ringer.is_echo)
        self._gathered = Gathered(self._submit_gathered)
        self._beliefs: dict[Question, Belief] = {}
        self._sql = statements_for(self.address.quoted)

    async def open(self) -> int:
        """Connect, and bring the schema up to date; how many migrations that took."""
        return await migrate(self.connections)

    async def versions(self) -> SchemaVersions:
        async with self.connections.lent() as connection:
            return await read_versions(connection, self.address)

    async def close(self) -> None:
        await self._ringer.close()
        await self._listener.close()
        await self.connections.close()

    async def wait(self, seconds: float) -> bool:
        return await self._listener.wait(seconds)

    async def checkup(self, *, deep: bool = False) -> list[Finding]:
        from leaseway.stores.postgres.health import checkup  # here, because workers never need it

        return await checkup(self.connections, deep)

    # -- jobs: writing ----------------------------------------------------------------------------------------------

    async def submit(self, jobs: Sequence[NewJob]) -> list[Submitted]:
        if len(jobs) == 1 and jobs[0].key is None and jobs[0].trace is None:
            await self._gathered.submit(jobs[0])
            return [Submitted(jobs[0].id)]
        return await self._submit(jobs)

    async def _submit(self, jobs: Sequence[NewJob]) -> list[Submitted]:
        alike = rows.alike(distinct(jobs))
        if alike is None:
            answers = rows.submitted(jobs, await self._call("submit", *self._submission(jobs)))
        else:
            await self._call("submit_uniform", *alike, self._at())
            answers = [Submitted(job.id) for job in jobs]
        self._ringer.ring()
        return answers

    async def _submit_gathered(self, jobs: Sequence[NewJob]) -> None:
        """Without keys and traces: each stands for itself."""
        if len(jobs) > 1:
            await self._submit(jobs)
            return
        with self._ringer.travelling() as tells:
            if not tells:
                await self._call("submit_one", *rows.single(jobs[0]), self._at())
                return
            try:
                await self._call("submit_one_and_notify", *rows.single(jobs[0]), self._at())
            except LeasewayError as error:
                if may_be_stored(error):
                    raise UnknownOutcome(f"{error}; the call may be repeated") from error
                raise

    async def submit_within(self, connection: object, jobs: Sequence[NewJob]) -> list[Submitted]:
        return rows.submitted(
            jobs, await fetch_within(connection, self.address, self._sql["submit"], *self._submission(jobs))
        )

    def submit_within_now(self, connection: object, jobs: Sequence[NewJob]) -> list[Submitted]:
        return rows.submitted(
            jobs, fetch_within_now(connection, self.address, self._sql["submit"], *self._submission(jobs))
        )

    def _submission(self, jobs: Sequence[NewJob]) -> rows.Values:
        return (*rows.submission(distinct(jobs)), False, self._at())

    async def exchange(self, call: Exchange) -> ExchangeReply:
        settlements = call.settlements
        if len({settlement.id for settlement in settlements}) < len(settlements):
            return await self._exchange_one_by_one(call)
        answers = await self._call("exchange", *self._asked(call, settlements))
        if any(settlement.state is State.PENDING or settlement.children for settlement in settlements):
            self._ringer.ring()
        return rows.exchanged(call, answers)

    async def _exchange_one_by_one(self, call: Exchange) -> ExchangeReply:
        """The same job twice: the first settlement decides what becomes of the second."""
        lost: list[JobId] = []
        async with self.connections.transaction() as connection:
            for settlement in call.settlements:
                answers = await connection.fetch(self._sql["settle_alone"], *self._handed_back((settlement,)))
                lost += [id_ for (id_,) in answers]
            answers = await connection.fetch(self._sql["exchange"], *self._asked(call, ()))
        self._ringer.ring()
        return replace(rows.exchanged(call, answers), lost=tuple(lost))

    def _asked(self, call: Exchange, settlements: Sequence[Settlement]) -> rows.Values:
        closed, tenant = (None, None) if call.wants is None else (rows.gates_of(call.wants.closed), call.wants.tenant)
        return (
            call.worker, *rows.wants_of(call), *self._handed_back(settlements), rows.admits_of(call), closed, tenant
        )  # fmt: skip

    def _handed_back(self, settlements: Sequence[Settlement]) -> rows.Values:
        return (*rows.settlements_of(settlements), *rows.children_of(settlements), self._at())

    async def renew(self, leases: Sequence[HeldLease]) -> Renewed:
        in_order = sorted(leases, key=lambda held: held.id)
        sent = ([held.id for held in in_order], [held.token for held in in_order], [held.lease_us for held in in_order])
        answers = await self._call("renew", *sent, self._at())
        renewed = {(id_, token): is_to_cancel for id_, token, is_to_cancel in answers}
        lost = tuple(held.id for held in leases if (held.id, held.token) not in renewed)
        return Renewed(lost, tuple(held.id for held in leases if renewed.get((held.id, held.token))))

    async def checkpoint(self, job: JobId, token: Token, cursor: str) -> bool:
        ((is_kept,),) = await self._call("checkpoint", job, token, cursor, self._at())
        return bool(is_kept)

    async def report(self, reports: Sequence[ProgressReport]) -> None:
        newest = {(report.id, report.token): rows.clean(report.progress) for report in reports}
        in_order = sorted(newest)
        progresses = [newest[each] for each in in_order]
        await self._call("report_progress", [id_ for id_, _ in in_order], [token for _, token in in_order], progresses)

    async def cancel(self, job: JobId) -> CancelResult:
        ((answer,),) = await self._call("cancel", job, self._at())
        self._bell.ring()
        return CancelResult(answer)

    async def replay(self, which: JobFilter, limit: int) -> list[JobId]:
        found = await self._finished(which, "state IN ('failed', 'cancelled')", limit)
        ((answers,),) = await self._call("retry", found, self._at())
        self._ringer.ring()
        return [JobId(id_) for id_ in answers]

    async def discard(self, which: JobFilter, limit: int) -> list[JobId]:
        found = await self._finished(which, "true", limit)
        ((answers,),) = await self._call("discard", found)
        return [JobId(id_) for id_ in answers]

    async def prune(self, keep_us: int, limit: int) -> int:
        ((count,),) = await self._call("prune", keep_us, limit, self._at())
        return int(count)

    # -- jobs: reading ----------------------------------------------------------------------------------------------

    async def now(self) -> Instant:
        if self._now_us is not None:
            return self._now_us()
        ((now,),) = await self._look("now")
        return int(now)

    async def wait_us(self, queues: Sequence[str], closed: Sequence[Gate] = ()) -> int | None:
        question = (tuple(queues), tuple(closed))
        ear, belief = self._listener.ear(), self._beliefs.get(question)
        if ear is not None and (not ear.is_open or self._now_us is not None):
            ear = None
        if ear is not None and not ear.is_watchman and belief is not None and belief.holds(self._bell.rings):
            return belief.wait_us()
        seen = Belief(self._bell.rings)
        ((seen.said,),) = await self._look("wait_us", list(queues), self._at(), rows.gates_of(closed))
        self._believe(question, seen)
        if ear is not None and await ear.keeps_watch() and seen.is_news_to(belief):
            self._ringer.ring()
        return seen.said

    def _believe(self, question: Question, seen: Belief) -> None:
        self._beliefs.pop(question, None)
        self._beliefs[question] = seen
        if len(self._beliefs) > BELIEFS_MAX:
            del self._beliefs[next(iter(self._beliefs))]

    async def job(self, job: JobId) -> Job | None:
        found = await self.jobs(JobFilter(ids=(job,)), limit=1)
        return found[0] if found else None

    async def jobs(self, which: JobFilter, *, before: JobId | None = None, limit: int = 50) -> list[Job]:
        conditions, values = conditions_of(which, [max(min(limit, PAGE_MAX), 0)])
        if before is not None:
            values.append(before)
            conditions.append(f"id < ${len(values)}")
        text = self._sql["list_jobs"].replace(":conditions", " AND ".join(["true", *conditions]))
        return [rows.job_of(row) for row in await self.connections.look(text, *values)]

    async def errors(self, job: JobId) -> list[ErrorRecord]:
        return [rows.error_of(row) for row in await self._look("list_errors", job)]

    async def lanes(self) -> list[LaneCount]:
        return [rows.lane_of(row) for row in await self._look("list_lanes")]

    # -- schedules --------------------------------------------------------------------------------------------------

    async def declare(self, schedules: Sequence[Schedule]) -> None:
        last = {schedule.name: schedule for schedule in schedules}
        await self._call("declare_schedules", as_json(list(last.values())), self._at())

    async def schedules(self) -> list[StoredSchedule]:
        found = await self._look("list_schedules")
        now = await self.now()
        return [rows.schedule_of(row, now) for row in found]

    async def fire(self, name: str, seen: Instant, upto: Instant, jobs: Sequence[NewJob]) -> bool:
        ((fired,),) = await self._call("fire_schedule", name, seen, upto, *rows.submission(distinct(jobs)), self._at())
        self._ringer.ring()
        return bool(fired)

    async def pause(self, name: str, paused: bool) -> bool:
        ((is_known,),) = await self._call("pause_schedule", name, paused, self._at())
        return bool(is_known)

    # -- tenants ----------------------------------------------------------------------------------------------------

    async def set_tenant(self, tenant: Tenant) -> None:
        starts = as_json(tenant.starts)
        await self._call("set_tenant", tenant.name, tenant.weight, starts, tenant.concurrency, tenant.is_capped)
        self._ringer.ring()

    async def tenants(self) -> list[Tenant]:
        return [rows.tenant_of(row) for row in await self._look("list_tenants")]

    async def forget_tenant(self, name: str) -> bool:
        ((is_known,),) = await self._call("forget_tenant", name)
        self._ringer.ring()
        return bool(is_known)

    # -- speaking to the server -------------------------------------------------------------------------------------

    def _at(self) -> Instant | None:
        return None if self._now_us is None else self._now_us()

    async def _call(self, verb: str, *values: object) -> list[Record]:
        return await self.connections.call(self._sql[verb], *values)

    async def _look(self, verb: str, *values: object) -> list[Record]:
        return await self.connections.look(self._sql[verb], *values)

    async def _finished(self, which: JobFilter, state: str, limit: int) -> list[str]:
        """Ids of finished jobs in the order of their submission; the functions look again before they write."""
        conditions, values = conditions_of(which, [max(limit, 0)])
        text = self._sql["list_finished_ids"].replace(":conditions", " AND ".join([state, *conditions]))
        return [id_ for (id_,) in await self.connections.look(text, *values)]


def distinct(jobs: Sequence[NewJob]) -> list[NewJob]:
    """Each id once: the last that was said of it."""
    return list({job.id: job for job in jobs}.values())


def conditions_of(which: JobFilter, values: list[object]) -> tuple[list[str], list[object]]:
    """A filter as SQL: fixed texts, values always bound, after those that there are."""
    conditions = []
    if which.states is not None:
        names = [f"'{name}'" for name, state in rows.STATES.items() if state in which.states]
        conditions.append(f"state IN ({', '.join(names)})" if names else "false")
    sought: dict[str, object | None] = {
        "id": None if which.ids is None else list(which.ids),
        "kind": which.kind,
        "queue": which.queue,
        "tenant": which.tenant,
        "last_error_code": which.error_code,
        "shard_key": which.shard_key,
    }
    for column, value in sought.items():
        if value is not None:
            values.append(value)
            conditions.append(f"{column} = ANY (${len(values)})" if column == "id" else f"{column} = ${len(values)}")
    return conditions, values
