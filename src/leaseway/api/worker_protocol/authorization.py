"""bounds ─► [rights] ─► store: whose jobs a caller works on.

A worker's key of one tenant leases the jobs of that tenant and nobody else's, and leaves alone what belongs to all:
schedules, old jobs, the definitions of limits and budgets. One of all tenants, `*`, may do whatever workers do. Leases
need no look: whoever knows a token has been given it. Limits and budgets are shared by all who work, by their nature.

Clients with other scopes see their own tenant, as everywhere.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from operator import attrgetter
from typing import Any, cast

from msgspec.structs import replace

from leaseway.api.errors import Problem
from leaseway.api.routing import visible_tenant
from leaseway.api.worker_protocol.validation import needs as check_needs
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

UNNAMED = "default"
"""The tenant of a job of which nobody said whose it is."""
LOOK_US = SECOND_US
"""After this time a worker of one tenant looks again, if there is work for others only."""


def tenant_of(caller: Caller) -> str | None:
    """Whose jobs alone he works on; None: those of all."""
    return None if caller.sees_all or caller.tenant == ANY_TENANT else caller.tenant


def refuse_foreign(caller: Caller, jobs: Iterable[NewJob]) -> None:
    tenant = tenant_of(caller)
    if tenant is None:
        return
    for job in jobs:
        if job.tenant != tenant:
            raise Problem(403, "not_allowed", f"tenant: this credential makes jobs of tenant {tenant} only")
        check_needs(job)


def refuse_bound(caller: Caller, what: str) -> None:
    tenant = tenant_of(caller)
    if tenant is not None:
        raise Problem(403, "not_allowed", f"this credential works for tenant {tenant} only, and {what} are for all")


# -- workers --------------------------------------------------------------------------------------------------------


async def exchange(world: Environment, caller: Caller, call: Exchange) -> ExchangeReply:
    refuse_foreign(caller, (child for settlement in call.settlements for child in settlement.children))
    tenant = tenant_of(caller)
    if tenant is None or call.wants is None:
        return await world.store.jobs.exchange(call)
    reply = await world.store.jobs.exchange(replace(call, wants=replace(call.wants, tenant=tenant)))
    # A repeat is handed what was granted under its token: who guesses somebody else's must not be shown it.
    return replace(reply, leases=tuple(lease for lease in reply.leases if lease.tenant == tenant))


async def wait_us(world: Environment, caller: Caller, asked: requests.Look) -> int | None:
    found = await world.store.jobs.wait_us(asked.queues, asked.closed)
    if found == 0 and tenant_of(caller) is not None:
        own = [lane for lane in await lanes(world, caller, requests.Nothing()) if lane.queue in asked.queues]
        return 0 if any(lane.ready for lane in own) else LOOK_US
    return found


async def lanes(world: Environment, caller: Caller, _: requests.Nothing) -> list[LaneCount]:
    tenant = tenant_of(caller)
    return [lane for lane in await world.store.reads.lanes() if tenant in (None, lane.tenant)]


async def tenants(world: Environment, caller: Caller, _: requests.Nothing) -> list[Tenant]:
    only = tenant_of(caller)
    return [tenant for tenant in await world.store.tenants.all() if only in (None, tenant.name)]


async def prune(world: Environment, caller: Caller, asked: requests.Old) -> int:
    """Left to those who work for all."""
    return await world.store.operations.prune(asked.keep_us, asked.limit) if tenant_of(caller) is None else 0


async def prune_budgets(world: Environment, caller: Caller, asked: requests.Old) -> int:
    return await world.ledger.prune(asked.keep_us, asked.limit) if tenant_of(caller) is None else 0


async def declare(world: Environment, caller: Caller, asked: requests.Schedules) -> None:
    refuse_bound(caller, "schedules")
    await world.store.schedules.declare(asked.schedules)


async def fire(world: Environment, caller: Caller, asked: requests.Fire) -> bool:
    refuse_bound(caller, "schedules")
    return await world.store.schedules.fire(asked.name, asked.seen, asked.upto, asked.jobs)


async def declare_limits(world: Environment, caller: Caller, asked: requests.Limits) -> None:
    if tenant_of(caller) is None:
        return await world.limiter.definitions.declare(asked.definitions)
    known = {definition.name for definition, _ in await world.limiter.definitions.all()}
    if not known.issuperset(definition.name for definition in asked.definitions):
        refuse_bound(caller, "limits that nobody has defined")


async def declare_budgets(world: Environment, caller: Caller, asked: requests.Budgets) -> None:
    if tenant_of(caller) is None:
        return await world.ledger.definitions.declare(asked.definitions)
    known = {definition.name for definition, _ in await world.ledger.definitions.all()}
    if not known.issuperset(definition.name for definition in asked.definitions):
        refuse_bound(caller, "budgets that nobody has defined")


# -- clients --------------------------------------------------------------------------------------------------------


async def submit(world: Environment, caller: Caller, asked: requests.Submit) -> list[Submitted]:
    """The tenant comes from the credential. Who says nothing about it means his own."""
    jobs = asked.jobs
    if not caller.sees_all:
        jobs = tuple(replace(job, tenant=caller.tenant) if job.tenant == UNNAMED else job for job in jobs)
    refuse_foreign(caller, jobs)
    return await world.store.jobs.submit(jobs)


async def seen(world: Environment, caller: Caller, id_: JobId) -> Job | None:
    """Another's job is none."""
    job = await world.store.reads.job(id_)
    return job if job is not None and caller.sees(job.tenant) else None


