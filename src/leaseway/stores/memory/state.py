"""The state of the store in memory, and the only ways to change it: jobs and lanes as the store holds them.

A job is always in exactly one place of its lane. `move` is the only way between places, so a lane's counters are the
sizes of its places.
"""

import asyncio
from collections import ChainMap, deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from functools import wraps
from itertools import count, islice
from threading import RLock
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from msgspec import Struct, field

from leaseway.domain.errors import IdConflict, KeyConflict, foreign_id_text
from leaseway.domain.exchange import ERRORS_MAX, Closing
from leaseway.domain.ids import Instant, JobId, Token, WorkerId
from leaseway.domain.inspection import JobFilter
from leaseway.domain.job import ErrorRecord, Failure, Job, Lease, NewJob, Settlement, State, Submitted
from leaseway.domain.lane import Flow, FlowTimes, LaneCount, Pause
from leaseway.domain.outcome import usable_lease_us
from leaseway.domain.schedule import StoredSchedule
from leaseway.domain.tenant import Tenant


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
    """The lane's virtual time within its flow: see `domain.lane`."""
    closed_until: Instant | None = None
    closed_why: str | None = None
    places: dict[Place, dict[JobId, "JobRow"]] = field(default_factory=lambda: {place: {} for place in Place})
    bytes: int = 0

    @property
    def ready(self) -> int:
        return len(self.places[Place.READY])

    @property
    def name(self) -> tuple[str, str, str]:
        return (self.queue, self.tenant, self.needs)

    @property
    def flow(self) -> Flow:
        return (self.queue, self.tenant)

    def close(self, closing: Closing, now: Instant) -> None:
        if closing.wait_us == 0:
            self.open()
        elif self.closed_until is None:
            self.closed_until, self.closed_why = now + closing.wait_us, closing.why

    def open(self) -> None:
        self.closed_until = self.closed_why = None


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
    counted_bytes: int = 0
    """Its part of the lane's bytes."""

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
        lease_us=usable_lease_us(row.new.lease_us),
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


def size_in_lane(row: JobRow) -> int:
    """The bytes of a job that its lane counts: see `LaneCount.bytes`."""
    texts = [text for error in row.errors for text in (error.message, error.traceback)]
    return sum(len((text or "").encode()) for text in (row.new.payload, row.cursor, row.progress, row.result, *texts))


def count_lane(lane: Lane) -> LaneCount:
    counts: dict[str, Any] = {place.value: len(rows) for place, rows in lane.places.items()}
    closed: dict[str, Any] = {"closed_until": lane.closed_until, "closed_why": lane.closed_why}
    return LaneCount(queue=lane.queue, tenant=lane.tenant, needs=lane.needs, bytes=lane.bytes, **counts, **closed)


