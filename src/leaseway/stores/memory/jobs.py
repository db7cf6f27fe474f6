"""The executable specification of a store: every rule once, in memory, written to be read.

A job is always in exactly one place of its lane. `_move` is the only door between places, so a lane's
counters are the sizes of its places. Every verb is atomic, because nothing in it awaits.
"""

import asyncio
from collections import ChainMap
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from functools import wraps
from heapq import nsmallest
from itertools import count
from threading import RLock
from typing import Any, Concatenate, ParamSpec, TypeVar

from msgspec.structs import replace

from leaseway.domain.errors import KeyConflict, SchemaVersions
from leaseway.domain.exchange import (
    LANES_MAX,
    PROMOTE_MAX,
    RECLAIM_MAX,
    Exchange,
    ExchangeReply,
    Gate,
    Gated,
    HeldLease,
    ProgressReport,
    Renewed,
    Wants,
)
from leaseway.domain.health import Finding, judge_failed
from leaseway.domain.ids import Instant, JobId, Token, WorkerId
from leaseway.domain.inspection import KEYS_PER_JOB, PAGE_MAX, CancelResult, JobFilter
from leaseway.domain.job import (
    ErrorRecord,
    Failure,
    Job,
    LaneCount,
    NewJob,
    Settlement,
    State,
    Submitted,
)
from leaseway.domain.lane import LaneTurn, admits_by_gate, divide_claim
from leaseway.domain.pauses import Pause, covering_pause
from leaseway.domain.schedule import Schedule, StoredSchedule
from leaseway.domain.tenant import Tenant
from leaseway.stores.memory.glances import MemoryGlances
from leaseway.stores.memory.keyed import MemoryKeyed
from leaseway.stores.memory.keys import MemoryKeys
from leaseway.stores.memory.pauses import MemoryPauses
from leaseway.stores.memory.pulse import MemoryPulse
from leaseway.stores.memory.rows import (
    FINAL,
    Key,
    Lane,
    Place,
    Row,
    count_of,
    error_of,
    first_of,
    job_of,
    lease_of,
    matches,
    place_after,
    start_of,
    urgency,
    waiting_place,
)
from leaseway.stores.memory.traces import MemoryTraces

P = ParamSpec("P")
T = TypeVar("T")


