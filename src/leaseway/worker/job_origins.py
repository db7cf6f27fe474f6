"""exchange ─► [whose doing it was] ─► run handler: what only those who trace ask."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence

from leaseway.domain.errors import LeasewayError
from leaseway.domain.exchange import HeldLease
from leaseway.domain.ids import JobId
from leaseway.domain.job import Lease
from leaseway.domain.outcome import Outcome
from leaseway.ports.tracer import Tracing
from leaseway.worker.attempt import Attempt
from leaseway.worker.environment import Environment

ORIGINS_SECONDS_MAX = 1.0
"""Jobs do not wait longer than that to hear whose doing they are."""
NOTHING: Mapping[JobId, str] = {}


async def read_origins(world: Environment, leases: Sequence[Lease]) -> Mapping[JobId, str]:
    """Who submitted these jobs. A store that does not say is no reason not to run them."""
    if world.tracing is None or not world.tracing.has_traces or not leases:
        return NOTHING
    held = [HeldLease(lease.id, lease.token, lease.lease_us) for lease in leases]
    with contextlib.suppress(LeasewayError, TimeoutError):
        async with asyncio.timeout(ORIGINS_SECONDS_MAX):
            return await world.store.traces(held)
    return NOTHING


async def traced(tracing: Tracing, run: Callable[[Attempt], Awaitable[Outcome]], running: Attempt) -> Outcome:
    with tracing.running(running.lease, running.origin) as attempt:
        outcome = await run(running)
        attempt.end(outcome)
        return outcome
