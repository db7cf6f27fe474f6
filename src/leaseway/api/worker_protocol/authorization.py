"""validation ─► [authorization] ─► store: the tenant whose jobs a caller may work on.

A worker key of one tenant leases the jobs of that tenant only, and must not change what all tenants share: schedules,
old jobs, and the definitions of limits and budgets. A worker key of all tenants (`*`) may do everything that workers
do. Leases need no check, because only their owner knows the token. All workers share limits and budgets.

Callers with other scopes see their own tenant, as in the other routes.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from operator import attrgetter
from typing import Any, cast

from msgspec.structs import replace

from leaseway.api.errors import Problem
from leaseway.api.routing import visible_tenant
from leaseway.api.worker_protocol.validation import check_needs
from leaseway.domain.api_key import ANY_TENANT
from leaseway.domain.exchange import Exchange, ExchangeReply
from leaseway.domain.identity import Caller
from leaseway.domain.ids import SECOND_US, JobId
from leaseway.domain.inspection import CancelResult
from leaseway.domain.job import ErrorRecord, Job, NewJob, Submitted
from leaseway.domain.lane import LaneCount
from leaseway.domain.tenant import Tenant
from leaseway.stores.http import protocol, requests
from leaseway.stores.http.protocol import Verb
from leaseway.worker.environment import Environment

UNNAMED_TENANT = "default"
"""The tenant of a submitted job that names none."""
POLL_US = SECOND_US
"""How long a worker of one tenant waits if only other tenants have ready jobs."""


def worker_tenant(caller: Caller) -> str | None:
    """The tenant whose jobs a worker is limited to; None: all tenants."""
    return None if caller.sees_all or caller.tenant == ANY_TENANT else caller.tenant


def check_tenants(caller: Caller, jobs: Iterable[NewJob]) -> None:
    tenant = worker_tenant(caller)
    if tenant is None:
        return
    for job in jobs:
        if job.tenant != tenant:
            raise Problem(403, "not_allowed", f"tenant: this credential submits jobs of tenant {tenant} only")
        check_needs(job)


def require_all_tenants(caller: Caller, what: str) -> None:
    tenant = worker_tenant(caller)
    if tenant is not None:
        raise Problem(
            403, "not_allowed", f"this credential is limited to tenant {tenant}, but {what} belong to all tenants"
        )


# -- workers --------------------------------------------------------------------------------------------------------


async def exchange(world: Environment, caller: Caller, call: Exchange) -> ExchangeReply:
    check_tenants(caller, (child for settlement in call.settlements for child in settlement.children))
    tenant = worker_tenant(caller)
    if tenant is None or call.wants is None:
        return await world.store.jobs.exchange(call)
    reply = await world.store.jobs.exchange(replace(call, wants=replace(call.wants, tenant=tenant)))
    # A repeated exchange receives what was granted under its token. A caller that guesses the token of another tenant
    # must not see its leases.
    return replace(reply, leases=tuple(lease for lease in reply.leases if lease.tenant == tenant))


async def wait_us(world: Environment, caller: Caller, body: requests.WaitRequest) -> int | None:
    found = await world.store.jobs.wait_us(body.queues, body.closed)
    if found == 0 and worker_tenant(caller) is not None:
        own = [lane for lane in await lanes(world, caller, requests.EmptyRequest()) if lane.queue in body.queues]
        return 0 if any(lane.ready for lane in own) else POLL_US
    return found


async def lanes(world: Environment, caller: Caller, _: requests.EmptyRequest) -> list[LaneCount]:
    tenant = worker_tenant(caller)
    return [lane for lane in await world.store.reads.lanes() if tenant in (None, lane.tenant)]


async def tenants(world: Environment, caller: Caller, _: requests.EmptyRequest) -> list[Tenant]:
    only = worker_tenant(caller)
    return [tenant for tenant in await world.store.tenants.all() if only in (None, tenant.name)]


async def prune(world: Environment, caller: Caller, body: requests.PruneRequest) -> int:
    """Does nothing for a worker of one tenant: workers of all tenants prune."""
    return await world.store.operations.prune(body.keep_us, body.limit) if worker_tenant(caller) is None else 0


async def prune_budgets(world: Environment, caller: Caller, body: requests.PruneRequest) -> int:
    return await world.ledger.prune(body.keep_us, body.limit) if worker_tenant(caller) is None else 0


async def declare(world: Environment, caller: Caller, body: requests.DeclareSchedulesRequest) -> None:
    require_all_tenants(caller, "schedules")
    await world.store.schedules.declare(body.schedules)


async def fire(world: Environment, caller: Caller, body: requests.FireRequest) -> bool:
    require_all_tenants(caller, "schedules")
    return await world.store.schedules.fire(body.name, body.seen, body.upto, body.jobs)


async def declare_limits(world: Environment, caller: Caller, body: requests.DeclareLimitsRequest) -> None:
    if worker_tenant(caller) is None:
        return await world.limiter.definitions.declare(body.definitions)
    known = {definition.name for definition, _ in await world.limiter.definitions.all()}
    if not known.issuperset(definition.name for definition in body.definitions):
        require_all_tenants(caller, "undefined limits")


async def declare_budgets(world: Environment, caller: Caller, body: requests.DeclareBudgetsRequest) -> None:
    if worker_tenant(caller) is None:
        return await world.ledger.definitions.declare(body.definitions)
    known = {definition.name for definition, _ in await world.ledger.definitions.all()}
    if not known.issuperset(definition.name for definition in body.definitions):
        require_all_tenants(caller, "undefined budgets")


# -- clients --------------------------------------------------------------------------------------------------------


async def submit(world: Environment, caller: Caller, body: requests.SubmitRequest) -> list[Submitted]:
    """The tenant comes from the credential. A job without a tenant belongs to the caller's."""
    jobs = body.jobs
    if not caller.sees_all:
        jobs = tuple(replace(job, tenant=caller.tenant) if job.tenant == UNNAMED_TENANT else job for job in jobs)
    check_tenants(caller, jobs)
    return await world.store.jobs.submit(jobs)


