"""How a store is doing, for screens and metrics: who works, what waits longest, what ended lately.

Reading changes nothing and blocks no writer, and what it costs does not grow with the number of jobs.
One contract, `leaseway.testing.pulse_contract`, proves every store.
"""

from typing import Protocol, runtime_checkable

from leaseway.domain.ids import Instant
from leaseway.domain.inspection import EndedCount, LaneWait, LeaseOwner


@runtime_checkable
class Pulse(Protocol):
    async def owners(self) -> list[LeaseOwner]:
        """Who has leases, by name; at most `OWNERS_MAX`. A worker that has nothing to do has none, and is not there."""
        ...

    async def waiting(self) -> list[LaneWait]:
        """Every lane with a job that is ready, and since when its oldest one is; by queue, tenant and needs.

        Ready as the counters have it: a scheduled job whose time has come is ready when a worker has made it so."""
        ...

    async def ended(self, after: Instant) -> tuple[Instant, list[EndedCount]]:
        """How many jobs ended after this instant, by queue, tenant and state.

        Where more ended than a store looks at in passing, those that ended last are counted, and the first answer says
        since when: `after`, or later."""
        ...
