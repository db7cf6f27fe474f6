"""The metered scenario: jobs that call a provider under limits and budgets, for tenants with caps.

What a worker does every few seconds or minutes, it does more often here, in the same proportions, because a run is
short: renew its in-flight calls, and expire overdue holds.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from random import Random
from typing import Any

from msgspec import Struct
from msgspec.structs import replace
from tests.simulation.campaign.sabotage import replaced
from tests.simulation.campaign.scenario_jobs import BACKOFF, attempt
from tests.simulation.campaign.submissions import QUEUES

from leaseway.domain.budgets.budget import Budget
from leaseway.domain.errors import TransientError
from leaseway.domain.ids import SECOND_US
from leaseway.domain.kind import Kind, KindDefaults, parse_options
from leaseway.domain.limits import breaker
from leaseway.domain.limits.limit import Limit, LimitUse, parse_rate
from leaseway.domain.limits.rate_limit_headers import Throttled
from leaseway.domain.outcome import Deferred
from leaseway.domain.requirements import HOLD_CALL, HOLD_JOB, Requirements
from leaseway.domain.tenant import Tenant
from leaseway.simulation.clients import Intent
from leaseway.simulation.faulty_limits import IMPATIENT_SECONDS, LimitSettings
from leaseway.simulation.limit_oracles import METER, Meter
from leaseway.simulation.process import HERE
from leaseway.simulation.provider import REFUSED, UNHEARD, Temper
from leaseway.simulation.scenario import Load, SimulationReport, run_load
from leaseway.simulation.swarm import LEASE_SECONDS, FaultRates, Streams, Swarm, draw
from leaseway.stores.sqlite.database import statements
from leaseway.worker import admission, context, limiter_client, maintenance, permit_queue, provider_calls
from leaseway.worker.context import Context
from leaseway.worker.limiter_client import LimiterClient
from leaseway.worker.provider_calls import ProviderCalls
from leaseway.worker.settle import Attempt, Stop
from leaseway.worker.submit import Bound

ATTEMPTS = 25
"""So many that no job fails because its workers are killed: a job that fails has failed for another reason."""
SUBMIT_SECONDS = 6.0
TURN_SECONDS = (2.0, 14.0)
"""From the beginning of a run to the start of the next hour."""
UNTIL_HOUR_SECONDS = 3_200
FAVOURITE_SHARE = 0.6
CONTENDED_EVERY = 8
RESTLESS = 4
"""In these worlds the limiter is restarted many times."""
DOWN = 3
"""In these worlds the provider is down for a while, and a limit has a circuit breaker."""
DOWN_SECONDS, OPEN_SECONDS = (3.0, 9.0), 2.0
PER_JOB = 7
"""In these worlds one hold pays for all calls of a job."""
SEAT_SECONDS, KEEP_SECONDS, EXPIRE_SECONDS = 8.0, 1.0, 2.0
KINDS_MAX = 4
"""Of all kinds, in one world: every worker asks for each of them repeatedly."""


async def fetch(ctx: Context, calls: int, seconds: float, usd: int) -> dict[str, Any]:
    """Calls the provider, several times if needed. Without a budget, whose next window may be an hour away, every other
    call has no checkpoint, so that the job waits in place for the next one."""
    with attempt(ctx) as run, METER.get().at_work(ctx, run):
        is_unsaved = False
        for step in range(ctx.cursor or 0, calls):
            with never_repeated(ctx, is_unsaved):
                is_unsaved |= await call_provider(ctx)
            if ctx._calls._needs.lines or step % 2 or step + 1 == calls:
                await insist_on_place(ctx, step + 1)
                is_unsaved = False
            await asyncio.sleep(seconds)
    return {"fence": ctx.fence}


async def call_provider(ctx: Context) -> bool:
    """Whether the provider may have done something."""
    async with ctx.call() as call:
        assert call.grant is not None
        needs = ctx._calls._needs
        reply = await METER.get().provider.answer(HERE.get(), ctx.id, needs.limits, call.grant.hold, needs.lines)
        if reply.usd is not None and call.grant.hold is not None:
            call.settle(usd=reply.usd)
        if reply.status != UNHEARD:
            with suppress(Throttled):
                await call.report(reply.status, reply.headers)
    return reply.status != REFUSED


@contextmanager
def never_repeated(ctx: Context, is_unsaved: bool) -> Iterator[None]:
    """W3: a limit or a budget restarts no handler that has called since its last checkpoint."""
    try:
        yield
    except Deferred:
        if is_unsaved and ctx._attempt.stop is None:
            METER.get().universe.judge.accuse([f"W3 job {ctx.id} goes back to its lane, and will repeat a call"])
        raise


async def insist_on_place(ctx: Context, cursor: int) -> None:
    while True:  # ends with the store's reply: every fault ends
        with suppress(TransientError):
            return await ctx.checkpoint(cursor)
        await asyncio.sleep(0.2)


def cost(calls: int, seconds: float, usd: int) -> int:
    return usd


# -- what a seed decides --------------------------------------------------------------------------------------------


class Offer(Struct, frozen=True):
    """Limits, budgets and the kinds that need them."""

    kinds: Mapping[str, Kind]
    limits: tuple[Limit, ...]
    budgets: tuple[Budget, ...]


def draw_offer(chance: Random, breaker: int | None = None, hold: str = HOLD_CALL) -> Offer:
    short = Limit("short", f"{chance.randint(2, 5)}/second", cost_max=2, burst=chance.choice((0.05, 0.6)))
    long = Limit(
        "long", f"{chance.randint(5, 10)} per 3 s", lease=0.6, burst=chance.choice((0.05, 0.3)), breaker=breaker
    )
    several = Limit("several", "3/second", f"{chance.randint(5, 9)} per 5 s")
    own = Limit("own:{tenant}", f"{chance.randint(2, 5)} per 3 s")
    seats = Limit("seats", *chance.choice(((), ("6 per 2 s",))), concurrency=chance.randint(1, 3))
    spare = Limit("spare", "64 per 5 s", degraded_share=0.5)
    spend = Budget("spend", usd=chance.randint(8, 12), every="hour")
    own_spend = Budget("spend:{tenant}", usd=chance.randint(5, 8), every="hour")
    kinds = {
        "short": kind_of("short", [short]),
        "weighty": kind_of("weighty", [short.cost(2), long]),
        "long": kind_of("long", [long]),
        "several": kind_of("several", [several, own]),
        "seated": kind_of("seated", [seats]),
        "spare": kind_of("spare", [spare]),
        "paid": kind_of("paid", [], [spend], hold),
        "own_paid": kind_of("own_paid", [own], [own_spend], hold),
        "everything": kind_of("everything", [long, seats], [spend, own_spend], hold),
        "free": kind_of("free", []),
    }
    others = chance.sample([name for name in kinds if name != "long"], KINDS_MAX - 1)
    kinds = {name: kinds[name] for name in ("long", *others)}
    return Offer(kinds, (short, long, several, own, seats, spare), (spend, own_spend))


def kind_of(
    name: str, limits: list[Limit | LimitUse], budgets: list[Budget] | None = None, hold: str = HOLD_CALL
) -> Kind:
    defaults = KindDefaults(attempts=ATTEMPTS, lease_us=int(LEASE_SECONDS * SECOND_US), backoff=BACKOFF)
    uses = tuple(each if isinstance(each, LimitUse) else LimitUse(each) for each in limits)
    return Kind(name, fetch, defaults, Requirements(name, uses, tuple(budgets or ()), cost if budgets else None, hold))


def draw_tenants(chance: Random) -> list[Tenant]:
    starts = (parse_rate("starts", f"{chance.randint(2, 4)} per 2 s"),)
    return [
        Tenant(name="acme", weight=chance.randint(1, 3), concurrency=chance.randint(1, 3)),
        Tenant(name="duck", starts=starts, concurrency=chance.choice((None, 2))),
    ]


def draw_terms(chance: Random, offer: Offer, swarm: Swarm) -> LimitSettings:
    def maybe(share: float, least: float, most: float) -> float:
        value = chance.uniform(least, most)
        return value if chance.random() < share else 0.0

    roughness = chance.choice((0.0, 0.5, 1.0))
    faults = FaultRates(
        latency_seconds=chance.choice((0.001, 0.01, 0.03)),
        stall=maybe(0.5, 0.01, 0.05) * roughness,
        busy=maybe(0.5, 0.02, 0.1) * roughness,
        request_lost=maybe(0.5, 0.02, 0.1) * roughness,
        reply_lost=maybe(0.7, 0.02, 0.15) * roughness,
    )
    return LimitSettings(
        limits={limit.name: limit.definition for limit in offer.limits},
        budgets={budget.name: budget.definition for budget in offer.budgets},
        tenants={tenant.name: tenant for tenant in draw_tenants(chance)},
        temper=Temper(refuses=maybe(0.4, 0.02, 0.1), loses=maybe(0.5, 0.05, 0.3)),
        faults=faults,
        restart_every=maybe(0.5, 1.5, 6.0),
        limiter_outage_every=maybe(0.4, 2.0, 8.0),
        ledger_outage_every=maybe(0.4, 2.0, 8.0),
        hold_seconds=chance.choice((0.5, 1.5, 30.0)),
        patience_seconds=chance.choice((IMPATIENT_SECONDS, 10.0)),
    )


def draw_plan(chance: Random, swarm: Swarm, kinds: Mapping[str, Kind]) -> list[Intent]:
    """Most jobs need the same limit, so that it is used up."""
    favourite, tenants = chance.choice(("long", *kinds)), chance.sample(TENANTS, 2)
    plan = []
    for number in range(swarm.submissions):
        kind = favourite if chance.random() < FAVOURITE_SHARE else chance.choice(tuple(kinds))
        arguments = {
            "calls": chance.choice((1, 1, 1, 2, 3)),
            "seconds": chance.choice((0.0, 0.0, 0.3, 1.5)),
            "usd": chance.randint(1, 2),
        }
        options = {"tenant": chance.choice(tenants), "queue": chance.choice(QUEUES)}
        job = Bound(kinds[kind], kinds[kind].encode(arguments), parse_options(options))
        at, client = chance.choice((0.0, chance.uniform(0, SUBMIT_SECONDS))), chance.randrange(swarm.clients)
        intent = Intent(at, client, [job], [f"submission {number}"])
        if chance.random() < swarm.cancel / 2:
            intent.cancel_after = chance.uniform(0, 4)
        plan.append(intent)
    return plan


TENANTS = ("default", "acme", "duck")


# -- a run ----------------------------------------------------------------------------------------------------------


def run_metered(
    seed: int, *, sql: Mapping[str, str] | None = None, write: Callable[[str], object] | None = None
) -> SimulationReport:
    """Run the metered scenario. `sql` replaces the store's statements; `write` receives the trace, line by line."""
    chance = Streams(seed).of("metered")
    swarm = replace(draw(seed), step_every=0.0, replay_every=0.0, submissions=chance.randint(8, 16))
    if seed % CONTENDED_EVERY == 0:
        swarm = contended(swarm)
    is_down = seed % CONTENDED_EVERY == DOWN
    hold = HOLD_JOB if seed % CONTENDED_EVERY == PER_JOB else HOLD_CALL
    offer = draw_offer(chance, 1 if is_down else None, hold)
    terms = draw_terms(chance, offer, swarm)
    if seed % CONTENDED_EVERY == RESTLESS:
        terms = replace(terms, restart_every=1.0, temper=Temper())
    if is_down:
        # What a limiter that lost its state forgets is judged in the other worlds.
        terms = replace(terms, restart_every=0.0, temper=Temper(down=DOWN_SECONDS))
    terms = replace(terms, holds_per_job=hold == HOLD_JOB)
    load = Load(
        kinds=offer.kinds,
        plan=draw_plan(chance, swarm, offer.kinds),
        queues=QUEUES,
        later_us=int((UNTIL_HOUR_SECONDS - chance.uniform(*TURN_SECONDS)) * SECOND_US),
        meter=lambda universe: Meter(universe, terms),
        calm_seconds_max=240.0,
    )
    with shortened(terms):
        return run_load(seed, swarm, load, sql=statements() if sql is None else sql, write=write)