async def find_job(world: Environment, caller: Caller, id_: JobId) -> Job | None:
    """A job of another tenant is reported like one that does not exist."""
    job = await world.store.reads.job(id_)
    return job if job is not None and caller.sees(job.tenant) else None


async def job(world: Environment, caller: Caller, body: requests.JobRequest) -> Job | None:
    return await find_job(world, caller, body.job)


async def errors(world: Environment, caller: Caller, body: requests.JobRequest) -> list[ErrorRecord]:
    return [] if await find_job(world, caller, body.job) is None else await world.store.reads.errors(body.job)


async def cancel(world: Environment, caller: Caller, body: requests.JobRequest) -> CancelResult:
    found = await find_job(world, caller, body.job)
    return CancelResult.UNKNOWN if found is None else await world.store.operations.cancel(body.job)


async def jobs(world: Environment, caller: Caller, body: requests.JobsRequest) -> list[Job]:
    which = replace(body.which, tenant=visible_tenant(caller, body.which.tenant))
    return await world.store.reads.jobs(which, before=body.before, limit=body.limit)


async def replay(world: Environment, caller: Caller, body: requests.BulkRequest) -> list[JobId]:
    which = replace(body.which, tenant=visible_tenant(caller, body.which.tenant))
    return await world.store.operations.retry(which, body.limit)


async def discard(world: Environment, caller: Caller, body: requests.BulkRequest) -> list[JobId]:
    which = replace(body.which, tenant=visible_tenant(caller, body.which.tenant))
    return await world.store.operations.discard(which, body.limit)


Handler = Callable[[Environment, Caller, Any], Awaitable[Any]]

HANDLERS: Mapping[Verb[Any, Any], Handler] = {
    protocol.EXCHANGE: exchange, protocol.WAIT_US: wait_us, protocol.LANES: lanes, protocol.TENANTS: tenants,
    protocol.PRUNE: prune,
    protocol.PRUNE_BUDGETS: prune_budgets, protocol.DECLARE: declare, protocol.FIRE: fire,
    protocol.DECLARE_LIMITS: declare_limits, protocol.DECLARE_BUDGETS: declare_budgets, protocol.SUBMIT: submit,
    protocol.JOB: job, protocol.ERRORS: errors, protocol.CANCEL: cancel, protocol.JOBS: jobs, protocol.RETRY: replay,
    protocol.DISCARD: discard,
}  # fmt: skip
"""The verbs whose effect depends on the caller."""


async def handle_call(verb: Verb[Any, Any], world: Environment, caller: Caller, body: Any) -> Any:
    handler = HANDLERS.get(verb)
    if handler is not None:
        return await handler(world, caller, body)
    # The fields of a body have the names of the port's parameters.
    values = {name: getattr(body, name) for name in body.__struct_fields__}
    return await cast(Handler, attrgetter(f"{verb.port}.{verb.method}")(world))(**values)  # type: ignore[call-arg]
