"""Reads."""

from collections.abc import Sequence

from leaseway.domain.errors import LeasewayError, TransientError
from leaseway.domain.exchange import Gate
from leaseway.domain.gates import Seen, Shut, unanswered_limit
from leaseway.domain.ids import Instant
from leaseway.domain.job import LaneCount
from leaseway.domain.limits.limit import Ask
from leaseway.domain.pauses import Pause, shut_by_pauses
from leaseway.domain.requirements import Charge
from leaseway.ports.lane_pauses import LanePauses
from leaseway.ports.limiter import Limiter
from leaseway.worker.environment import World
from leaseway.worker.explain_waits import Found, Shuts, levels_of, shut_budgets, shut_gates, shut_limits


async def seen_in(limiter: Limiter, asks: list[Ask]) -> dict[Ask, Seen]:
    """Nothing, if they cannot be looked at now: what is agreed can be shown all the same."""
    try:
        return await levels_of(limiter, asks)
    except LeasewayError:
        return {}


SILENT = TransientError("the limiter does not answer")


async def pauses_in(world: World) -> Sequence[Pause]:
    return await world.store.pauses() if isinstance(world.store, LanePauses) else ()


async def shut_now(world: World, lanes: Sequence[LaneCount], now: Instant) -> Shuts:
    """Only who has something ready waits."""

    async def limits(asks: Sequence[Ask]) -> Found:
        try:
            return await shut_limits(world.limiter, asks)
        except LeasewayError:
            # Workers may reach it where we do not: it is no reason to say nothing about the lanes.
            return {ask: unanswered_limit(ask, SILENT) for ask in asks}

    async def budgets(charges: Sequence[Charge]) -> Found:
        return await shut_budgets(world.ledger, charges, now)

    return await shut_gates(world.store, (gate_of(lane) for lane in lanes if lane.ready), limits, budgets)


def gate_of(lane: LaneCount) -> Gate:
    return Gate(lane.needs, lane.tenant)


def of_lane(lane: LaneCount, shuts: Shuts, pauses: Sequence[Pause] = ()) -> Sequence[Shut]:
    """A pause first: nothing else helps while it lasts."""
    if not lane.ready:
        return ()
    return [*shut_by_pauses(lane.queue, lane.tenant, pauses), *shuts.get(gate_of(lane), ())]
