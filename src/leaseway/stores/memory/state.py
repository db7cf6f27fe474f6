"""The state of the store in memory, and the only ways to change it.

A job is always in exactly one place of its lane. `move` is the only way between places, so a lane's counters are the
sizes of its places.
"""

import asyncio
from collections import ChainMap
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from functools import wraps
from itertools import count
from threading import RLock
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from leaseway.domain.errors import KeyConflict
from leaseway.domain.ids import Instant, JobId
from leaseway.domain.job import NewJob, Submitted
from leaseway.domain.lane import Pause
from leaseway.domain.schedule import StoredSchedule
from leaseway.domain.tenant import Tenant
from leaseway.stores.memory.rows import JobRow, Key, Lane, Place, find_key, start_time, waiting_place


class MemoryState:
    def __init__(self, now_us: Callable[[], Instant]) -> None:
        self.lock = RLock()
        self.now_us = now_us
        self.orders = count()
        self.rows: dict[JobId, JobRow] = {}
        self.lanes: dict[tuple[str, str, str], Lane] = {}
        self.tenants: dict[str, Tenant] = {}
        self.keys: dict[tuple[str, str], Key] = {}
        self.schedules: dict[str, StoredSchedule] = {}
        self.pauses: dict[tuple[str, str | None], Pause] = {}
        self.waiting: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}

    # -- submit ---------------------------------------------------------------------------------------------

    def submit_all(self, jobs: Sequence[NewJob]) -> list[Submitted]:
        with self.lock:
            now = self.now_us()
            self.refuse_conflicts(jobs, now)
            return [self.submit(job, now) for job in jobs]

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
        lane = self.lanes.setdefault(name, Lane(*name, number=len(self.lanes)))
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
        self.wake()

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
        self.wake()

    def delete(self, row: JobRow) -> None:
        del row.lane.places[row.place][row.id]
        del self.rows[row.id]
        self.wake()

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
