"""What the workers of each tenant have used lately, in this process: names, permits and holds."""

from collections import Counter, OrderedDict
from collections.abc import Iterable

from msgspec.structs import replace

from leaseway.api.errors import Problem
from leaseway.domain.history.rows import HistoryLevel, HistoryRow, choose_own
from leaseway.domain.ids import SECOND_US
from leaseway.domain.limits.buckets import Granted
from leaseway.domain.tenant import SHARED_US_MAX, qualify
from leaseway.ports.store import require_history
from leaseway.worker.environment import Environment

GRANTS_MAX = 5_000
"""How many grants of one tenant are remembered. They are valid for seconds."""
HOLDS_MAX = 100
"""How many open holds on shared budgets a job of one tenant may have: as many as it may make calls at once."""
OPEN_HOLDS_MAX = 100_000
HISTORY_ROWS_MAX = 5_000
"""How many rows of the history the workers of one tenant may record per minute. They are merged a few minutes later."""


class RecentNames:
    """The names that each tenant has used lately, at most so many. Stores keep a row for each of them."""

    def __init__(self, names_max: int) -> None:
        self._names_max = names_max
        self._used_at: dict[str, OrderedDict[str, float]] = {}

    def add(self, tenant: str, name: str, now: float) -> bool:
        """False: the tenant has used too many other names."""
        used_at = self._used_at.setdefault(tenant, OrderedDict())
        while used_at and next(iter(used_at.values())) < now - SHARED_US_MAX / SECOND_US:
            used_at.popitem(last=False)
        if name not in used_at and len(used_at) >= self._names_max:
            return False
        used_at[name] = now
        used_at.move_to_end(name)
        return True


class RecordedRows:
    """How many rows of the history the workers of each tenant have recorded in the current minute."""

    def __init__(self) -> None:
        self._minute = 0.0
        self._counts: Counter[str] = Counter()

    async def record(self, world: Environment, tenant: str, rows: Iterable[HistoryRow]) -> None:
        """Record what workers of the tenant did, under ids of the tenant."""
        own, minute = choose_own(tenant, rows), world.clock.monotonic() // 60
        if minute != self._minute:
            self._minute, self._counts = minute, Counter()
        if self._counts[tenant] + len(own) > HISTORY_ROWS_MAX:
            detail = f"workers of tenant {tenant} record more than {HISTORY_ROWS_MAX:,} rows of the history per minute"
            raise Problem(429, "too_many_rows", detail, headers={"Retry-After": "60"})
        self._counts[tenant] += len(own)
        stored = [replace(row, id=qualify(tenant, row.id), level=HistoryLevel.MINUTE, at=0) for row in own]
        await require_history(world.store).record(stored)


class OpenHolds:
    """The holds on shared budgets that workers of one tenant have not settled, in the order of their deadlines."""

    def __init__(self) -> None:
        self._until: OrderedDict[str, float] = OrderedDict()
        self._counts: Counter[str] = Counter()
        """By job."""

    def add(self, hold: str, now: float) -> bool:
        """False: its job has too many other holds."""
        while self._until and (now >= next(iter(self._until.values())) or len(self._until) >= OPEN_HOLDS_MAX):
            self.end(next(iter(self._until)))
        if hold not in self._until:
            job = held_job(hold)
            if self._counts[job] >= HOLDS_MAX:
                return False
            self._counts[job] += 1
        self._until[hold] = now + SHARED_US_MAX / SECOND_US
        self._until.move_to_end(hold)
        return True

    def end(self, hold: str) -> None:
        if self._until.pop(hold, None) is not None:
            job = held_job(hold)
            self._counts[job] -= 1
            if not self._counts[job]:
                del self._counts[job]


def held_job(hold: str) -> str:
    """The namespace of the tenant, whose name may contain colons, and the job."""
    namespace, _, name = hold.partition("/")
    return f"{namespace}/{name.partition(':')[0]}"


class GrantLog:
    """The permits that workers of one tenant were granted through this process and may return. Permits that are not
    listed count as used: a worker could otherwise invent some and raise the rate of a shared limit."""

    def __init__(self) -> None:
        self._left: dict[str, OrderedDict[tuple[object, ...], int]] = {}

    def add(self, tenant: str, granted: Granted) -> None:
        left = self._left.setdefault(tenant, OrderedDict())
        for key in grant_keys(granted):
            left[key] = left.get(key, 0) + granted.count
        while len(left) > GRANTS_MAX:
            left.popitem(last=False)

    def take(self, tenant: str, granted: Granted, unused: int) -> int:
        """How many of these permits may be returned. They are no longer listed."""
        left, keys = self._left.get(tenant, OrderedDict()), grant_keys(granted)
        count = min([unused, *(left.get(key, 0) for key in keys)])
        for key in keys if count > 0 else ():
            left[key] -= count
            if not left[key]:
                del left[key]
        return count


def grant_keys(granted: Granted) -> list[tuple[object, ...]]:
    """One per limit, because a worker may return the permit of one limit and use that of another."""
    asks = zip(granted.asks, granted.generations, strict=True)
    return [(ask, generation, granted.granted_at, granted.since) for ask, generation in asks]
