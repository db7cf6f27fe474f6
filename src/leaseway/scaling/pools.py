"""observe ─► decide ─► [the decision for a pool, for orchestrators]

A pool is named when the service is started: `mail:queues=mail+reports,slots=20,max=10`. The service does not start
workers. It answers how many should run, and assumes that an orchestrator starts and ends them.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from leaseway.domain.errors import BadValue, LeasewayError, TransientError
from leaseway.domain.ids import SECOND_US, Instant
from leaseway.domain.lane import LaneCount
from leaseway.domain.scaling.agreement import FleetShare, PoolAgreement, first_workers
from leaseway.domain.scaling.decision import ScalingDecision
from leaseway.domain.scaling.demand import PoolObservation, ScalingSettings, check_scaling, workers_wanted
from leaseway.domain.validators import check_int, check_name
from leaseway.scaling.agree import PoolSeat, service_pool
from leaseway.scaling.observe import PoolObserver
from leaseway.worker.environment import Environment

SLOTS = 20
"""What `leaseway work` runs at the same time by default."""
POOLS_MAX = 100
KEYS = {"min": "workers_min", "max": "workers_max", "wait": "wait_seconds", "step": "step_seconds",
        "window": "down_window_seconds", "idle": "idle_seconds"}  # fmt: skip
WHOLE = ("min", "max", "slots")


class PoolSpec(Struct, frozen=True, kw_only=True):
    name: str
    queues: tuple[str, ...]
    slots: int = SLOTS
    settings: ScalingSettings = ScalingSettings(workers_min=0)


def parse_scaling(field: str, text: str) -> ScalingSettings:
    """Parse "min=1,max=8". The error names the part that is wrong."""
    return scaling_settings(field, split_pairs(field, text, tuple(KEYS)))


def parse_pool(text: str) -> PoolSpec:
    """Parse "mail:queues=mail+reports,slots=20,min=0,max=10"."""
    name, _, rest = text.partition(":")
    check_name("pool", name)
    pairs = split_pairs(f"pool {name}", rest, ("queues", "slots", *KEYS))
    queues = tuple(check_name(f"pool {name}: queues", queue) for queue in pairs.pop("queues", name).split("+"))
    slots = parse_number(f"pool {name}", "slots", pairs.pop("slots", str(SLOTS)))
    check_int(f"pool {name}: slots", slots, 1, 10_000)
    return PoolSpec(
        name=name, queues=queues, slots=int(slots), settings=scaling_settings(f"pool {name}", {"min": "0", **pairs})
    )


def parse_pools(texts: Sequence[str], queues: Sequence[str]) -> tuple[PoolSpec, ...]:
    """Without a definition there is one pool, which has all queues of the app."""
    if not texts:
        return (PoolSpec(name="default", queues=tuple(queues)),)
    pools = tuple(parse_pool(text) for text in texts)
    names = [pool.name for pool in pools]
    if len(set(names)) < len(names) or len(names) > POOLS_MAX:
        raise BadValue("pool", f"must have different names, at most {POOLS_MAX} (are {', '.join(names)[:200]})")
    return pools


def split_pairs(field: str, text: str, known: Sequence[str]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = (each.strip() for each in part.partition("="))
        if not equals or key not in known:
            raise BadValue(field, f"cannot read {part!r}; write for example min=1,max=8; known: {', '.join(known)}")
        if key in pairs:
            raise BadValue(field, f"{key} is given twice")
        pairs[key] = value
    return pairs


def scaling_settings(field: str, pairs: dict[str, str]) -> ScalingSettings:
    values = {KEYS[key]: parse_number(field, key, value) for key, value in pairs.items()}
    try:
        return check_scaling(replace(ScalingSettings(), **values))
    except BadValue as error:
        raise BadValue(f"{field}: {error.field}", error.problem) from None


def parse_number(field: str, key: str, value: str) -> float:
    try:
        return int(value) if key in WHOLE else float(value)
    except ValueError:
        raise BadValue(field, f"{key} must be a number (is {value!r})") from None


ORCHESTRATOR = "orchestrator"
"""Starts and ends the workers of a pool whose size a service decides."""


class PoolReading(NamedTuple):
    observation: PoolObservation
    decision: ScalingDecision
    read_at: float
    """On the clock of this process."""


LoadLanes = Callable[[], Awaitable[tuple[Instant, Sequence[LaneCount]]]]
"""Returns the counters of all lanes, and the store's clock when they were read."""


class PoolMonitor:
    """Decides for one pool when it is asked. `world`: the ports that are open now."""

    def __init__(self, spec: PoolSpec, world: Callable[[], Environment]) -> None:
        self.spec = spec
        self._world = world
        self._observer: PoolObserver | None = None
        self._seat = PoolSeat(service_pool(spec.name), spec.queues, spec.slots, spec.settings, 0.0)
        self._last: PoolReading | None = None
        self._lock = asyncio.Lock()

    async def read(self, load: LoadLanes) -> PoolReading:
        """The last decision is repeated for the same counters, and while the store does not respond.
        `TransientError`: it is too old, so nothing is known."""
        async with self._lock:
            try:
                now, lanes = await load()
                if self._last is None or self._last.observation.at != now / SECOND_US:
                    self._last = await self._decide(now, lanes)
            except LeasewayError as error:
                if self._last is None or self._age_seconds(self._last) > self.spec.settings.stale_seconds:
                    raise TransientError(f"pool {self.spec.name} cannot be observed now") from error
            return self._last

    def _age_seconds(self, last: PoolReading) -> float:
        return self._world().clock.monotonic() - last.read_at

    async def _decide(self, now: Instant, lanes: Sequence[LaneCount]) -> PoolReading:
        read_at = self._world().clock.monotonic()
        if self._observer is None:
            self._observer = PoolObserver(self._world(), self.spec.queues, self.spec.settings.down_window_seconds)
        seen = await self._observer.observe_lanes(now, lanes, self.spec.slots, 0)
        wanted, _ = workers_wanted(seen, self.spec.settings)
        agreed = await self._seat.decide(self._world(), self._share(seen, wanted), seen)
        return PoolReading(replace(seen, workers=agreed.workers), last_decision(agreed), read_at)

    def _share(self, seen: PoolObservation, wanted: int) -> FleetShare:
        """All workers of the pool. Nobody has counted them: the last decision stands for them, and before the first one
        what the load needs."""
        settings = self.spec.settings
        return FleetShare(
            name=ORCHESTRATOR, workers=first_workers(wanted, seen, settings), workers_min=settings.workers_min,
            workers_max=settings.workers_max, seen_at=seen.at,
        )  # fmt: skip


def last_decision(agreed: PoolAgreement) -> ScalingDecision:
    last = agreed.decisions[0]
    return ScalingDecision(
        workers=agreed.workers, wanted=last.wanted, cause=last.cause, reason=last.reason, state=agreed.state
    )
