"""store, limiter, ledger ─► [snapshot of the whole system] ─► metrics

Taken at most once per second, whatever the number of readers: dashboards and scrapers share it.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fastapi import Request

from leaseway.api.inspection import find_closed_gates, lane_gate, read_pauses, store_stats, try_read_levels
from leaseway.api.service import get_service
from leaseway.api.ttl_cache import TtlCache
from leaseway.domain.budgets.balances import BudgetWindow
from leaseway.domain.budgets.budget import BudgetDefinition
from leaseway.domain.errors import LeasewayError
from leaseway.domain.gates import Closure, LevelReading, closed_by_pauses, longest_closure
from leaseway.domain.ids import SECOND_US, Instant
from leaseway.domain.inspection import EndedCount, LaneWait, LeaseOwner
from leaseway.domain.lane import LaneCount, Pause
from leaseway.domain.limits.limit import TENANT_PREFIX, PermitRequest, template_fields
from leaseway.ports.reads import Inspection
from leaseway.worker.environment import Environment
from leaseway.worker.explain_waits import Defined, limits_by_name

TTL_SECONDS = 1.0
RATE_SECONDS = 60
LANES_MAX = 500
"""The number of lanes for which the reasons of waiting are read; lanes with the most ready jobs come first."""
LIMITS_MAX = 200


class SystemSnapshot(NamedTuple):
    at: Instant
    lanes: list[LaneCount]
    closure: Mapping[tuple[str, str], Closure]
    """By needs and tenant: the reason that keeps a gate closed longest_closure."""
    waiting: list[LaneWait]
    ended: list[EndedCount]
    ended_since: Instant
    owners: list[LeaseOwner]
    limits: Defined
    """Without limits that have fields, and without the caps of tenants."""
    seen: Mapping[PermitRequest, LevelReading]
    budgets: list[tuple[BudgetDefinition, int]]
    accounts: list[BudgetWindow]
    pauses: Sequence[Pause] = ()

    @property
    def seconds(self) -> float:
        """The time that `ended` covers: a minute, or less if very many jobs finished."""
        return max(self.at - self.ended_since, 1) / SECOND_US

    def for_tenant(self, tenant: str | None) -> "SystemSnapshot":
        """The part that one tenant may see; None: everything."""
        if tenant is None:
            return self
        return self._replace(
            lanes=[lane for lane in self.lanes if lane.tenant == tenant],
            waiting=[each for each in self.waiting if each.tenant == tenant],
            ended=[each for each in self.ended if each.tenant == tenant],
        )

    def lane_closure(self, lane: LaneCount) -> Closure | None:
        """Why a lane waits. A pause comes first: while it lasts, nothing else matters."""
        if not lane.ready:
            return None
        gate, paused = lane_gate(lane), closed_by_pauses(lane.queue, lane.tenant, self.pauses)
        return paused[0] if paused else self.closure.get((gate.needs, gate.tenant))


async def system_snapshot(request: Request) -> SystemSnapshot:
    """The snapshot of the last second."""
    state, world = request.app.state, get_service(request).world
    if not hasattr(state, "snapshots"):
        stats = store_stats(world)

        async def load(_: str) -> SystemSnapshot:
            return await take_snapshot(world, stats)

        state.snapshots = TtlCache[SystemSnapshot](
            load, world.clock, ttl_seconds=TTL_SECONDS, negative_ttl_seconds=TTL_SECONDS, max_entries=1
        )
    snapshots: TtlCache[SystemSnapshot] = state.snapshots
    snapshot = await snapshots.get("")
    assert snapshot is not None
    return snapshot


async def take_snapshot(world: Environment, stats: Inspection) -> SystemSnapshot:
    now, lanes = await world.store.reads.now(), list(await world.store.reads.lanes())
    fullest = sorted(lanes, key=lambda lane: lane.ready, reverse=True)[:LANES_MAX]
    closures = await find_closed_gates(world, fullest, now)
    limits = await read_limits(world)
    since, ended = await stats.ended(now - RATE_SECONDS * SECOND_US)
    return SystemSnapshot(
        at=now,
        lanes=lanes,
        closure={(gate.needs, gate.tenant): longest_closure(each) for gate, each in closures.items()},
        waiting=await stats.waiting(),
        ended=ended,
        ended_since=since,
        owners=await stats.owners(),
        limits=limits,
        seen=await try_read_levels(world.limiter, [PermitRequest(name, name) for name in limits]),
        budgets=await world.ledger.definitions.all(),
        accounts=await world.ledger.reads.balances(),
        pauses=await read_pauses(world),
    )


async def read_limits(world: Environment) -> Defined:
    """Empty if the limiter does not respond: the other metrics do not need it."""
    try:
        defined = await limits_by_name(world.limiter)
    except LeasewayError:
        return {}
    plain = [name for name in defined if not template_fields(name) and not name.startswith(TENANT_PREFIX)]
    return {name: defined[name] for name in plain[:LIMITS_MAX]}