def atomic(
    verb: Callable[Concatenate["MemoryStore", P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate["MemoryStore", P], Coroutine[Any, Any, T]]:
    """Nothing in a verb awaits, so a lock may be held around it: workers renew leases from a thread of their own."""

    @wraps(verb)
    async def locked(store: "MemoryStore", /, *args: P.args, **kwargs: P.kwargs) -> T:
        with store._lock:
            return await verb(store, *args, **kwargs)

    return locked


class MemoryStore(MemoryKeys, MemoryGlances, MemoryPulse, MemoryPauses, MemoryKeyed, MemoryTraces):
    """Implements every port of a store. Any thread and any loop may call it."""

    def __init__(self, now_us: Callable[[], Instant]) -> None:
        self._lock = RLock()
        self._now = now_us
        self._orders = count()
        self._rows: dict[JobId, Row] = {}
        self._lanes: dict[tuple[str, str, str], Lane] = {}
        self._tenants: dict[str, Tenant] = {}
        self._keys: dict[tuple[str, str], Key] = {}
        self._schedules: dict[str, StoredSchedule] = {}
        self._pauses: dict[tuple[str, str | None], Pause] = {}
        self._waiting: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}
        MemoryKeys.__init__(self, self._lock, now_us)

    async def open(self) -> int:
        """Nothing to do: memory is there, and needs no migration."""
        return 0

    async def versions(self) -> SchemaVersions:
        return SchemaVersions(0, 0)

    async def close(self) -> None:
        """Nothing to do: memory goes with the process."""

    async def checkup(self, *, deep: bool = False) -> list[Finding]:
        return [judge_failed(list(await self.lanes()))]

    # -- submit ---------------------------------------------------------------------------------------------

    async def submit(self, jobs: Sequence[NewJob]) -> list[Submitted]:
        return self.submit_now(jobs)

    def submit_now(self, jobs: Sequence[NewJob]) -> list[Submitted]:
        with self._lock:
            now = self._now()
            self._refuse_conflicts(jobs, now)
            return [self._submit(job, now) for job in jobs]

    def _refuse_conflicts(self, jobs: Sequence[NewJob], now: Instant) -> None:
        """Look before anything is written, because the batch is stored whole or not at all."""
        ids: set[JobId] = set()
        keys = ChainMap({}, self._keys)
        for job in jobs:
            if job.id in self._rows or job.id in ids:
                continue
            first = first_of(keys, job, now)
            if first is None:
                ids.add(job.id)
                if job.key is not None:
                    keys[job.tenant, job.key] = Key.new(job, now)
            elif first.fingerprint != job.fingerprint:
                raise KeyConflict(
                    f"key {job.key!r} of tenant {job.tenant!r} names job {first.job}, which was submitted "
                    "with another kind or other arguments; use a new key for a new job"
                )

    def _submit(self, job: NewJob, now: Instant) -> Submitted:
        """Store a job, unless its id or its key is known. Here nobody is left to be told of a conflict."""
        if job.id in self._rows:
            return Submitted(job.id)
        first = first_of(self._keys, job, now)
        if first is not None:
            # A key that names the very same id: the reply to the first submission was lost.
            return Submitted(first.job, replayed=first.job != job.id)
        if job.key is not None:
            self._keys[job.tenant, job.key] = Key.new(job, now)
        self._store(job, now)
        return Submitted(job.id)

    def _store(self, job: NewJob, now: Instant) -> None:
        name = (job.queue, job.tenant, job.needs)
        lane = self._lanes.setdefault(name, Lane(*name, number=len(self._lanes)))
        run_at = start_of(job, now)
        row = Row(
            new=job,
            order=next(self._orders),
            lane=lane,
            place=waiting_place(run_at, now),
            created_at=now,
            run_at=run_at,
            cursor=job.cursor,
        )
        self._rows[job.id] = lane.places[row.place][job.id] = row
        self._wake()

    # -- exchange -------------------------------------------------------------------------------------------

    @atomic
    async def exchange(self, call: Exchange) -> ExchangeReply:
        now = self._now()
        lost = tuple(settlement.id for settlement in call.settlements if not self._settle(settlement, now))
        self._reclaim(now)
        self._promote(now)
        leased = self._lease(call.wants, call.worker, call.repeat, now) if call.wants else []
        gated = self._gated(call.wants) if call.wants and call.wants.count > 0 else ()
        return ExchangeReply(tuple(map(lease_of, leased)), lost, self._to_cancel(call.worker), gated)

    def _settle(self, settlement: Settlement, now: Instant) -> bool:
        """Whether the settlement is accepted, now or before. Refused, it leaves no trace."""
        row = self._rows.get(settlement.id)
        if row is None:
            return False
        if row.token != settlement.token:
            return row.last_token == settlement.token
        self._record(row, settlement, now)
        for child in settlement.children:
            self._submit(child, now)
        return True

    def _record(self, row: Row, settlement: Settlement, now: Instant) -> None:
        if settlement.failure is not None:
            row.errors.append(error_of(row, settlement.failure, now))
        if settlement.gives_back:
            row.attempts = max(row.attempts - 1, 0)
        if settlement.progress is not None:
            row.progress = settlement.progress
        if settlement.state is State.PENDING:
            row.run_at = start_of(settlement, now)
        row.result = settlement.result
        row.last_token = settlement.token
        self._move(row, place_after(row, settlement, now), now)

    def _reclaim(self, now: Instant) -> None:
        expired = (row for row in self._at(Place.LEASED) if row.until <= now)
        for row in nsmallest(RECLAIM_MAX, expired, key=lambda row: (row.until, row.order)):
            if row.cancel_requested:
                self._move(row, Place.CANCELLED, now)
                continue
            silence = Failure("lease_expired", f"worker {row.owner} stopped renewing its lease")
            row.errors.append(error_of(row, silence, now))
            self._move(row, Place.READY if row.attempts < row.new.attempts_max else Place.FAILED, now)

    def _promote(self, now: Instant) -> None:
        due = (row for row in self._at(Place.SCHEDULED) if row.run_at <= now)
        for row in nsmallest(PROMOTE_MAX, due, key=lambda row: (row.run_at, row.order)):
            self._move(row, Place.READY, now)

    def _lease(self, wants: Wants, worker: WorkerId, repeat: bool, now: Instant) -> list[Row]:
        adopted = self._adopt(wants, worker, now) if repeat else []
        return adopted or self._claim(wants, worker, now)

    def _adopt(self, wants: Wants, worker: WorkerId, now: Instant) -> list[Row]:
        """Leases that the first try of this exchange was granted, though its reply was lost."""
        granted = [row for row in self._at(Place.LEASED) if (row.token, row.owner) == (wants.token, worker)]
        for row in granted:
            row.until = now + row.new.lease_us
            self._wake()
        return sorted(granted, key=lambda row: row.order)

    def _claim(self, wants: Wants, worker: WorkerId, now: Instant) -> list[Row]:
        admits = admits_by_gate(wants.admits)
        turns = [turn for turn in self._turns(wants.queues, wants.tenant) if turn.gate is None or turn.gate in admits]
        turns = turns[:LANES_MAX]
        shares = divide_claim(wants.count, turns, admits)
        lanes = {lane.number: lane for lane in self._lanes.values()}
        claimed: list[Row] = []
        for turn in turns:
            if portion := shares.get(turn.lane, 0):
                lane = lanes[turn.lane]
                lane.vtime, lane.vfloor = turn.moved(portion), turns[0].place
                claimed += nsmallest(portion, lane.places[Place.READY].values(), key=urgency)
        for row in claimed:
            # The attempt is counted here, so that a job that kills its worker cannot come back for ever.
            row.attempts += 1
            row.fence += 1
            self._move(row, Place.LEASED, now)
            row.token, row.owner, row.until = wants.token, worker, now + row.new.lease_us
        return claimed

    def _turns(self, queues: Sequence[str], tenant: str | None = None) -> list[LaneTurn]:
        """The lanes that have work, in the order in which they are served."""
        wanted = [lane for lane in self._lanes.values() if lane.queue in queues]
        floor = max((lane.vfloor for lane in wanted), default=0)
        with_work = [lane for lane in wanted if lane.ready and tenant in (None, lane.tenant)]
        with_work = [
            lane for lane in with_work if covering_pause(lane.queue, lane.tenant, self._pauses.values()) is None
        ]
        # Of those who stand at the floor, the first is who has been there for longest.
        with_work.sort(key=lambda lane: (max(lane.vtime, floor), lane.vtime, lane.name))
        return [
            LaneTurn(lane.number, lane.ready, self._weight(lane), self._gate(lane), max(lane.vtime, floor))
            for lane in with_work
        ]

    def _weight(self, lane: Lane) -> int:
        tenant = self._tenants.get(lane.tenant)
        return 1 if tenant is None else tenant.weight

    def _gate(self, lane: Lane) -> Gate | None:
        tenant = self._tenants.get(lane.tenant)
        is_gated = bool(lane.needs) or (tenant is not None and tenant.is_capped)
        return Gate(lane.needs, lane.tenant) if is_gated else None

    def _gated(self, wants: Wants) -> tuple[Gated, ...]:
        ready: dict[Gate, int] = {}
        for turn in self._turns(wants.queues, wants.tenant):
            if turn.gate is not None and turn.gate not in wants.closed:
                ready[turn.gate] = ready.get(turn.gate, 0) + turn.ready
        return tuple(Gated(gate, count) for gate, count in ready.items())[:LANES_MAX]

    def _to_cancel(self, worker: WorkerId) -> tuple[JobId, ...]:
        asked = (row for row in self._at(Place.LEASED) if row.cancel_requested and row.owner == worker)
        return tuple(row.id for row in sorted(asked, key=lambda row: row.order))

    # -- while a lease is held ------------------------------------------------------------------------------

    @atomic
    async def renew(self, leases: Sequence[HeldLease]) -> Renewed:
        now = self._now()
        lost: list[JobId] = []
        cancelled: list[JobId] = []
        for held in leases:
            row = self._held(held.id, held.token, now)
            if row is None:
                lost.append(held.id)
                continue
            row.until = now + held.lease_us
            self._wake()
            if row.cancel_requested:
                cancelled.append(held.id)
        return Renewed(tuple(lost), tuple(cancelled))

    @atomic
    async def checkpoint(self, job: JobId, token: Token, cursor: str) -> bool:
        row = self._held(job, token, self._now())
        if row is None:
            return False
        row.cursor = cursor
        self._wake()
        return True

    @atomic
    async def report(self, reports: Sequence[ProgressReport]) -> None:
        for report in reports:
            row = self._rows.get(report.id)
            if row is not None and row.token == report.token:
                row.progress = report.progress
                self._wake()

    def _held(self, job: JobId, token: Token, now: Instant) -> Row | None:
        """The job, if this token holds it. A lapsed lease does not count: the next exchange takes it back."""
        row = self._rows.get(job)
        return row if row is not None and row.token == token and row.until > now else None

    @atomic
    async def wait_us(self, queues: Sequence[str], closed: Sequence[Gate] = ()) -> int | None:
        if any(turn.gate is None or turn.gate not in closed for turn in self._turns(queues)):
            return 0
        due = [row.run_at for row in self._at(Place.SCHEDULED)]
        expiring = [row.until for row in self._at(Place.LEASED)]
        return max(min(due + expiring) - self._now(), 0) if due or expiring else None

    # -- what people do -------------------------------------------------------------------------------------

    @atomic
    async def cancel(self, job: JobId) -> CancelResult:
        row = self._rows.get(job)
        if row is None:
            return CancelResult.UNKNOWN
        if row.place in FINAL:
            return CancelResult.FINISHED
        if row.place is Place.LEASED:
            row.cancel_requested = True
            self._wake()
            return CancelResult.REQUESTED
        self._move(row, Place.CANCELLED, self._now())
        return CancelResult.CANCELLED

    @atomic
    async def replay(self, which: JobFilter, limit: int) -> list[JobId]:
        now = self._now()
        rows = self._select(which, (Place.FAILED, Place.CANCELLED), limit)
        for row in rows:
            row.attempts, row.run_at, row.result = 0, now, None
            row.cancel_requested, row.last_token = False, None
            self._move(row, Place.READY, now)
        return [row.id for row in rows]

    @atomic
    async def discard(self, which: JobFilter, limit: int) -> list[JobId]:
        rows = self._select(which, FINAL, limit)
        for row in rows:
            self._delete(row)
        return [row.id for row in rows]

    @atomic
    async def prune(self, keep_us: int, limit: int) -> int:
        now = self._now()
        old = [row for row in self._at(*FINAL) if row.finished_at <= now - keep_us]
        old = nsmallest(limit, old, key=lambda row: (row.finished_at, row.order))
        for row in old:
            self._delete(row)
        expired = [name for name, key in self._keys.items() if key.expires_at <= now]
        for name in expired[: max(limit, 0) * KEYS_PER_JOB]:
            del self._keys[name]
        return len(old)

    def _select(self, which: JobFilter, places: Sequence[Place], limit: int) -> list[Row]:
        matching = (row for row in self._at(*places) if matches(row, which))
        return nsmallest(limit, matching, key=lambda row: row.order)

    # -- schedules ------------------------------------------------------------------------------------------

    @atomic
    async def declare(self, schedules: Sequence[Schedule]) -> None:
        now = self._now()
        for schedule in schedules:
            row = self._schedules.get(schedule.name, StoredSchedule(schedule=schedule, seen=now, now=now))
            same_times = (row.schedule.cron, row.schedule.tz) == (schedule.cron, schedule.tz)
            seen = row.seen if same_times else now
            self._schedules[schedule.name] = replace(row, schedule=schedule, seen=seen)
            self._wake()

    @atomic
    async def schedules(self) -> list[StoredSchedule]:
        now = self._now()
        return [replace(row, now=now) for _, row in sorted(self._schedules.items())]

    @atomic
    async def fire(self, name: str, seen: Instant, upto: Instant, jobs: Sequence[NewJob]) -> bool:
        row = self._schedules.get(name)
        if row is None or row.paused or row.seen != seen:
            return False
        now = self._now()
        for job in jobs:
            self._submit(job, now)
        self._schedules[name] = replace(row, seen=upto, last_fire=upto)
        self._wake()
        return True

    @atomic
    async def pause(self, name: str, paused: bool) -> bool:
        row = self._schedules.get(name)
        if row is None:
            return False
        resumes = row.paused and not paused
        self._schedules[name] = replace(row, paused=paused, seen=self._now() if resumes else row.seen)
        self._wake()
        return True

    # -- tenants --------------------------------------------------------------------------------------------

    @atomic
    async def set_tenant(self, tenant: Tenant) -> None:
        self._tenants[tenant.name] = tenant
        self._wake()

    @atomic
    async def tenants(self) -> list[Tenant]:
        return [tenant for _, tenant in sorted(self._tenants.items())]

    @atomic
    async def forget_tenant(self, name: str) -> bool:
        self._wake()
        return self._tenants.pop(name, None) is not None

    # -- what people read -----------------------------------------------------------------------------------

    @atomic
    async def job(self, job: JobId) -> Job | None:
        row = self._rows.get(job)
        return None if row is None else job_of(row)

    @atomic
    async def jobs(self, which: JobFilter, *, before: JobId | None = None, limit: int = 50) -> list[Job]:
        matching = [row for row in self._rows.values() if matches(row, which)]
        page = [row for row in matching if before is None or row.id < before]
        page.sort(key=lambda row: row.id, reverse=True)
        return [job_of(row) for row in page[: max(min(limit, PAGE_MAX), 0)]]

    @atomic
    async def errors(self, job: JobId) -> list[ErrorRecord]:
        row = self._rows.get(job)
        return [] if row is None else list(row.errors)

    @atomic
    async def lanes(self) -> Sequence[LaneCount]:
        return [count_of(lane) for _, lane in sorted(self._lanes.items())]

    async def now(self) -> Instant:
        return self._now()

    # -- hints ----------------------------------------------------------------------------------------------

    async def wait(self, seconds: float) -> bool:
        event = asyncio.Event()
        self._waiting[event] = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(seconds):
                return await event.wait()
        except TimeoutError:
            return False
        finally:
            del self._waiting[event]

    def _wake(self) -> None:
        for event, loop in self._waiting.copy().items():
            with suppress(RuntimeError):  # that loop was closed while somebody waited in it
                loop.call_soon_threadsafe(event.set)

    # -- the only ways to move and to forget ------------------------------------------------------

    def _at(self, *places: Place) -> Iterator[Row]:
        for lane in self._lanes.values():
            for place in places:
                yield from lane.places[place].values()

    def _move(self, row: Row, place: Place, now: Instant) -> None:
        """A lease exists only while leased, an end only in a final place: both are kept here."""
        del row.lane.places[row.place][row.id]
        row.lane.places[place][row.id] = row
        row.place = place
        row.token = row.owner = None
        row.finished_at = now
        self._wake()

    def _delete(self, row: Row) -> None:
        del row.lane.places[row.place][row.id]
        del self._rows[row.id]
        self._wake()