def contended(swarm: Swarm) -> Swarm:
    """Many workers acquire permits for the same few jobs, and learn late that another worker was faster."""
    faults = replace(swarm.faults, stall=0.25, latency_seconds=0.01)
    return replace(swarm, workers=4, concurrency=4, crash_every=0.0, cancel=0.0, faults=faults, submissions=24)


@contextmanager
def shortened(terms: LimitSettings) -> Iterator[None]:
    with ExitStack() as stack:
        for owner, name, value in (
            (context, "CALL_SECONDS", terms.hold_seconds),
            (provider_calls, "MARGIN_SECONDS", 0.0),
            (provider_calls, "LEDGER_SECONDS_MAX", terms.patience_seconds),
            (limiter_client, "PATIENCE_SECONDS", terms.patience_seconds),
            (ProviderCalls, "_open", timing_the_wait(ProviderCalls._open)),
            (ProviderCalls, "wait_in_place", noting_the_place(ProviderCalls.wait_in_place)),
            (maintenance, "EXPIRE_EVERY_SECONDS", EXPIRE_SECONDS),
            (limiter_client, "IN_FLIGHT_US", int(SEAT_SECONDS * SECOND_US)),
            (limiter_client, "RECOUNT_SECONDS", KEEP_SECONDS),
            (admission, "UNKNOWN_SECONDS", 2.0),
            (breaker, "OPEN_US", int(OPEN_SECONDS * SECOND_US)),
            (Attempt, "halt", noting_the_halt(Attempt.halt)),
            (LimiterClient, "is_valid", noting_the_stale(LimiterClient.is_valid)),
        ):
            stack.enter_context(replaced(owner, name, value))
        yield