class MemoryState:
    def __init__(self, now_us: Callable[[], Instant]) -> None:
        self.lock = RLock()
        self.now_us = now_us
        self.orders = count()
        self.rows: dict[JobId, JobRow] = {}
        self.lanes: dict[tuple[str, str, str], Lane] = {}
        self.lane_numbers, self.promoted_upto = count(1), 0
        self.flows: dict[Flow, FlowTimes] = {}
        self.tenants: dict[str, Tenant] = {}
        self.keys: dict[tuple[str, str], Key] = {}
        self.schedules: dict[str, StoredSchedule] = {}
        self.pauses: dict[tuple[str, str | None], Pause] = {}
        self.waiting: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}

    # -- submit ---------------------------------------------------------------------------------------------

    def submit_all(self, jobs: Sequence[NewJob]) -> list[Submitted]:
        with self.lock:
            now = self.now_us()
            self.refuse_foreign_ids(jobs)
            self.refuse_conflicts(jobs, now)
            return [self.submit(job, now) for job in jobs]

    def refuse_foreign_ids(self, jobs: Iterable[NewJob]) -> None:
        """Raise before anything is written. A known id of the same tenant is a repeated submission."""
        tenants: dict[JobId, str] = {}
        for job in jobs:
            row = self.rows.get(job.id)
            tenant = tenants.setdefault(job.id, job.tenant) if row is None else row.new.tenant
            if tenant != job.tenant:
                raise IdConflict(foreign_id_text(job.id))

    def refuse_conflicts(self, jobs: Sequence[NewJob], now: Instant) -> None:
        """Raise before anything is written, because all jobs of the batch are stored or none."""
        ids: set[JobId] = set()
        keys = ChainMap({}, self.keys)
        for job in jobs:
            if job.id in self.rows or job.id in ids:
                continue
            first = find_key(keys, job, now)
            if first is None:
                ids.add(job.id)
                if job.key is not None:
                    keys[job.tenant, job.key] = Key.new(job, now)
            elif first.fingerprint != job.fingerprint:
                raise KeyConflict(
                    f"key {job.key!r} of tenant {job.tenant!r} names job {first.job}, which was submitted "
                    "with another kind or other arguments; use a new key for a new job"
                )

    def submit(self, job: NewJob, now: Instant) -> Submitted:
        """Store a job, unless its id or its key is known. A conflicting key is not an error here."""
        if job.id in self.rows:
            return Submitted(job.id)
        first = find_key(self.keys, job, now)
        if first is not None:
            # The key names the same id: the reply to the first submission was lost.
            return Submitted(first.job, replayed=first.job != job.id)
        if job.key is not None:
            self.keys[job.tenant, job.key] = Key.new(job, now)
        self.store(job, now)
        return Submitted(job.id)

    def store(self, job: NewJob, now: Instant) -> None:
        name = (job.queue, job.tenant, job.needs)
        lane = self.lanes.get(name)
        if lane is None:
            lane = self.lanes[name] = Lane(*name, number=next(self.lane_numbers))
        run_at = start_time(job, now)
        row = JobRow(
            new=job,
            order=next(self.orders),
            lane=lane,
            place=waiting_place(run_at, now),
            created_at=now,
            run_at=run_at,
            cursor=job.cursor,
        )
        self.rows[job.id] = lane.places[row.place][job.id] = row
        self.changed(row)

    # -- the only ways to move and to delete ----------------------------------------------------------------

    def at(self, *places: Place) -> Iterator[JobRow]:
        for lane in self.lanes.values():
            for place in places:
                yield from lane.places[place].values()

    def move(self, row: JobRow, place: Place, now: Instant) -> None:
        """A job has a lease only while leased, and an end only in a final place: both are set here."""
        del row.lane.places[row.place][row.id]
        row.lane.places[place][row.id] = row
        row.place = place
        row.token = row.owner = None
        row.finished_at = now
        self.changed(row)

    def changed(self, row: JobRow) -> None:
        self.count_bytes(row, size_in_lane(row))
        self.wake()

    def count_bytes(self, row: JobRow, size: int) -> None:
        row.lane.bytes += size - row.counted_bytes
        row.counted_bytes = size

    def delete(self, row: JobRow) -> None:
        self.count_bytes(row, 0)
        del row.lane.places[row.place][row.id]
        del self.rows[row.id]
        self.wake()

    def open_lanes(self, tenant: str) -> None:
        """The caps of this tenant have changed: a worker asks the limiter again."""
        for lane in self.lanes.values():
            if lane.tenant == tenant:
                lane.open()

    def delete_empty_lanes(self, limit: int) -> None:
        """Delete lanes without jobs, and the virtual times of flows without lanes."""
        empty = (name for name, lane in self.lanes.items() if not any(lane.places.values()))
        for name in list(islice(empty, max(limit, 0))):
            del self.lanes[name]
        for flow in self.flows.keys() - {lane.flow for lane in self.lanes.values()}:
            del self.flows[flow]

    def wake(self) -> None:
        for event, loop in self.waiting.copy().items():
            with suppress(RuntimeError):  # that loop was closed while a task waited in it
                loop.call_soon_threadsafe(event.set)


class Port(Protocol):
    _state: MemoryState


P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S", bound=Port)


def atomic(
    verb: Callable[Concatenate[S, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """Hold the lock around a method, which must not await: workers renew leases from a thread of their own."""

    @wraps(verb)
    async def locked(port: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with port._state.lock:
            return await verb(port, *args, **kwargs)

    return locked
