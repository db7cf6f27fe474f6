"""Where a job came from, for those who trace.

The trace of a job is kept with it until it ends, and asked for apart from its lease: who does not trace pays nothing.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from leaseway.domain.exchange import HeldLease
from leaseway.domain.ids import JobId


class Traces(Protocol):
    async def traces(self, leases: Sequence[HeldLease]) -> Mapping[JobId, str]:
        """What was submitted as `NewJob.trace` of the jobs that are held under these tokens, as far as there is any."""
        ...
