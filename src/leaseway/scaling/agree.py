"""observe ─► [agree with the other supervisors of the pool] ─► start and drain

Supervisors write one record per pool by compare-and-set: see `domain.scaling.agreement`. There is no leader that could
fail: the first one that writes has decided.
"""

import hashlib
from collections.abc import Callable, Iterable

from msgspec.structs import replace

from leaseway.domain.errors import StoreBusy
from leaseway.domain.ids import SECOND_US
from leaseway.domain.scaling.agreement import (
    FleetShare,
    PoolAgreement,
    agree,
    format_agreement,
    leave_fleets,
    list_fleets,
    parse_agreement,
)
from leaseway.domain.scaling.demand import PoolObservation, ScalingSettings
from leaseway.ports.store import Store, require_pools
from leaseway.worker.environment import Environment

TRIES_MAX = 10
ADOPT_SECONDS = 1.0
"""A supervisor whose write came too late takes a decision that is younger than this."""
NAME_LENGTH_MAX = 200


def fleet_pool(queues: Iterable[str]) -> str:
    """The name under which fleets that serve the same queues meet."""
    name = "fleet:" + "+".join(sorted(set(queues)))
    if len(name) <= NAME_LENGTH_MAX:
        return name
    return f"{name[: NAME_LENGTH_MAX - 17]}:{hashlib.sha256(name.encode()).hexdigest()[:16]}"


async def read_pools(store: Store) -> dict[str, PoolAgreement]:
    """The pools that have a supervisor now, by name."""
    if store.pools is None:
        return {}
    now = await store.reads.now() / SECOND_US
    found = {each.pool: list_fleets(parse_agreement(each.text), now) for each in await store.pools.all()}
    return {name: agreed for name, agreed in found.items() if agreed.fleets}


def service_pool(name: str) -> str:
    """The name under which the replicas of a service meet."""
    return f"service:{name}"


class PoolSeat:
    """The place of one supervisor in a pool. `period`: for how long it leaves a decision of another one in force."""

    def __init__(self, pool: str, queues: Iterable[str], slots: int, settings: ScalingSettings, period: float) -> None:
        self.pool, self._queues, self._slots = pool, tuple(sorted(set(queues))), slots
        self._settings, self._period = settings, period

    async def decide(self, world: Environment, mine: FleetShare, seen: PoolObservation) -> PoolAgreement:
        """The decision of this supervisor, or the recent one of another."""

        def change(before: PoolAgreement, is_repeated: bool) -> PoolAgreement:
            period = max(self._period, ADOPT_SECONDS) if is_repeated else self._period
            agreed = agree(before, mine, seen, self._settings, period)
            return replace(agreed, queues=self._queues, slots=self._slots)

        return await self._change(world, change)

    async def leave(self, world: Environment, name: str) -> None:
        """The other fleets take over the share at once."""
        await self._change(world, lambda before, _: leave_fleets(before, name))

    async def _change(
        self, world: Environment, change: Callable[[PoolAgreement, bool], PoolAgreement]
    ) -> PoolAgreement:
        board = require_pools(world.store)
        for number in range(TRIES_MAX):
            found = await board.read(self.pool)
            after = change(PoolAgreement() if found is None else parse_agreement(found.text), number > 0)
            seen = None if found is None else found.version
            if await board.write(self.pool, seen, world.ids.token(), format_agreement(after)):
                return after
        raise StoreBusy(f"pool {self.pool}: other supervisors wrote first {TRIES_MAX} times; try again")
