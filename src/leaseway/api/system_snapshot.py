"""store, limiter, ledger ─► [one picture of how everything is doing] ─► metrics

Taken at most once a second, however many ask: screens and scrapers share it.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fastapi import Request

from leaseway.api.inspection import gate_of, pauses_in, seen_in, shut_now
from leaseway.api.pagination import pulse_of, service_in
from leaseway.api.ttl_cache import Remembered
from leaseway.domain.budgets.budget import BudgetDefinition
from leaseway.domain.budgets.ledger import BudgetWindow
from leaseway.domain.errors import LeasewayError
from leaseway.domain.gates import Closure, LevelReading, longest_closure
from leaseway.domain.ids import SECOND_US, Instant
from leaseway.domain.inspection import EndedCount, LaneWait, LeaseOwner
from leaseway.domain.job import LaneCount
from leaseway.domain.limits.limit import TENANT_PREFIX, PermitRequest, template_fields
from leaseway.domain.pauses import Pause, closed_by_pauses
from leaseway.ports.store_stats import Pulse
from leaseway.worker.environment import Environment
from leaseway.worker.explain_waits import Defined, limits_by_name

BELIEF_SECONDS = 1.0
RATE_SECONDS = 60
LANES_MAX = 500
"""So many lanes are asked why they wait, those with the most jobs first."""
LIMITS_MAX = 200


class Picture(NamedTuple):
    at: Instant
    lanes: list[LaneCount]
    shut: Mapping[tuple[str, str], Closure]
    """What keeps gates shut longest, by needs and tenant."""
    waiting: list[LaneWait]
    ended: list[EndedCount]
    ended_since: Instant
    owners: list[LeaseOwner]
    limits: Defined
    """Without those that stand for many, and without the caps of tenants."""
    seen: Mapping[PermitRequest, LevelReading]
    budgets: list[tuple[BudgetDefinition, int]]
    accounts: list[BudgetWindow]
    pauses: Sequence[Pause] = ()

    @property
    def seconds(self) -> float:
        """So long is counted in `ended`: a minute, or less where very much ended."""
        return max(self.at - self.ended_since, 1) / SECOND_US

    def of(self, tenant: str | None) -> "Picture":
        """What one tenant may see of it; None: all of it."""
        if tenant is None:
            return self
        return self._replace(
            lanes=[lane for lane in self.lanes if lane.tenant == tenant],
            waiting=[each for each in self.waiting if each.tenant == tenant],
            ended=[each for each in self.ended if each.tenant == tenant],
        )


async def picture_of(request: Request) -> Picture:
    state, world, pulse = request.app.state, service_in(request).world, pulse_of(request)
    if not hasattr(state, "pictures"):

        async def look(_: str) -> Picture:
            return await taken(world, pulse)

        bounds = {"seconds": BELIEF_SECONDS, "absent_seconds": BELIEF_SECONDS}
        state.pictures = Remembered[Picture](look, world.clock, most=1, **bounds)
    pictures: Remembered[Picture] = state.pictures
    picture = await pictures.get("")
    assert picture is not None
    return picture


async def taken(world: Environment, pulse: Pulse) -> Picture:
    now, lanes = await world.store.now(), list(await world.store.lanes())
    fullest = sorted(lanes, key=lambda lane: lane.ready, reverse=True)[:LANES_MAX]
    shuts = await shut_now(world, fullest, now)
    limits = await limits_of(world)
    since, ended = await pulse.ended(now - RATE_SECONDS * SECOND_US)
    return Picture(
        at=now,
        lanes=lanes,
        shut={(gate.needs, gate.tenant): longest_closure(each) for gate, each in shuts.items()},
        waiting=await pulse.waiting(),
        ended=ended,
        ended_since=since,
        owners=await pulse.owners(),
        limits=limits,
        seen=await seen_in(world.limiter, [PermitRequest(name, name) for name in limits]),
        budgets=await world.ledger.definitions(),
        accounts=await world.ledger.books(),
        pauses=await pauses_in(world),
    )


async def limits_of(world: Environment) -> Defined:
    try:
        defined = await limits_by_name(world.limiter)
    except LeasewayError:
        return {}  # the rest is worth telling without them
    plain = [name for name in defined if not template_fields(name) and not name.startswith(TENANT_PREFIX)]
    return {name: defined[name] for name in plain[:LIMITS_MAX]}


def shut_of(picture: Picture, lane: LaneCount) -> Closure | None:
    """A pause first: nothing else helps while it lasts."""
    if not lane.ready:
        return None
    gate, paused = gate_of(lane), closed_by_pauses(lane.queue, lane.tenant, picture.pauses)
    return paused[0] if paused else picture.shut.get((gate.needs, gate.tenant))
