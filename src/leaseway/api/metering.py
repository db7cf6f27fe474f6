"""validation ─► authorization ─► [metering] ─► limiter, ledger: what a worker of one tenant may do with them.

A limit or a budget whose name has the field `{tenant}` belongs to each tenant apart, and a worker of one tenant uses
only its own. One without the field is shared: every worker uses it, but one call closes or occupies it for minutes
only, and holds are for the calls of jobs that the tenant has leased. Holders of in-flight calls and ids of holds live
in the tenant's namespace, so that two tenants cannot name the same one. Workers of all tenants have no such bounds. The
limits of the service itself are for no worker.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeVar

from msgspec.structs import replace

from leaseway.api.errors import Problem
from leaseway.api.tenant_usage import HOLDS_MAX, GrantLog, OpenHolds, RecentNames, RecordedRows
from leaseway.api.ttl_cache import TtlCache
from leaseway.domain.budgets.budget import (
    BudgetDefinition,
    Charge,
    Crossed,
    HoldAnswer,
    HoldBooked,
    HoldGranted,
    amount_text,
)
from leaseway.domain.errors import BadValue, UsageError
from leaseway.domain.ids import Instant, JobId
from leaseway.domain.job import NewJob, State
from leaseway.domain.limits.buckets import Granted, Notice, Verdict
from leaseway.domain.limits.level import InFlight, Level
from leaseway.domain.limits.limit import RESERVED, TENANT_PREFIX, LimitDefinition, PermitRequest
from leaseway.domain.limits.templates import fills_template, template_fields
from leaseway.domain.limits.throttling import RETRY_SHARE
from leaseway.domain.requirements import parse_needs
from leaseway.domain.tenant import SHARED_US_MAX, DefinedNames, Ownership, namespace, qualify
from leaseway.ports.ledger import Expired, HoldRequest, Posted, SettleHoldRequest
from leaseway.stores.http import messages, protocol
from leaseway.stores.http.protocol import Verb
from leaseway.worker.environment import Environment

DEFINITIONS_SECONDS = 5.0
"""How long the names of limits and budgets are cached."""
SERVICE_PREFIXES = tuple(prefix for prefix in RESERVED if prefix != TENANT_PREFIX)
OTHER_TENANTS = "other tenants"
"""The holder under which a worker of one tenant sees the calls of all others."""

HOLDERS_MAX = 1_000
NAMES_MAX = 20_000
"""How many holders, and how many names of limits and budgets with fields, the workers of one tenant may use within ten
minutes (`SHARED_US_MAX`)."""
LEASES_SECONDS = 1.0
"""How long a lease is believed to last after it was read. No lease is shorter."""
LEASES_MAX = 5_000
RETRY = {"Retry-After": "60"}

Metered = Literal["limit", "budget"]
T = TypeVar("T")


class Definitions:
    def __init__(self, definitions: Iterable[Any]) -> None:
        self.by_name: dict[str, Any] = {definition.name: definition for definition in definitions}
        self.names = DefinedNames(self.by_name)

    def knows(self, name: str, template: str) -> bool:
        return name in self.by_name or template in self.by_name


def refuse_service_limits(body: Any) -> None:
    """Refuse the limits that protect the service from its tenants."""
    for name in limit_names(body):
        if name.startswith(SERVICE_PREFIXES):
            raise Problem(403, "not_allowed", f"limit {name} belongs to the service; workers cannot use or define it")


def limit_names(body: Any) -> Iterable[str]:
    match body:
        case messages.AcquireRequest(asks=asks) | messages.LevelsRequest(asks=asks):
            return [ask.name for ask in asks]
        case messages.EndCallsRequest(asks=asks) | messages.RenewCallsRequest(asks=asks):
            return [ask.name for ask in asks]
        case messages.ReturnUnusedRequest():
            return [ask.name for ask in body.granted.asks]
        case messages.ObserveRequest():
            return [body.notice.name]
        case messages.DeclareLimitsRequest():
            return [definition.name for definition in body.definitions]
    return []


class Metering:
    """The limits and budgets of one process. Every method serves a worker that is limited to one tenant."""

    def __init__(self, world: Callable[[], Environment]) -> None:
        self._world = world
        self._grants = GrantLog()
        self._holders, self._names = RecentNames(HOLDERS_MAX), RecentNames(NAMES_MAX)
        self._holds, self.recorded = OpenHolds(), RecordedRows()
        self._leases: TtlCache[str] = TtlCache(
            self._load_lease, world().clock, ttl_seconds=LEASES_SECONDS, negative_ttl_seconds=0, max_entries=LEASES_MAX
        )
        self._defined: TtlCache[Definitions] = TtlCache(
            self._load, world().clock, ttl_seconds=DEFINITIONS_SECONDS, negative_ttl_seconds=0, max_entries=2
        )

    # -- names ------------------------------------------------------------------------------------------------------

    async def _load(self, what: str) -> Definitions:
        world = self._world()
        definitions = world.limiter.definitions if what == "limit" else world.ledger.definitions
        return Definitions(definition for definition, _ in await definitions.all())

    async def _definitions(self, what: Metered, names: Iterable[tuple[str, str]] = ()) -> Definitions:
        """Read again if a name is not known, because it may have been defined a moment ago."""
        defined = await self._defined.get(what)
        assert defined is not None
        if all(defined.knows(*each) for each in names):
            return defined
        self._defined.invalidate(what)
        return await self._defined.get(what) or defined

    async def _check(self, what: Metered, tenant: str, names: Sequence[tuple[str, str]]) -> bool:
        """Whether one of them is shared with other tenants. Problem 403: one of them belongs to another tenant."""
        defined = await self._definitions(what, names)
        owners = [ownership(what, tenant, name, template, defined.names) for name, template in names]
        for (name, _), owner in zip(names, owners, strict=True):
            if owner is Ownership.FOREIGN:
                detail = f"{what} {name}: this credential is limited to tenant {tenant}, which cannot use this name"
                raise Problem(403, "not_allowed", detail)
        now = self._world().clock.monotonic()
        for name, template in names:
            if name != template and not self._names.add(tenant, f"{what} {name}", now):
                raise Problem(
                    429, "too_many_names", f"{what} {name}: tenant {tenant} uses {NAMES_MAX:,} names", headers=RETRY
                )
        return Ownership.SHARED in owners

    async def _check_limits(self, tenant: str, asks: Sequence[PermitRequest], in_flight_us: int = 0) -> bool:
        is_shared = await self._check("limit", tenant, [(ask.name, ask.limit) for ask in asks])
        if is_shared and in_flight_us > SHARED_US_MAX:
            raise BadValue("in_flight_us", f"must be at most {SHARED_US_MAX:,} under a limit that all tenants share")
        return is_shared

    async def _check_charges(self, tenant: str, charges: Iterable[Charge]) -> bool:
        return await self._check("budget", tenant, [(charge.name, charge.budget) for charge in charges])

    def _holder(self, tenant: str, holder: str) -> str:
        """The holder's name in the limiter."""
        if not self._holders.add(tenant, holder, self._world().clock.monotonic()):
            raise BadValue("holder", f"tenant {tenant} uses {HOLDERS_MAX:,} holders; use one per worker process")
        return qualify(tenant, holder)

    async def check_needs(self, tenant: str, jobs: Iterable[NewJob]) -> None:
        """Refuse jobs whose limits or budgets belong to another tenant: all workers take what jobs need."""
        for needs in map(parse_needs, {job.needs for job in jobs}):
            await self._check_needed("limit", tenant, [request.name for request in needs.limits])
            await self._check_needed("budget", tenant, [charge.name for charge in needs.budgets])

    async def _check_needed(self, what: Metered, tenant: str, names: Sequence[str]) -> None:
        """The definitions may be declared later, by the worker that runs the job."""
        defined = (await self._definitions(what)).names if names else DefinedNames(())
        for name in names:
            if defined.ownership(tenant, name, name) is Ownership.FOREIGN:
                raise BadValue("needs", f"name {name!r}, which jobs of tenant {tenant} cannot use")

    async def _list(self, what: Metered, world: Environment, tenant: str) -> list[tuple[Any, int]]:
        found = await (world.limiter if what == "limit" else world.ledger).definitions.all()
        names = DefinedNames(definition.name for definition, _ in found)
        return [
            (definition, version)
            for definition, version in found
            if not (what == "limit" and definition.name.startswith(SERVICE_PREFIXES))
            and ownership(what, tenant, definition.name, definition.name, names) is not Ownership.FOREIGN
        ]

    async def _declare(self, what: Metered, world: Environment, tenant: str, names: Iterable[str]) -> None:
        """A worker of one tenant may declare what is defined, which changes nothing."""
        known = {definition.name for definition, _ in await self._list(what, world, tenant)}
        unknown = sorted(set(names) - known)
        if unknown:
            detail = f"this credential is limited to tenant {tenant}, but undefined {what}s belong to all tenants"
            raise Problem(403, "not_allowed", f"{detail}: {', '.join(unknown)[:200]}")

    # -- limits -----------------------------------------------------------------------------------------------------

    async def acquire(self, world: Environment, tenant: str, body: messages.AcquireRequest) -> Verdict:
        await self._check_limits(tenant, body.asks, body.in_flight_us)
        verdict = await world.limiter.acquire(
            body.asks, least=body.least, most=body.most, holder=self._holder(tenant, body.holder),
            in_flight_us=body.in_flight_us,
        )  # fmt: skip
        if isinstance(verdict, Granted):
            self._grants.add(tenant, verdict)
        return verdict

    async def return_unused(self, world: Environment, tenant: str, body: messages.ReturnUnusedRequest) -> None:
        await self._check_limits(tenant, body.granted.asks)
        count = self._grants.take(tenant, body.granted, body.unused)
        if count > 0:
            await world.limiter.return_unused(body.granted, count)

    async def end_calls(self, world: Environment, tenant: str, body: messages.EndCallsRequest) -> None:
        await self._check_limits(tenant, body.asks)
        await world.limiter.end_calls(body.asks, qualify(tenant, body.holder), body.count, body.used)

    async def renew_calls(self, world: Environment, tenant: str, body: messages.RenewCallsRequest) -> None:
        await self._check_limits(tenant, body.asks, body.in_flight_us)
        await world.limiter.renew_calls(body.asks, self._holder(tenant, body.holder), body.count, body.in_flight_us)

    async def observe(self, world: Environment, tenant: str, body: messages.ObserveRequest) -> None:
        """A shorter pause of a shared limit is safe: the next call that is throttled closes it again."""
        notice = body.notice
        if await self._check_limits(tenant, [PermitRequest(notice.name, notice.limit)]):
            by_name = (await self._definitions("limit")).by_name
            notice = shorten(notice, by_name.get(notice.name) or by_name.get(notice.limit))
        await world.limiter.observe(notice)

    async def levels(
        self, world: Environment, tenant: str, body: messages.LevelsRequest
    ) -> tuple[Instant, Sequence[Level]]:
        await self._check_limits(tenant, body.asks)
        now, levels = await world.limiter.levels(body.asks)
        return now, [hide_holders(tenant, level) for level in levels]

    async def limits(self, world: Environment, tenant: str, _: object) -> list[tuple[LimitDefinition, int]]:
        return await self._list("limit", world, tenant)

    async def declare_limits(self, world: Environment, tenant: str, body: messages.DeclareLimitsRequest) -> None:
        await self._declare("limit", world, tenant, [definition.name for definition in body.definitions])

    # -- budgets ----------------------------------------------------------------------------------------------------

    async def hold(self, world: Environment, tenant: str, body: HoldRequest) -> HoldAnswer:
        own = await self._own_hold(tenant, body)
        answer = await world.ledger.hold(own.id, own.lines, own.ttl_us, owner=own.owner, dispatch=own.dispatch)
        self._after_hold(own, answer)
        return answer

    async def _own_hold(self, tenant: str, body: HoldRequest) -> HoldRequest:
        """The hold as it is stored. A shorter life of a hold is safe: at its end it is charged in full, and a later
        settlement corrects that."""
        own = replace(body, id=qualify(tenant, body.id))
        if not await self._check_charges(tenant, [charge for charge, _ in body.lines]):
            return own
        await self._check_lease(tenant, own.id, body.owner)
        return replace(own, ttl_us=min(body.ttl_us, SHARED_US_MAX))

    def _after_hold(self, own: HoldRequest, answer: HoldAnswer | None) -> None:
        if not isinstance(answer, HoldGranted | HoldBooked):
            self._holds.end(own.id)

    async def post(self, world: Environment, tenant: str, body: messages.PostRequest) -> Posted:
        """A request that is refused is left out, and refused again when it comes by itself."""
        holds = [await allowed(self._own_hold(tenant, each)) for each in body.holds]
        settlements = [await allowed(self._own_settlement(tenant, each)) for each in body.settlements]
        asked, ended = [each for each in holds if each], [each for each in settlements if each]
        posted = await world.ledger.post(asked, ended)
        for hold, answer in zip(asked, posted.holds, strict=True):
            self._after_hold(hold, answer)
        for settled, crossed in zip(ended, posted.settlements, strict=True):
            if crossed is not None:
                self._holds.end(settled.id)
        answers, told = iter(posted.holds), iter(posted.settlements)
        return Posted(
            tuple(None if each is None else next(answers) for each in holds),
            tuple(None if each is None else next(told) for each in settlements),
        )

    async def _check_lease(self, tenant: str, hold: str, fence: str) -> None:
        """A hold on a budget that all tenants share is for a call of a job that the tenant's workers have leased."""
        job = hold.removeprefix(namespace(tenant)).partition(":")[0]
        if await self._leases.get(f"{job}:{fence}") != tenant:
            detail = f"hold {hold}: a budget that tenants share is held for a leased job; ids are JOB:FENCE:NUMBER"
            raise Problem(409, "not_leased", detail)
        if not self._holds.add(hold, self._world().clock.monotonic()):
            raise Problem(429, "too_many_holds", f"job {job} has {HOLDS_MAX} open holds; settle some", headers=RETRY)

    async def _load_lease(self, name: str) -> str | None:
        """The tenant of a job that is leased with this fence."""
        id_, _, fence = name.partition(":")
        job = await self._world().store.reads.job(JobId(id_))
        return job.tenant if job is not None and job.state is State.LEASED and str(job.fence) == fence else None

    async def reserved(self, world: Environment, tenant: str, body: messages.ReservedRequest) -> list[str]:
        prefix = qualify(tenant, body.prefix)
        return [body.prefix + id_.removeprefix(prefix) for id_ in await world.ledger.reads.reserved(prefix)]

    async def dispatch(self, world: Environment, tenant: str, body: messages.HoldIdRequest) -> bool:
        return await world.ledger.dispatch(qualify(tenant, body.id))

    async def settle(self, world: Environment, tenant: str, body: SettleHoldRequest) -> Crossed:
        own = await self._own_settlement(tenant, body)
        crossed = await world.ledger.settle(own.id, own.actuals, owner=own.owner)
        self._holds.end(own.id)
        return crossed

    async def _own_settlement(self, tenant: str, body: SettleHoldRequest) -> SettleHoldRequest:
        if body.actuals:
            defined = await self._definitions("budget")
            for what, micros in body.actuals.items():
                check_actual(tenant, what, micros, defined)
        return replace(body, id=qualify(tenant, body.id))

    async def void(self, world: Environment, tenant: str, body: messages.HoldIdRequest) -> bool:
        is_void = await world.ledger.void(qualify(tenant, body.id))
        if is_void:
            self._holds.end(qualify(tenant, body.id))
        return is_void

    async def expire(self, world: Environment, tenant: str, body: messages.ExpireHoldsRequest) -> Expired:
        """Expires the holds of all tenants, because there may be no other worker that does. The reply does not say
        which."""
        expired = await world.ledger.expire(body.limit)
        for budget, percent in expired.crossed:
            world.events.emit("budget_reached", budget=budget, percent=percent)
        return Expired()

    async def wait_us(self, world: Environment, tenant: str, body: messages.BudgetWaitRequest) -> int:
        await self._check_charges(tenant, body.charges)
        return await world.ledger.reads.wait_us(body.charges)

    async def prune(self, world: Environment, tenant: str, body: messages.PruneRequest) -> int:
        """Does nothing: workers of all tenants prune."""
        return 0

    async def budgets(self, world: Environment, tenant: str, _: object) -> list[tuple[BudgetDefinition, int]]:
        return await self._list("budget", world, tenant)

    async def declare_budgets(self, world: Environment, tenant: str, body: messages.DeclareBudgetsRequest) -> None:
        await self._declare("budget", world, tenant, [definition.name for definition in body.definitions])