async def job(world: Environment, caller: Caller, asked: requests.OneJob) -> Job | None:
    return await seen(world, caller, asked.job)


async def errors(world: Environment, caller: Caller, asked: requests.OneJob) -> list[ErrorRecord]:
    return [] if await seen(world, caller, asked.job) is None else await world.store.reads.errors(asked.job)


async def cancel(world: Environment, caller: Caller, asked: requests.OneJob) -> CancelResult:
    found = await seen(world, caller, asked.job)
    return CancelResult.UNKNOWN if found is None else await world.store.operations.cancel(asked.job)


async def jobs(world: Environment, caller: Caller, asked: requests.Page) -> list[Job]:
    which = replace(asked.which, tenant=visible_tenant(caller, asked.which.tenant))
    return await world.store.reads.jobs(which, before=asked.before, limit=asked.limit)


async def replay(world: Environment, caller: Caller, asked: requests.SomeJobs) -> list[JobId]:
    which = replace(asked.which, tenant=visible_tenant(caller, asked.which.tenant))
    return await world.store.operations.retry(which, asked.limit)


async def discard(world: Environment, caller: Caller, asked: requests.SomeJobs) -> list[JobId]:
    which = replace(asked.which, tenant=visible_tenant(caller, asked.which.tenant))
    return await world.store.operations.discard(which, asked.limit)


Handler = Callable[[Environment, Caller, Any], Awaitable[Any]]

HANDLERS: Mapping[Verb[Any, Any], Handler] = {
    protocol.EXCHANGE: exchange, protocol.WAIT_US: wait_us, protocol.LANES: lanes, protocol.TENANTS: tenants,
    protocol.PRUNE: prune,
    protocol.PRUNE_BUDGETS: prune_budgets, protocol.DECLARE: declare, protocol.FIRE: fire,
    protocol.DECLARE_LIMITS: declare_limits, protocol.DECLARE_BUDGETS: declare_budgets, protocol.SUBMIT: submit,
    protocol.JOB: job, protocol.ERRORS: errors, protocol.CANCEL: cancel, protocol.JOBS: jobs, protocol.REPLAY: replay,
    protocol.DISCARD: discard,
}  # fmt: skip
"""Those in which it matters who asks."""


async def answer_to(verb: Verb[Any, Any], world: Environment, caller: Caller, asked: Any) -> Any:
    handler = HANDLERS.get(verb)
    if handler is not None:
        return await handler(world, caller, asked)
    # The fields of a body are called what the port calls them.
    values = {name: getattr(asked, name) for name in asked.__struct_fields__}
    return await cast(Handler, attrgetter(f"{verb.port}.{verb.method}")(world))(**values)  # type: ignore[call-arg]
