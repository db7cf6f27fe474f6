"""store, limiter, ledger ─► [why lanes wait, how limits stand] ─► routes, metrics, live stream"""

from collections.abc import Sequence

from leaseway.domain.budgets.budget import Charge
from leaseway.domain.errors import LeasewayError, TransientError
from leaseway.domain.exchange import Gate
from leaseway.domain.explain.closures import Closure, LevelReading, closed_by_pauses, unreachable_limit
from leaseway.domain.ids import Instant
from leaseway.domain.lane import LaneCount, Pause
from leaseway.domain.limits.limit import PermitRequest
from leaseway.domain.workers import WorkerView, join_owners
from leaseway.ports.limiter import Limiter
from leaseway.ports.reads import Inspection
from leaseway.ports.store import require_inspection
from leaseway.worker.environment import Environment
from leaseway.worker.explain_waits import (
    ClosedGates,
    Closures,
    closed_budgets,
    closed_gates,
    closed_limits,
    read_levels,
)

LIMITER_SILENT = TransientError("the limiter does not respond")
"""Shown in place of the limiter's own error, which contains addresses."""


def store_stats(world: Environment) -> Inspection:
    return require_inspection(world.store)


async def read_pauses(world: Environment) -> Sequence[Pause]:
    return () if world.store.pauses is None else await world.store.pauses.all()


async def read_workers(world: Environment) -> list[WorkerView]:
    registry = world.store.workers
    listed = [] if registry is None else await registry.all()
    return join_owners(listed, await store_stats(world).owners(), await world.store.reads.now())


async def try_read_levels(limiter: Limiter, asks: list[PermitRequest]) -> dict[PermitRequest, LevelReading]:
    """Empty if the limiter does not respond: definitions can be shown without levels."""
    try:
        return await read_levels(limiter, asks)
    except LeasewayError:
        return {}


async def find_closed_gates(world: Environment, lanes: Sequence[LaneCount], now: Instant) -> ClosedGates:
    """What keeps lanes from starting jobs. Only lanes with ready jobs wait."""

    async def limits(asks: Sequence[PermitRequest]) -> Closures:
        try:
            return await closed_limits(world.limiter, asks)
        except LeasewayError:
            # Workers may reach the limiter although the service does not. The lanes are shown in any case.
            return {ask: unreachable_limit(ask, LIMITER_SILENT) for ask in asks}

    async def budgets(charges: Sequence[Charge]) -> Closures:
        return await closed_budgets(world.ledger, charges, now)

    return await closed_gates(world.store.tenants, (lane_gate(lane) for lane in lanes if lane.ready), limits, budgets)


def lane_gate(lane: LaneCount) -> Gate:
    return Gate(lane.needs, lane.tenant)


def lane_closures(lane: LaneCount, closures: ClosedGates, pauses: Sequence[Pause] = ()) -> Sequence[Closure]:
    """A pause comes first: while it lasts, nothing else matters."""
    if not lane.ready:
        return ()
    return [*closed_by_pauses(lane.queue, lane.tenant, pauses), *closures.get(lane_gate(lane), ())]