METERED: Mapping[Verb[Any, Any], Callable[[Metering, Environment, str, Any], Awaitable[Any]]] = {
    protocol.ACQUIRE: Metering.acquire, protocol.RETURN_UNUSED: Metering.return_unused,
    protocol.END_CALLS: Metering.end_calls, protocol.RENEW_CALLS: Metering.renew_calls,
    protocol.OBSERVE: Metering.observe, protocol.LEVELS: Metering.levels, protocol.LIMITS: Metering.limits,
    protocol.DECLARE_LIMITS: Metering.declare_limits,
    protocol.HOLD: Metering.hold, protocol.RESERVED: Metering.reserved, protocol.DISPATCH: Metering.dispatch,
    protocol.SETTLE: Metering.settle, protocol.POST: Metering.post,
    protocol.VOID: Metering.void, protocol.EXPIRE: Metering.expire, protocol.BUDGETS_WAIT_US: Metering.wait_us,
    protocol.PRUNE_BUDGETS: Metering.prune, protocol.BUDGETS: Metering.budgets,
    protocol.DECLARE_BUDGETS: Metering.declare_budgets,
    protocol.RECORD: lambda metering, world, tenant, body: metering.recorded.record(world, tenant, body.rows),
}  # fmt: skip


async def allowed(own: Awaitable[T]) -> T | None:
    try:
        return await own
    except (UsageError, Problem):
        return None


