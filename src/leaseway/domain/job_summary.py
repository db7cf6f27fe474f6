"""A job as one sees it in passing: how it stands, without what it carries.

Payloads, results and cursors may be long, and who watches many jobs does not read them.
"""

from msgspec import Struct

from leaseway.domain.ids import Instant, JobId
from leaseway.domain.job import State

GLIMPSES_MAX = 1_000


class Glimpse(Struct, frozen=True, kw_only=True):
    id: JobId
    kind: str
    queue: str
    tenant: str
    state: State
    priority: int
    attempts: int
    attempts_max: int
    progress: str | None
    lease_owner: str | None
    lease_until: Instant | None
    cancel_requested: bool
    created_at: Instant
    run_at: Instant
    finished_at: Instant | None
    last_error_code: str | None
    last_error_at: Instant | None
