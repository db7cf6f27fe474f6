"""The executable specification of a store: every rule once, in memory.

Every method is atomic, because nothing in it awaits.
"""

from collections.abc import Mapping, Sequence
from heapq import nsmallest

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
from leaseway.domain.ids import Instant, JobId, Token, WorkerId
from leaseway.domain.inspection import KEYS_PER_JOB, CancelResult, JobFilter
from leaseway.domain.job import NewJob, Settlement, State, Submitted
from leaseway.domain.lane import LaneTurn, admits_by_gate, covering_pause, divide_claim
from leaseway.domain.outcome import expired_lease, state_after_expiry
from leaseway.stores.memory.rows import (
    FINAL,
    JobRow,
    Lane,
    Place,
    build_error,
    build_lease,
    matches,
    place_after,
    start_time,
    urgency,
)
from leaseway.stores.memory.state import MemoryState, atomic

AFTER_EXPIRY = {State.PENDING: Place.READY, State.FAILED: Place.FAILED, State.CANCELLED: Place.CANCELLED}


class MemoryJobs:
    def __init__(self, state: MemoryState) -> None:
        self._state = state

    async def submit(self, jobs: Sequence[NewJob]) -> list[Submitted]:
        return self._state.submit_all(jobs)

    # -- exchange -------------------------------------------------------------------------------------------

    @atomic
    async def exchange(self, call: Exchange) -> ExchangeReply:
        now = self._state.now_us()
        lost = tuple(settlement.id for settlement in call.settlements if not self._settle(settlement, now))
        self._reclaim(now)
        self._promote(now)
        leased = self._lease(call.wants, call.worker, call.repeat, now) if call.wants else []
        gated = self._gated(call.wants) if call.wants and call.wants.count > 0 else ()
        return ExchangeReply(tuple(map(build_lease, leased)), lost, self._to_cancel(call.worker), gated)

    def _settle(self, settlement: Settlement, now: Instant) -> bool:
        """Whether the settlement is accepted, now or earlier. A rejected settlement changes nothing."""
        row = self._state.rows.get(settlement.id)
        if row is None:
            return False
        if row.token != settlement.token:
            return row.last_token == settlement.token
        self._record(row, settlement, now)
        for child in settlement.children:
            self._state.submit(child, now)
        return True

    def _record(self, row: JobRow, settlement: Settlement, now: Instant) -> None:
        if settlement.failure is not None:
            row.errors.append(build_error(row, settlement.failure, now))
        if settlement.returns_attempt:
            row.attempts = max(row.attempts - 1, 0)
        if settlement.progress is not None:
            row.progress = settlement.progress
        if settlement.state is State.PENDING:
            row.run_at = start_time(settlement, now)
        row.result = settlement.result
        row.last_token = settlement.token
        self._state.move(row, place_after(row, settlement, now), now)

    def _reclaim(self, now: Instant) -> None:
        expired = (row for row in self._state.at(Place.LEASED) if row.until <= now)
        for row in nsmallest(RECLAIM_MAX, expired, key=lambda row: (row.until, row.order)):
            state = state_after_expiry(row.attempts, row.new.attempts_max, row.cancel_requested)
            if state is not State.CANCELLED:
                row.errors.append(build_error(row, expired_lease(row.owner), now))
            self._state.move(row, AFTER_EXPIRY[state], now)

    def _promote(self, now: Instant) -> None:
        due = (row for row in self._state.at(Place.SCHEDULED) if row.run_at <= now)
        for row in nsmallest(PROMOTE_MAX, due, key=lambda row: (row.run_at, row.order)):
            self._state.move(row, Place.READY, now)

    def _lease(self, wants: Wants, worker: WorkerId, repeat: bool, now: Instant) -> list[JobRow]:
        adopted = self._adopt(wants, worker, now) if repeat else []
        return adopted or self._claim(wants, worker, now)

    def _adopt(self, wants: Wants, worker: WorkerId, now: Instant) -> list[JobRow]:
        """Leases that the first try of this exchange was granted; its reply was lost."""
        granted = [row for row in self._state.at(Place.LEASED) if (row.token, row.owner) == (wants.token, worker)]
        for row in granted:
            row.until = now + row.new.lease_us
            self._state.wake()
        return sorted(granted, key=lambda row: row.order)

    def _claim(self, wants: Wants, worker: WorkerId, now: Instant) -> list[JobRow]:
        admits = admits_by_gate(wants.admits)
        turns = [turn for turn in self._turns(wants.queues, wants.tenant) if turn.gate is None or turn.gate in admits]
        turns = turns[:LANES_MAX]
        shares = divide_claim(wants.count, turns, admits)
        lanes = {lane.number: lane for lane in self._state.lanes.values()}
        claimed: list[JobRow] = []
        for turn in turns:
            if portion := shares.get(turn.lane, 0):
                lane = lanes[turn.lane]
                lane.vtime, lane.vfloor = turn.moved(portion), turns[0].place
                claimed += nsmallest(portion, lane.places[Place.READY].values(), key=urgency)
        for row in claimed:
            # The attempt is counted at the claim, so that a job that kills its worker is not retried for ever.
            row.attempts += 1
            row.fence += 1
            self._state.move(row, Place.LEASED, now)
            row.token, row.owner, row.until = wants.token, worker, now + row.new.lease_us
        return claimed

    def _turns(self, queues: Sequence[str], tenant: str | None = None) -> list[LaneTurn]:
        """The lanes with ready jobs, in the order in which they are served."""
        wanted = [lane for lane in self._state.lanes.values() if lane.queue in queues]
        floor = max((lane.vfloor for lane in wanted), default=0)
        with_work = [lane for lane in wanted if lane.ready and tenant in (None, lane.tenant)]
        with_work = [
            lane for lane in with_work if covering_pause(lane.queue, lane.tenant, self._state.pauses.values()) is None
        ]
        # Of several lanes at the floor, the one that has been behind for longest comes first.
        with_work.sort(key=lambda lane: (max(lane.vtime, floor), lane.vtime, lane.name))
        return [
            LaneTurn(lane.number, lane.ready, self._weight(lane), self._gate(lane), max(lane.vtime, floor))
            for lane in with_work
        ]

    def _weight(self, lane: Lane) -> int:
        tenant = self._state.tenants.get(lane.tenant)
        return 1 if tenant is None else tenant.weight

    def _gate(self, lane: Lane) -> Gate | None:
        tenant = self._state.tenants.get(lane.tenant)
        is_gated = bool(lane.needs) or (tenant is not None and tenant.is_capped)
        return Gate(lane.needs, lane.tenant) if is_gated else None

    def _gated(self, wants: Wants) -> tuple[Gated, ...]:
        ready: dict[Gate, int] = {}
        for turn in self._turns(wants.queues, wants.tenant):
            if turn.gate is not None and turn.gate not in wants.closed:
                ready[turn.gate] = ready.get(turn.gate, 0) + turn.ready
        return tuple(Gated(gate, count) for gate, count in ready.items())[:LANES_MAX]

    def _to_cancel(self, worker: WorkerId) -> tuple[JobId, ...]:
        asked = (row for row in self._state.at(Place.LEASED) if row.cancel_requested and row.owner == worker)
        return tuple(row.id for row in sorted(asked, key=lambda row: row.order))

    # -- while a lease is held ------------------------------------------------------------------------------

    @atomic
    async def renew(self, leases: Sequence[HeldLease]) -> Renewed:
        now = self._state.now_us()
        lost: list[JobId] = []
        cancelled: list[JobId] = []
        for held in leases:
            row = self._held(held.id, held.token, now)
            if row is None:
                lost.append(held.id)
                continue
            row.until = now + held.lease_us
            self._state.wake()
            if row.cancel_requested:
                cancelled.append(held.id)
        return Renewed(tuple(lost), tuple(cancelled))

    @atomic
    async def checkpoint(self, job: JobId, token: Token, cursor: str) -> bool:
        row = self._held(job, token, self._state.now_us())
        if row is None:
            return False
        row.cursor = cursor
        self._state.wake()
        return True

    @atomic
    async def report(self, reports: Sequence[ProgressReport]) -> None:
        for report in reports:
            row = self._state.rows.get(report.id)
            if row is not None and row.token == report.token:
                row.progress = report.progress
                self._state.wake()

    def _held(self, job: JobId, token: Token, now: Instant) -> JobRow | None:
        """The job, if this token holds it. An expired lease does not count: the next exchange reclaims it."""
        row = self._state.rows.get(job)
        return row if row is not None and row.token == token and row.until > now else None

    @atomic
    async def wait_us(self, queues: Sequence[str], closed: Sequence[Gate] = ()) -> int | None:
        if any(turn.gate is None or turn.gate not in closed for turn in self._turns(queues)):
            return 0
        due = [row.run_at for row in self._state.at(Place.SCHEDULED)]
        expiring = [row.until for row in self._state.at(Place.LEASED)]
        return max(min(due + expiring) - self._state.now_us(), 0) if due or expiring else None

    @atomic
    async def traces(self, leases: Sequence[HeldLease]) -> Mapping[JobId, str]:
        rows = self._state.rows
        held = [row for each in leases if (row := rows.get(each.id)) is not None and row.token == each.token]
        return {row.id: row.new.trace for row in held if row.new.trace is not None}


