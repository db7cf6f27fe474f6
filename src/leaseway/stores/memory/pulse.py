"""How the store is doing, in memory: the rules that the other stores follow."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from threading import RLock
from typing import Protocol

from leaseway.domain.ids import Instant, WorkerId
from leaseway.domain.inspection import OWNERS_MAX, EndedCount, LaneWait, LeaseOwner
from leaseway.domain.job import State
from leaseway.stores.memory.rows import FINAL, Lane, Place, Row

ORDER = list(State)


class Keeping(Protocol):
    """The store of which this is a part."""

    _lock: RLock
    _now: Callable[[], Instant]
    _lanes: dict[tuple[str, str, str], Lane]


class MemoryPulse:
    async def owners(self: Keeping) -> list[LeaseOwner]:
        with self._lock:
            now, leases = self._now(), leases_of(self._lanes)
            return [owner_of(name, rows, now) for name, rows in sorted(leases.items())[:OWNERS_MAX]]

    async def waiting(self: Keeping) -> list[LaneWait]:
        with self._lock:
            return [
                LaneWait(queue=queue, tenant=tenant, needs=needs, since=min(row.run_at for row in ready.values()))
                for (queue, tenant, needs), lane in sorted(self._lanes.items())
                if (ready := lane.places[Place.READY])
            ]

    async def ended(self: Keeping, after: Instant) -> tuple[Instant, list[EndedCount]]:
        with self._lock:
            finished = (row for lane in self._lanes.values() for place in FINAL for row in lane.places[place].values())
            late = [row for row in finished if row.finished_at > after]
            counts = Counter((row.lane.queue, row.lane.tenant, ORDER.index(row.state)) for row in late)
        return after, [
            EndedCount(queue=queue, tenant=tenant, state=ORDER[state], count=count)
            for (queue, tenant, state), count in sorted(counts.items())
        ]


def leases_of(lanes: Mapping[tuple[str, str, str], Lane]) -> Mapping[WorkerId, list[Row]]:
    found: defaultdict[WorkerId, list[Row]] = defaultdict(list)
    for lane in lanes.values():
        for row in lane.places[Place.LEASED].values():
            assert row.owner is not None
            found[row.owner].append(row)
    return found


def owner_of(name: WorkerId, rows: list[Row], now: Instant) -> LeaseOwner:
    return LeaseOwner(
        name=name,
        leased=len(rows),
        late=sum(row.until <= now for row in rows),
        heard_at=max(row.until - row.new.lease_us for row in rows),
        until=min(row.until for row in rows),
    )
