"""validation ─► [authorization] ─► store: the tenant whose jobs a caller may work on.

A worker key of one tenant leases the jobs of that tenant only, and must not change what all tenants share: schedules,
old jobs, and the definitions of limits and budgets. The names of its workers and its tokens live in the tenant's
namespace, so a token of another tenant is a lost lease. `metering` has the rules for limits and budgets. A worker key
of all tenants (`*`) may do everything that workers do.

Callers with other scopes see their own tenant, as in the other routes.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, TypeVar, cast

from msgspec.structs import replace

from leaseway.api.errors import Problem
from leaseway.api.metering import METERED, Metering, refuse_service_limits
from leaseway.api.routes.submissions import accept_jobs
from leaseway.api.routing import confined_tenant, visible_tenant
from leaseway.app import App
from leaseway.domain.budgets.holds import Correction
from leaseway.domain.exchange import GRANT_MAX, Exchange, ExchangeReply, HeldLease, ProgressReport, Renewed
from leaseway.domain.history.rows import HISTORY_PAGE, HistoryLevel, HistoryRow
from leaseway.domain.identity import LOCAL, OPERATOR_TENANT, Caller, Scope
from leaseway.domain.ids import SECOND_US, JobId, Token, WorkerId
from leaseway.domain.inspection import PAGE_BYTES_MAX, CancelResult, JobFilter, cut_page, is_cut
from leaseway.domain.job import ErrorRecord, Job, NewJob, Settlement, State
from leaseway.domain.lane import LaneCount
from leaseway.domain.schedule import StoredSchedule
from leaseway.domain.tenant import Tenant, namespace, qualify
from leaseway.domain.workers import Heartbeat, HeartbeatReply, StoredWorker, bound_names
from leaseway.ports.store import require_history, require_inspection, require_workers
from leaseway.stores.http import messages, protocol
from leaseway.stores.http.protocol import Verb
from leaseway.worker.definitions import cancel_job, correct_hold
from leaseway.worker.environment import Environment

H = TypeVar("H", HeldLease, ProgressReport, Settlement)
POLL_US = SECOND_US
"""How long a worker of one tenant waits if only other tenants have ready jobs."""


async def accept_jobs_in(app: App, metering: Metering, caller: Caller, body: Any) -> Any:
    """The call with its submitted jobs as they are stored: those of a submission, and the children of settlements. A
    client of all tenants may submit any job; its workers know kinds that the service does not know."""
    tenant = confined_tenant(caller)
    if tenant is None:
        return body
    if isinstance(body, messages.SubmitRequest):
        # A job without a tenant belongs to the caller's.
        jobs = [replace(job, tenant=tenant) if job.tenant == OPERATOR_TENANT else job for job in body.jobs]
        return replace(body, jobs=await accept_own_jobs(app, metering, jobs, tenant))
    if isinstance(body, Exchange) and any(settlement.children for settlement in body.settlements):
        settlements = [
            replace(settlement, children=await accept_own_jobs(app, metering, settlement.children, tenant))
            for settlement in body.settlements
        ]
        return replace(body, settlements=tuple(settlements))
    return body


async def accept_own_jobs(app: App, metering: Metering, jobs: Sequence[NewJob], tenant: str) -> tuple[NewJob, ...]:
    accepted = await accept_jobs(app, jobs, tenant)
    await metering.check_needs(tenant, accepted)
    return accepted


def require_all_tenants(caller: Caller, what: str) -> None:
    tenant = confined_tenant(caller)
    if tenant is not None:
        raise Problem(
            403, "not_allowed", f"this credential is limited to tenant {tenant}, but {what} belong to all tenants"
        )


# -- workers --------------------------------------------------------------------------------------------------------


async def exchange(world: Environment, caller: Caller, call: Exchange) -> ExchangeReply:
    tenant, call = confined_tenant(caller), bound_reply(call)
    if tenant is None:
        return await world.store.jobs.exchange(call)
    reply = await world.store.jobs.exchange(qualify_exchange(tenant, call))
    prefix = namespace(tenant)
    return replace(
        reply, leases=tuple(replace(lease, token=Token(lease.token.removeprefix(prefix))) for lease in reply.leases)
    )


def bound_reply(call: Exchange) -> Exchange:
    """Bound the size of the answer before jobs are leased: a job whose lease does not arrive would be leased again and
    again. A repeat has a bound, too, because a client can use one token for many claims."""
    if call.wants is None:
        return call
    return replace(call, wants=replace(call.wants, count=min(call.wants.count, GRANT_MAX), repeat_max=GRANT_MAX))


def qualify_exchange(tenant: str, call: Exchange) -> Exchange:
    wants = call.wants
    if wants is not None:
        wants = replace(wants, tenant=tenant, token=qualify(tenant, wants.token))
    return replace(
        call, worker=qualify(tenant, call.worker), settlements=qualify_tokens(tenant, call.settlements), wants=wants
    )


def qualify_tokens(tenant: str, items: Iterable[H]) -> tuple[H, ...]:
    return tuple(replace(item, token=qualify(tenant, item.token)) for item in items)


def own_leases(caller: Caller, leases: tuple[HeldLease, ...]) -> tuple[HeldLease, ...]:
    tenant = confined_tenant(caller)
    return leases if tenant is None else qualify_tokens(tenant, leases)


async def renew(world: Environment, caller: Caller, body: messages.RenewRequest) -> Renewed:
    return await world.store.jobs.renew(own_leases(caller, body.leases))


async def traces(world: Environment, caller: Caller, body: messages.TracesRequest) -> Mapping[JobId, str]:
    return await world.store.jobs.traces(own_leases(caller, body.leases))


async def checkpoint(world: Environment, caller: Caller, body: messages.CheckpointRequest) -> bool:
    tenant = confined_tenant(caller)
    token = body.token if tenant is None else Token(qualify(tenant, body.token))
    return await world.store.jobs.checkpoint(body.job, token, body.cursor)


async def report(world: Environment, caller: Caller, body: messages.ReportRequest) -> None:
    tenant = confined_tenant(caller)
    await world.store.jobs.report(body.reports if tenant is None else qualify_tokens(tenant, body.reports))


async def wait_us(world: Environment, caller: Caller, body: messages.WaitRequest) -> int | None:
    found = await world.store.jobs.wait_us(body.queues, body.closed)
    if found == 0 and confined_tenant(caller) is not None:
        own = [lane for lane in await lanes(world, caller, messages.LanesRequest()) if lane.queue in body.queues]
        return 0 if any(lane.ready and lane.closed_until is None for lane in own) else POLL_US
    return found


async def lanes(world: Environment, caller: Caller, body: messages.LanesRequest) -> list[LaneCount]:
    only = confined_tenant(caller)
    if only is not None and body.tenant not in (None, only):
        return []
    return list(await world.store.reads.lanes(only or body.tenant))


async def open_lanes(world: Environment, caller: Caller, body: messages.OpenLanesRequest) -> int:
    tenant = confined_tenant(caller) or body.tenant
    return await world.store.operations.open_lanes(body.name, body.limit, tenant)


async def tenants(world: Environment, caller: Caller, _: messages.EmptyRequest) -> list[Tenant]:
    only = confined_tenant(caller)
    return [tenant for tenant in await world.store.tenants.all() if only in (None, tenant.name)]


async def prune(world: Environment, caller: Caller, body: messages.PruneRequest) -> int:
    """Does nothing for a worker of one tenant: workers of all tenants prune."""
    return await world.store.operations.prune(body.keep_us, body.limit) if confined_tenant(caller) is None else 0


async def correct(world: Environment, caller: Caller, body: messages.CorrectHoldRequest) -> tuple[Correction, ...]:
    """The journal names the credential, if the service has authentication, and not the name that a client sends."""
    evidence = body.evidence if caller == LOCAL else replace(body.evidence, by=caller.name)
    return await correct_hold(world.store, world.ledger, body.id, body.actuals, evidence)


async def declare(world: Environment, caller: Caller, body: messages.DeclareSchedulesRequest) -> None:
    require_all_tenants(caller, "schedules")
    await world.store.schedules.declare(body.schedules)


async def fire(world: Environment, caller: Caller, body: messages.FireRequest) -> bool:
    require_all_tenants(caller, "schedules")
    return await world.store.schedules.fire(body.name, body.seen, body.upto, body.jobs)


async def schedules(world: Environment, caller: Caller, _: messages.EmptyRequest) -> list[StoredSchedule]:
    """None for a worker of one tenant, which cannot fire them."""
    return await world.store.schedules.all() if confined_tenant(caller) is None else []


# -- the list of workers ----------------------------------------------------------------------------------------------


async def beat(world: Environment, caller: Caller, body: Heartbeat) -> HeartbeatReply:
    tenant = confined_tenant(caller)
    own = body if tenant is None else bound_names(replace(body, worker=WorkerId(qualify(tenant, body.worker))))
    return await require_workers(world.store).beat(replace(own, tenant=tenant))


async def leave(world: Environment, caller: Caller, body: messages.WorkerRequest) -> None:
    tenant = confined_tenant(caller)
    name = body.worker if tenant is None else WorkerId(qualify(tenant, body.worker))
    await require_workers(world.store).leave(name)


async def workers(world: Environment, caller: Caller, body: messages.WorkersRequest) -> list[StoredWorker]:
    """A caller of one tenant sees the workers that work for its tenant only, under the names that they chose."""
    tenant = confined_tenant(caller)
    if tenant is None:
        return await require_workers(world.store).all(body.tenant)
    prefix, found = namespace(tenant), await require_workers(world.store).all(tenant)
    return [replace(each, beat=replace(each.beat, worker=WorkerId(each.name.removeprefix(prefix)))) for each in found]


async def record(world: Environment, caller: Caller, body: messages.RecordRequest) -> None:
    """By a worker of all tenants. Those of one tenant are metered."""
    await require_history(world.store).record([replace(row, level=HistoryLevel.MINUTE, at=0) for row in body.rows])


async def history(world: Environment, caller: Caller, body: messages.HistoryRequest) -> list[HistoryRow]:
    tenant = visible_tenant(caller, body.tenant)
    return await require_history(world.store).rows(
        body.level, body.since, body.until, tenant=tenant, after=body.after, limit=min(body.limit, HISTORY_PAGE)
    )


# -- clients --------------------------------------------------------------------------------------------------------


async def find_job(world: Environment, caller: Caller, id_: JobId) -> Job | None:
    """A job of another tenant is reported like one that does not exist."""
    job = await world.store.reads.job(id_)
    return job if job is not None and caller.sees(job.tenant) else None


async def job(world: Environment, caller: Caller, body: messages.JobRequest) -> Job | None:
    return await find_job(world, caller, body.job)


async def errors(world: Environment, caller: Caller, body: messages.JobRequest) -> list[ErrorRecord]:
    """Tracebacks show code and paths of workers that may belong to the operator."""
    found = [] if await find_job(world, caller, body.job) is None else await world.store.reads.errors(body.job)
    return found if caller.sees_all else [replace(error, traceback="") for error in found]


async def cancel(world: Environment, caller: Caller, body: messages.JobRequest) -> CancelResult:
    found = await find_job(world, caller, body.job)
    return CancelResult.UNKNOWN if found is None else await cancel_job(world.store, world.ledger, body.job)


async def jobs(world: Environment, caller: Caller, body: messages.JobsRequest) -> list[Job]:
    which = replace(body.which, tenant=visible_tenant(caller, body.which.tenant))
    if caller.sees_all or which.ids is not None:
        return await world.store.reads.jobs(which, before=body.before, limit=body.limit, bytes_max=PAGE_BYTES_MAX)
    found: list[Job] = []
    async for page in search_in_steps(world, which, body.before, body.limit):
        found += page
        if is_cut(found):
            break
    return cut_page(found, PAGE_BYTES_MAX)


async def search_in_steps(
    world: Environment, which: JobFilter, before: JobId | None, limit: int
) -> AsyncIterator[list[Job]]:
    """The newest jobs that match. A filter that fits few of a tenant's jobs reads all of them, however many there are;
    between two steps, the store reads for others."""
    while limit > 0:  # each step continues where the one before ended
        page = await require_inspection(world.store).search(which, before=before, limit=limit)
        yield page.jobs
        limit -= len(page.jobs)
        if page.upto is None:
            return
        before = page.upto


def searching_tenant(verb: Verb[Any, Any], caller: Caller) -> str | None:
    """One search of a tenant at a time: on SQLite, one thread reads for all tenants."""
    return caller.tenant if verb in SEARCHES and not caller.sees_all else None


async def choose_jobs(
    world: Environment, caller: Caller, body: messages.BulkRequest, states: tuple[State, ...]
) -> JobFilter:
    """The jobs that a call changes; for a caller of one tenant by their ids."""
    which = replace(body.which, tenant=visible_tenant(caller, body.which.tenant))
    if caller.sees_all or which.ids is not None:
        return which
    wanted = tuple(state for state in states if which.states is None or state in which.states)
    pages = search_in_steps(world, replace(which, states=wanted), None, body.limit if wanted else 0)
    return replace(which, ids=tuple([job.id async for page in pages for job in page]))


async def replay(world: Environment, caller: Caller, body: messages.BulkRequest) -> list[JobId]:
    which = await choose_jobs(world, caller, body, (State.FAILED, State.CANCELLED))
    return await world.store.operations.retry(which, body.limit)


async def run_now(world: Environment, caller: Caller, body: messages.BulkRequest) -> list[JobId]:
    which = replace(body.which, tenant=visible_tenant(caller, body.which.tenant))
    return await world.store.operations.run_now(which, body.limit)


async def discard(world: Environment, caller: Caller, body: messages.BulkRequest) -> list[JobId]:
    which = await choose_jobs(world, caller, body, (State.DONE, State.FAILED, State.CANCELLED))
    return await world.store.operations.discard(which, body.limit)


SEARCHES: frozenset[Verb[Any, Any]] = frozenset({
    protocol.JOBS, protocol.RETRY, protocol.RUN_NOW, protocol.DISCARD, protocol.HISTORY,
})  # fmt: skip
"""They may read very many jobs or rows."""

Handler = Callable[[Environment, Caller, Any], Awaitable[Any]]

HANDLERS: Mapping[Verb[Any, Any], Handler] = {
    protocol.EXCHANGE: exchange, protocol.RENEW: renew, protocol.CHECKPOINT: checkpoint, protocol.REPORT: report,
    protocol.TRACES: traces, protocol.WAIT_US: wait_us, protocol.LANES: lanes, protocol.TENANTS: tenants,
    protocol.OPEN_LANES: open_lanes, protocol.PRUNE: prune, protocol.DECLARE: declare,
    protocol.SCHEDULES: schedules, protocol.FIRE: fire,
    protocol.BEAT: beat, protocol.LEAVE: leave, protocol.WORKERS: workers,
    protocol.RECORD: record, protocol.HISTORY: history,
    protocol.JOB: job, protocol.ERRORS: errors, protocol.CANCEL: cancel, protocol.JOBS: jobs,
    protocol.RETRY: replay, protocol.RUN_NOW: run_now, protocol.DISCARD: discard, protocol.CORRECT: correct,
}  # fmt: skip
"""The verbs whose effect depends on the caller. Those of limits and budgets are in `METERED`."""
ACCEPTED: frozenset[Verb[Any, Any]] = frozenset({protocol.SUBMIT})
"""`accept_jobs_in` has changed or refused their body."""
FOR_OPERATORS: frozenset[Verb[Any, Any]] = frozenset({
    protocol.PAUSE, protocol.SET_TENANT, protocol.FORGET_TENANT, protocol.CHANGE_LIMIT, protocol.FORGET_LIMIT,
    protocol.CHANGE_BUDGET, protocol.FORGET_BUDGET, protocol.BALANCES, protocol.JOURNAL, protocol.HOLDS, protocol.AUDIT,
    protocol.BOOKED, protocol.BOOKED_FOR, protocol.DRAIN,
})  # fmt: skip
"""Their scope sees the data of all tenants."""
FOR_EVERYBODY: frozenset[Verb[Any, Any]] = frozenset({protocol.NOW})
"""They show nothing that belongs to a tenant."""


def has_tenant_rule(verb: Verb[Any, Any]) -> bool:
    """Whether this module says what a caller of one tenant may do with the verb."""
    return any(verb in rules for rules in (HANDLERS, METERED, ACCEPTED, FOR_EVERYBODY)) or is_for_operators(verb)


def is_for_operators(verb: Verb[Any, Any]) -> bool:
    return verb in FOR_OPERATORS and verb.scope is Scope.OPERATE


async def handle_call(verb: Verb[Any, Any], world: Environment, caller: Caller, body: Any, metering: Metering) -> Any:
    if verb.scope is Scope.WORK:
        refuse_service_limits(body)
    tenant = confined_tenant(caller)
    if tenant is not None and verb in METERED:
        return await METERED[verb](metering, world, tenant, body)
    handler = HANDLERS.get(verb)
    if handler is not None:
        return await handler(world, caller, body)
    # The fields of a body have the names of the port's parameters.
    values = {name: getattr(body, name) for name in body.__struct_fields__}
    return await cast(Handler, attrgetter(f"{verb.port}.{verb.method}")(world))(**values)  # type: ignore[call-arg]
