"""Jobs and lanes as the memory store holds them, and their conversion to values of the domain."""

from collections import deque
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from msgspec import Struct, field

from leaseway.domain.exchange import ERRORS_MAX
from leaseway.domain.ids import Instant, JobId, Token, WorkerId
from leaseway.domain.inspection import JobFilter
from leaseway.domain.job import ErrorRecord, Failure, Job, Lease, NewJob, Settlement, State
from leaseway.domain.lane import LaneCount


class Place(StrEnum):
    """The state of a job, with `pending` split into ready and scheduled."""

    READY = "ready"
    SCHEDULED = "scheduled"
    LEASED = "leased"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


PENDING = (Place.READY, Place.SCHEDULED)
FINAL = (Place.DONE, Place.FAILED, Place.CANCELLED)


class Lane(Struct, eq=False):
    queue: str
    tenant: str
    needs: str
    number: int
    vtime: int = 0
    """The lane's virtual time: see `domain.lane`."""
    vfloor: int = 0
    """The virtual time of the lane furthest behind when this one was last served."""
    places: dict[Place, dict[JobId, "JobRow"]] = field(default_factory=lambda: {place: {} for place in Place})

    @property
    def ready(self) -> int:
        return len(self.places[Place.READY])

    @property
    def name(self) -> tuple[str, str, str]:
        return (self.queue, self.tenant, self.needs)


class JobRow(Struct, eq=False, kw_only=True):
    new: NewJob
    order: int
    """Increases with every submission. Ids do not: submitters choose them."""
    lane: Lane
    place: Place
    created_at: Instant
    run_at: Instant
    cursor: str | None
    attempts: int = 0
    fence: int = 0
    token: Token | None = None
    """The token of the current lease. None without a lease, so that comparing tokens is the whole fence."""
    owner: WorkerId | None = None
    until: Instant = 0
    """Valid only while leased."""
    last_token: Token | None = None
    """The token of the last accepted settlement, to recognize its repetition."""
    cancel_requested: bool = False
    progress: str | None = None
    result: str | None = None
    finished_at: Instant = 0
    """Valid only in a final place."""
    errors: deque[ErrorRecord] = field(default_factory=lambda: deque(maxlen=ERRORS_MAX))

    @property
    def id(self) -> JobId:
        return self.new.id

    @property
    def state(self) -> State:
        return State.PENDING if self.place in PENDING else State(self.place)

    @property
    def last_error(self) -> ErrorRecord | None:
        return self.errors[-1] if self.errors else None


class Key(Struct, frozen=True):
    """An idempotency key. It outlives its job, so that a late repetition does not run the job again."""

    job: JobId
    fingerprint: str
    expires_at: Instant

    @classmethod
    def new(cls, job: NewJob, now: Instant) -> "Key":
        return cls(job.id, job.fingerprint, now + job.key_keep_us)


Keys = Mapping[tuple[str, str], Key]
"""By tenant and key."""


def waiting_place(run_at: Instant, now: Instant) -> Place:
    return Place.SCHEDULED if run_at > now else Place.READY


def start_time(asked: NewJob | Settlement, now: Instant) -> Instant:
    """The time to run. An instant takes precedence over a delay."""
    return asked.run_at if asked.run_at is not None else now + asked.delay_us


def place_after(row: JobRow, settlement: Settlement, now: Instant) -> Place:
    """The next place of a settled job. A job that is to be cancelled does not become pending."""
    if settlement.state is not State.PENDING:
        return Place(settlement.state)
    return Place.CANCELLED if row.cancel_requested else waiting_place(row.run_at, now)


def urgency(row: JobRow) -> tuple[int, Instant, int]:
    return (-row.new.priority, row.run_at, row.order)


def find_key(keys: Keys, job: NewJob, now: Instant) -> Key | None:
    """The stored key of this job. None: the job has no key, or the key is unused or expired."""
    key = None if job.key is None else keys.get((job.tenant, job.key))
    return key if key is not None and key.expires_at > now else None


def matches(row: JobRow, which: JobFilter) -> bool:
    error_code = row.last_error.code if row.last_error else None
    return (
        (which.ids is None or row.id in which.ids)
        and (which.states is None or row.state in which.states)
        and which.kind in (None, row.new.kind)
        and which.queue in (None, row.new.queue)
        and which.tenant in (None, row.new.tenant)
        and which.error_code in (None, error_code)
        and which.shard_key in (None, row.new.shard_key)
    )


def build_lease(row: JobRow) -> Lease:
    assert row.token is not None
    return Lease(
        id=row.id,
        token=row.token,
        fence=row.fence,
        kind=row.new.kind,
        queue=row.new.queue,
        tenant=row.new.tenant,
        payload=row.new.payload,
        attempts=row.attempts,
        attempts_max=row.new.attempts_max,
        lease_us=row.new.lease_us,
        timeout_us=row.new.timeout_us,
        shard_key=row.new.shard_key,
        cursor=row.cursor,
        priority=row.new.priority,
        needs=row.new.needs,
    )


def build_job(row: JobRow) -> Job:
    new, last_error = row.new, row.last_error
    return Job(
        id=new.id,
        kind=new.kind,
        queue=new.queue,
        tenant=new.tenant,
        state=row.state,
        priority=new.priority,
        attempts=row.attempts,
        attempts_max=new.attempts_max,
        fence=row.fence,
        payload=new.payload,
        shard_key=new.shard_key,
        cursor=row.cursor,
        progress=row.progress,
        result=row.result,
        lease_owner=row.owner,
        lease_until=row.until if row.place is Place.LEASED else None,
        lease_us=new.lease_us,
        timeout_us=new.timeout_us,
        cancel_requested=row.cancel_requested,
        created_at=row.created_at,
        run_at=row.run_at,
        finished_at=row.finished_at if row.place in FINAL else None,
        last_error_code=last_error.code if last_error else None,
        last_error_at=last_error.at if last_error else None,
        needs=new.needs,
    )


def build_error(row: JobRow, failure: Failure, now: Instant) -> ErrorRecord:
    return ErrorRecord(
        job=row.id,
        attempt=row.attempts,
        at=now,
        code=failure.code,
        message=failure.message,
        traceback=failure.traceback,
    )


def count_lane(lane: Lane) -> LaneCount:
    counts: dict[str, Any] = {place.value: len(rows) for place, rows in lane.places.items()}
    return LaneCount(queue=lane.queue, tenant=lane.tenant, needs=lane.needs, **counts)
