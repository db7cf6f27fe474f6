"""Reads."""

from collections.abc import Sequence

from leaseway.domain.budgets.budget import Charge
from leaseway.domain.errors import LeasewayError, TransientError
from leaseway.domain.exchange import Gate
from leaseway.domain.gates import Closure, LevelReading, unreachable_limit
from leaseway.domain.ids import Instant
from leaseway.domain.job import LaneCount
from leaseway.domain.limits.limit import PermitRequest
from leaseway.domain.pauses import Pause, closed_by_pauses
from leaseway.ports.lane_pauses import LanePauses
from leaseway.ports.limiter import Limiter
from leaseway.worker.environment import Environment
from leaseway.worker.explain_waits import (
    ClosedGates,
    Closures,
    closed_budgets,
    closed_gates,
    closed_limits,
    read_levels,
)


async def seen_in(limiter: Limiter, asks: list[PermitRequest]) -> dict[PermitRequest, LevelReading]:
    """Nothing, if they cannot be looked at now: what is agreed can be shown all the same."""
    try:
        return await read_levels(limiter, asks)
    except LeasewayError:
        return {}


SILENT = TransientError("the limiter does not answer")


async def pauses_in(world: Environment) -> Sequence[Pause]:
    return await world.store.pauses() if isinstance(world.store, LanePauses) else ()


async def shut_now(world: Environment, lanes: Sequence[LaneCount], now: Instant) -> ClosedGates:
    """Only who has something ready waits."""

    async def limits(asks: Sequence[PermitRequest]) -> Closures:
        try:
            return await closed_limits(world.limiter, asks)
        except LeasewayError:
            # Workers may reach it where we do not: it is no reason to say nothing about the lanes.
            return {ask: unreachable_limit(ask, SILENT) for ask in asks}

    async def budgets(charges: Sequence[Charge]) -> Closures:
        return await closed_budgets(world.ledger, charges, now)

    return await closed_gates(world.store, (gate_of(lane) for lane in lanes if lane.ready), limits, budgets)


def gate_of(lane: LaneCount) -> Gate:
    return Gate(lane.needs, lane.tenant)


def of_lane(lane: LaneCount, shuts: ClosedGates, pauses: Sequence[Pause] = ()) -> Sequence[Closure]:
    """A pause first: nothing else helps while it lasts."""
    if not lane.ready:
        return ()
    return [*closed_by_pauses(lane.queue, lane.tenant, pauses), *shuts.get(gate_of(lane), ())]
