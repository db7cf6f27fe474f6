"""Submit, exchange, renew, checkpoint and operate jobs in PostgreSQL.

Each method is one call of a function in the schema: one transaction, one round trip.
"""

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from leaseway.domain.errors import LeasewayError, UnknownOutcome
from leaseway.domain.exchange import Exchange, ExchangeReply, Gate, HeldLease, ProgressReport, Renewed
from leaseway.domain.ids import JobId, Token
from leaseway.domain.inspection import CancelResult, JobFilter
from leaseway.domain.job import NewJob, Settlement, State, Submitted, jobs_by_id
from leaseway.domain.requirements import quoted_name
from leaseway.stores.caller_connection import fetch, fetch_blocking
from leaseway.stores.event_loops import IdleForecast
from leaseway.stores.postgres import notify, rows
from leaseway.stores.postgres.database import JobDatabase
from leaseway.stores.postgres.errors import may_be_stored, translating_caller_errors
from leaseway.stores.postgres.rows import filter_conditions
from leaseway.stores.postgres.submit import SubmitCoalescer

Question = tuple[tuple[str, ...], tuple[Gate, ...]]
"""Queues, and the gates that are closed."""

FORECASTS_MAX = 100
"""Each set of closed gates is another question; only the last answers are cached."""


class PostgresJobs:
    def __init__(self, database: JobDatabase) -> None:
        self._database = database
        self._coalescer = SubmitCoalescer(self._write)
        self._forecasts: dict[Question, IdleForecast] = {}

    # -- submit -----------------------------------------------------------------------------------------------------

    async def submit(self, jobs: Sequence[NewJob]) -> list[Submitted]:
        if len(jobs) == 1 and jobs[0].key is None and jobs[0].trace is None:
            await self._coalescer.submit(jobs[0])
            return [Submitted(jobs[0].id)]
        return await self._submit(jobs)

    async def _submit(self, jobs: Sequence[NewJob]) -> list[Submitted]:
        uniform = rows.uniform_arguments(list(jobs_by_id(jobs).values()))
        if uniform is None:
            answers = rows.parse_submitted(jobs, await self._database.call("submit", *submission(self._database, jobs)))
        else:
            await self._database.call("submit_uniform", *uniform, self._database.at())
            answers = [Submitted(job.id) for job in jobs]
        self._database.notifier.notify()
        return answers

    async def _write(self, jobs: Sequence[NewJob]) -> None:
        """Jobs without keys and traces."""
        if len(jobs) > 1:
            await self._submit(jobs)
            return
        with self._database.notifier.notify_in_call() as sends_notification:
            if not sends_notification:
                await self._database.call("submit_one", *rows.single_arguments(jobs[0]), self._database.at())
                return
            try:
                await self._database.call("submit_one_and_notify", *rows.single_arguments(jobs[0]), self._database.at())
            except LeasewayError as error:
                if may_be_stored(error):
                    raise UnknownOutcome(f"{error}; the call may be repeated") from error
                raise

    # -- exchange ---------------------------------------------------------------------------------------------------

    async def exchange(self, call: Exchange) -> ExchangeReply:
        settlements = call.settlements
        if len({settlement.id for settlement in settlements}) < len(settlements):
            return await self._exchange_one_by_one(call)
        answers = await self._database.call("exchange", *self._exchange_arguments(call, settlements))
        if any(settlement.state is State.PENDING or settlement.children for settlement in settlements):
            self._database.notifier.notify()
        return rows.parse_exchange(call, answers)

    async def _exchange_one_by_one(self, call: Exchange) -> ExchangeReply:
        """For an exchange that settles a job twice: the first settlement decides about the second."""
        lost: list[JobId] = []
        async with self._database.connections.transaction() as connection:
            for settlement in call.settlements:
                answers = await connection.fetch(
                    self._database.sql["settle_alone"], *self._settle_arguments((settlement,))
                )
                lost += [id_ for (id_,) in answers]
            answers = await connection.fetch(self._database.sql["exchange"], *self._exchange_arguments(call, ()))
        self._database.notifier.notify()
        return replace(rows.parse_exchange(call, answers), lost=tuple(lost))

    def _exchange_arguments(self, call: Exchange, settlements: Sequence[Settlement]) -> rows.Values:
        tenant, repeat_max = (None, None) if call.wants is None else (call.wants.tenant, call.wants.repeat_max)
        gates = (rows.render_admits(call), rows.render_closings(call))
        claim = rows.claim_arguments(call)
        return (call.worker, *claim, *self._settle_arguments(settlements), *gates, tenant, repeat_max)

    def _settle_arguments(self, settlements: Sequence[Settlement]) -> rows.Values:
        return (*rows.settle_arguments(settlements), *rows.child_arguments(settlements), self._database.at())

    async def renew(self, leases: Sequence[HeldLease]) -> Renewed:
        in_order = sorted(leases, key=lambda held: held.id)
        sent = ([held.id for held in in_order], [held.token for held in in_order], [held.lease_us for held in in_order])
        answers = await self._database.call("renew", *sent, self._database.at())
        renewed = {(id_, token): is_to_cancel for id_, token, is_to_cancel in answers}
        lost = tuple(held.id for held in leases if (held.id, held.token) not in renewed)
        return Renewed(lost, tuple(held.id for held in leases if renewed.get((held.id, held.token))))

    async def checkpoint(self, job: JobId, token: Token, cursor: str) -> bool:
        ((is_kept,),) = await self._database.call("checkpoint", job, token, cursor, self._database.at())
        return bool(is_kept)

    async def report(self, reports: Sequence[ProgressReport]) -> None:
        newest = {(report.id, report.token): rows.replace_nul(report.progress) for report in reports}
        in_order = sorted(newest)
        progresses = [newest[each] for each in in_order]
        await self._database.call(
            "report_progress", [id_ for id_, _ in in_order], [token for _, token in in_order], progresses
        )

    async def wait_us(self, queues: Sequence[str], closed: Sequence[Gate] = ()) -> int | None:
        question = (tuple(queues), tuple(closed))
        connection, forecast = self._database.listener.connection(), self._forecasts.get(question)
        if connection is not None and (not connection.is_open or self._database.now_us is not None):
            connection = None
        if (
            connection is not None
            and not connection.is_poller
            and forecast is not None
            and forecast.is_valid(self._database.local.count, notify.FORECAST_SECONDS)
        ):
            return forecast.wait_us()
        seen = IdleForecast(self._database.local.count)
        ((seen.answer_us,),) = await self._database.read(
            "wait_us", list(queues), self._database.at(), rows.render_gates(closed)
        )
        self._remember(question, seen)
        if connection is not None and await connection.check_poller() and seen.is_news_to(forecast):
            self._database.notifier.notify()
        return seen.answer_us

    def _remember(self, question: Question, seen: IdleForecast) -> None:
        self._forecasts.pop(question, None)
        self._forecasts[question] = seen
        if len(self._forecasts) > FORECASTS_MAX:
            del self._forecasts[next(iter(self._forecasts))]

    async def traces(self, leases: Sequence[HeldLease]) -> Mapping[JobId, str]:
        held = ([each.id for each in leases], [each.token for each in leases])
        return {JobId(row[0]): row[1] for row in await self._database.read("list_traces", *held)}


