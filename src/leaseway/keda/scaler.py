"""The calls of KEDA's external scaler, answered from pools.

KEDA asks which metric there is, what its value is, and whether the pool needs any worker at all. The metric is the
number of workers and its target is 1, so KEDA and its HPA do what the pool decides. A pool that cannot be observed is
an error, not a zero: KEDA then keeps the replicas that run.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

from leaseway.domain.errors import LeasewayError, TransientError, UsageError
from leaseway.domain.ids import Instant
from leaseway.domain.lane import LaneCount
from leaseway.keda.messages import MetricsRequest, ScaledObjectRef, encode_active, encode_metric
from leaseway.scaling.pools import PoolMonitor, PoolSpec
from leaseway.worker.environment import Environment

POOL = "pool"
"""The metadata of a ScaledObject's trigger that names the pool. It may be left out if there is one pool only."""
METRIC = "leaseway-workers"
TARGET = 1
STREAM_SECONDS = 5.0
"""The time between two checks for an open stream. KEDA then starts the first worker without waiting for its poll."""
READ_SECONDS_MAX = 20.0


class UnknownPool(UsageError):
    """The ScaledObject names no pool of this scaler."""


class KedaScaler:
    def __init__(self, pools: Sequence[PoolSpec], world: Callable[[], Environment]) -> None:
        self._world = world
        self._monitors: Mapping[str, PoolMonitor] = {spec.name: PoolMonitor(spec, world) for spec in pools}

    async def is_active(self, ref: ScaledObjectRef) -> bytes:
        return encode_active(await self.workers(ref) > 0)

    async def stream_is_active(self, ref: ScaledObjectRef) -> AsyncIterator[bytes]:
        """The state now, and every change. Nothing is sent while the pool cannot be observed."""
        self.find(ref)
        told: bool | None = None
        while True:  # until the client ends the call
            with contextlib.suppress(TransientError):
                is_active = await self.workers(ref) > 0
                if is_active != told:
                    told = is_active
                    yield encode_active(is_active)
            await self._world().clock.sleep(STREAM_SECONDS)

    async def metric_spec(self, ref: ScaledObjectRef) -> bytes:
        self.find(ref)
        return encode_metric(METRIC, TARGET)

    async def metrics(self, request: MetricsRequest) -> bytes:
        return encode_metric(METRIC, await self.workers(request.ref))

    # -- pools --------------------------------------------------------------------------------------------------------

    def find(self, ref: ScaledObjectRef) -> PoolMonitor:
        name = ref.metadata.get(POOL, next(iter(self._monitors)) if len(self._monitors) == 1 else "")
        if name not in self._monitors:
            known = ", ".join(self._monitors)[:300]
            raise UnknownPool(f"{POOL}: there is no pool {name[:100]!r}; set it in the trigger's metadata to: {known}")
        return self._monitors[name]

    async def workers(self, ref: ScaledObjectRef) -> int:
        monitor = self.find(ref)
        try:
            async with asyncio.timeout(READ_SECONDS_MAX):
                return (await monitor.read(self._load)).decision.workers
        except (TimeoutError, OSError) as error:
            raise TransientError(f"pool {monitor.spec.name} cannot be observed now") from error

    async def _load(self) -> tuple[Instant, Sequence[LaneCount]]:
        reads = self._world().store.reads
        return await reads.now(), await reads.lanes()

    async def check(self) -> bool:
        """Whether the store responds, for probes."""
        try:
            async with asyncio.timeout(READ_SECONDS_MAX):
                await self._world().store.reads.now()
        except (LeasewayError, TimeoutError, OSError):
            return False
        return True