class MemoryBlockingSubmission:
    def __init__(self, state: MemoryState) -> None:
        self._state = state

    def submit(self, jobs: Sequence[NewJob]) -> list[Submitted]:
        return self._state.submit_all(jobs)


class MemoryOperations:
    def __init__(self, state: MemoryState) -> None:
        self._state = state

    @atomic
    async def cancel(self, job: JobId) -> CancelResult:
        row = self._state.rows.get(job)
        if row is None:
            return CancelResult.UNKNOWN
        if row.place in FINAL:
            return CancelResult.FINISHED
        if row.place is Place.LEASED:
            row.cancel_requested = True
            self._state.wake()
            return CancelResult.REQUESTED
        self._state.move(row, Place.CANCELLED, self._state.now_us())
        return CancelResult.CANCELLED

    @atomic
    async def retry(self, which: JobFilter, limit: int) -> list[JobId]:
        now = self._state.now_us()
        rows = self._select(which, (Place.FAILED, Place.CANCELLED), limit)
        for row in rows:
            row.attempts, row.run_at, row.result = 0, now, None
            row.cancel_requested, row.last_token = False, None
            self._state.move(row, Place.READY, now)
        return [row.id for row in rows]

    @atomic
    async def discard(self, which: JobFilter, limit: int) -> list[JobId]:
        rows = self._select(which, FINAL, limit)
        for row in rows:
            self._state.delete(row)
        return [row.id for row in rows]

    @atomic
    async def prune(self, keep_us: int, limit: int) -> int:
        now = self._state.now_us()
        old = [row for row in self._state.at(*FINAL) if row.finished_at <= now - keep_us]
        old = nsmallest(limit, old, key=lambda row: (row.finished_at, row.order))
        for row in old:
            self._state.delete(row)
        expired = [name for name, key in self._state.keys.items() if key.expires_at <= now]
        for name in expired[: max(limit, 0) * KEYS_PER_JOB]:
            del self._state.keys[name]
        return len(old)

    def _select(self, which: JobFilter, places: Sequence[Place], limit: int) -> list[JobRow]:
        matching = (row for row in self._state.at(*places) if matches(row, which))
        return nsmallest(limit, matching, key=lambda row: row.order)
