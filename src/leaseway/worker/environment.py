"""Everything outside the flows, as one value."""

from typing import NamedTuple

from leaseway.ports.clock import Chance, Clock, Ids
from leaseway.ports.events import Events
from leaseway.ports.ledger import Ledger
from leaseway.ports.limiter import Limiter
from leaseway.ports.store import Store
from leaseway.ports.tracer import Tracing


class Environment(NamedTuple):
    store: Store
    limiter: Limiter
    ledger: Ledger
    clock: Clock
    chance: Chance
    ids: Ids
    events: Events
    tracing: Tracing | None = None
    """None: nobody wants to know what leads to what."""