class PostgresTransactionalSubmission:
    def __init__(self, database: JobDatabase) -> None:
        self._database = database

    async def submit(self, connection: object, jobs: Sequence[NewJob], *, notify: bool = True) -> list[Submitted]:
        with translating_caller_errors(self._database.address):
            answers = await fetch(connection, self._statement(notify), submission(self._database, jobs))
        return rows.parse_submitted(jobs, [row[:1] for row in answers])

    def submit_blocking(self, connection: object, jobs: Sequence[NewJob], *, notify: bool = True) -> list[Submitted]:
        with translating_caller_errors(self._database.address):
            answers = fetch_blocking(connection, self._statement(notify), submission(self._database, jobs))
        return rows.parse_submitted(jobs, [row[:1] for row in answers])

    def _statement(self, notify: bool) -> str:
        return self._database.sql["submit_and_notify" if notify else "submit"]


class PostgresOperations:
    def __init__(self, database: JobDatabase) -> None:
        self._database = database

    async def cancel(self, job: JobId) -> CancelResult:
        ((answer,),) = await self._database.call("cancel", job, self._database.at())
        self._database.local.notify()
        return CancelResult(answer)

    async def retry(self, which: JobFilter, limit: int) -> list[JobId]:
        found = await self._finished(which, "state IN ('failed', 'cancelled')", limit)
        ((answers,),) = await self._database.call("retry", found, self._database.at())
        self._database.notifier.notify()
        return [JobId(id_) for id_ in answers]

    async def run_now(self, which: JobFilter, limit: int) -> list[JobId]:
        conditions, values = filter_conditions(which, [max(limit, 0)])
        text = self._database.sql["list_scheduled_ids"].replace(":conditions", " AND ".join(["true", *conditions]))
        found = [id_ for (id_,) in await self._database.connections.read(text, *values)]
        ((answers,),) = await self._database.call("run_now", found, self._database.at())
        self._database.notifier.notify()
        return [JobId(id_) for id_ in answers]

    async def open_lanes(self, name: str, limit: int, tenant: str | None = None) -> int:
        ((opened,),) = await self._database.call("open_lanes", quoted_name(name), max(limit, 0), tenant)
        self._database.notifier.notify()
        return int(opened)

    async def discard(self, which: JobFilter, limit: int) -> list[JobId]:
        found = await self._finished(which, "true", limit)
        ((answers,),) = await self._database.call("discard", found)
        return [JobId(id_) for id_ in answers]

    async def prune(self, keep_us: int, limit: int) -> int:
        ((count,),) = await self._database.call("prune", keep_us, limit, self._database.at())
        return int(count)

    async def _finished(self, which: JobFilter, state: str, limit: int) -> list[str]:
        """Ids of finished jobs in the order of submission. The functions check the state again before they write."""
        conditions, values = filter_conditions(which, [max(limit, 0)])
        text = self._database.sql["list_finished_ids"].replace(":conditions", " AND ".join([state, *conditions]))
        return [id_ for (id_,) in await self._database.connections.read(text, *values)]


def submission(database: JobDatabase, jobs: Sequence[NewJob]) -> rows.Values:
    return (*rows.submit_arguments(list(jobs_by_id(jobs).values())), False, database.at())