def noting_the_halt(halt: Callable[..., None]) -> Callable[..., None]:
    """A handler that is told to stop settles the cost of its call first, which takes a while."""

    def tell(running: Attempt, why: Stop) -> None:
        METER.get().halted(running)
        halt(running, why)

    return tell


def timing_the_wait(open_: Callable[..., Any]) -> Callable[..., Any]:
    """How long a handler waits shows only between its lines. Waits in place do not count: they lend their slot."""

    async def wait(calls: ProviderCalls, *given: Any, **named: Any) -> Any:
        with METER.get().waiting(HERE.get()):
            return await open_(calls, *given, **named)

    return wait


def noting_the_place(wait_in_place: Callable[..., Any]) -> Callable[..., Any]:
    """A wait in place leaves no other trace."""

    async def wait(calls: ProviderCalls, *given: Any, **named: Any) -> bool:
        is_in_place: bool = await wait_in_place(calls, *given, **named)
        if is_in_place:
            METER.get().universe.books.reach("a job that had called waited in place")
        return is_in_place

    return wait


def noting_the_stale(is_good: Callable[..., bool]) -> Callable[..., bool]:
    """Permits that are thrown away leave no other trace."""

    def look(tokens: LimiterClient, token: permit_queue.Permit) -> bool:
        good = is_good(tokens, token)
        if not good:
            METER.get().universe.books.reach("a permit had expired before its call")
        return good

    return look