def ownership(what: Metered, tenant: str, name: str, template: str, defined: DefinedNames) -> Ownership:
    if what == "limit" and name.startswith(TENANT_PREFIX):
        return Ownership.OWN if name == template == f"{TENANT_PREFIX}{tenant}" else Ownership.FOREIGN
    return defined.ownership(tenant, name, template)


def shorten(notice: Notice, definition: LimitDefinition | None) -> Notice:
    """The notice with the longest pause that a worker of one tenant can cause."""
    pause_us = notice.retry_after_us
    if pause_us is None and definition is not None:
        pause_us = min((rate.window_us for rate in definition.rates), default=0) // RETRY_SHARE
    return notice if (pause_us or 0) <= SHARED_US_MAX else replace(notice, retry_after_us=SHARED_US_MAX)


def hide_holders(tenant: str, level: Level) -> Level:
    """The level as a worker of one tenant sees it: its own holders by name, and the calls of all others added up."""
    prefix = namespace(tenant)
    mine = {holder: calls for holder, calls in level.in_flight.items() if holder.startswith(prefix)}
    others = [calls for holder, calls in level.in_flight.items() if holder not in mine]
    shown = {holder.removeprefix(prefix): calls for holder, calls in mine.items()}
    if others:
        shown[OTHER_TENANTS] = InFlight(sum(calls.count for calls in others), max(calls.until for calls in others))
    return replace(level, in_flight=shown)


def check_actual(tenant: str, what: str, micros: int, defined: Definitions) -> None:
    """A settlement books any cost, because the money is spent. To a shared budget, a worker of one tenant books at
    most what one window has."""
    budgets: Iterable[BudgetDefinition] = defined.by_name.values()
    shared = [
        budget
        for budget in budgets
        if (budget.unit == what or fills_template(what, budget.name))
        and "tenant" not in template_fields(budget.name)
        and defined.names.ownership(tenant, budget.name, budget.name) is Ownership.SHARED
    ]
    most = max((budget.most_micros for budget in shared), default=micros)
    if micros > most:
        raise BadValue(
            f"settle {what}",
            f"must be at most {amount_text(most)}, what one window of the budget has (is {amount_text(micros)}); "
            "an operator can book more",
        )
