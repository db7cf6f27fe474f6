"""The executable specification of a store: every rule once, in memory.

Every method is atomic, because nothing in it awaits.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from heapq import nsmallest
from typing import TypeVar

from msgspec.structs import replace

from leaseway.domain.exchange import (
    BACKLOG_MAX,
    LANES_MAX,
    PROMOTE_MAX,
    RECLAIM_MAX,
    REOPEN_MAX,
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
from leaseway.domain.lane import (
    Flow,
    FlowTimes,
    LaneTurn,
    admits_by_gate,
    advance,
    by_flow,
    covering_pause,
    distinct_closings,
    divide_claim,
)
from leaseway.domain.outcome import expired_lease, state_after_expiry, usable_lease_us
from leaseway.domain.requirements import quoted_name
from leaseway.stores.memory.state import (
    FINAL,
    JobRow,
    Lane,
    MemoryState,
    Place,
    atomic,
    build_error,
    build_lease,
    matches,
    place_after,
    start_time,
    urgency,
)

NO_TIMES = FlowTimes(0, 0, 0)
T = TypeVar("T")
AFTER_EXPIRY = {State.PENDING: Place.READY, State.FAILED: Place.FAILED, State.CANCELLED: Place.CANCELLED}


def take_turns(items: Iterable[T], group: Callable[[T], Hashable], limit: int) -> list[T]:
    """The first item of each group, then the second of each, up to the limit. Items are in the order of their group."""
    ranks: Counter[Hashable] = Counter()
    ranked: list[tuple[int, T]] = []
    for item in items:
        ranks[group(item)] += 1
        ranked.append((ranks[group(item)], item))
    return [item for _, item in nsmallest(limit, ranked, key=lambda each: each[0])]


class MemoryJobs:
    def __init__(self, state: MemoryState) -> None:
        self._state = state

    async def submit(self, jobs: Sequence[NewJob]) -> list[Submitted]:
        return self._state.submit_all(jobs)

    # -- exchange -------------------------------------------------------------------------------------------

    @atomic
    async def exchange(self, call: Exchange) -> ExchangeReply:
        now = self._state.now_us()
        self._state.refuse_foreign_ids(self._children(call.settlements))
        lost = tuple(settlement.id for settlement in call.settlements if not self._settle(settlement, now))
        self._reclaim(now)
        self._promote(now)
        self._reopen(now)
        if call.wants:
            self._close(call.wants, now)
        leased = self._lease(call.wants, call.worker, call.repeat, now) if call.wants else []
        gated = self._gated(call.wants) if call.wants and call.wants.count > 0 else ()
        return ExchangeReply(tuple(map(build_lease, leased)), lost, self._to_cancel(call.worker), gated)

    def _children(self, settlements: Sequence[Settlement]) -> Iterator[NewJob]:
        """The children of the settlements that will be accepted: of two for one job, the first."""
        accepted: set[JobId] = set()
        for settlement in settlements:
            row = self._state.rows.get(settlement.id)
            if row is not None and row.token == settlement.token and row.id not in accepted:
                accepted.add(row.id)
                yield from settlement.children

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
        oldest = nsmallest(BACKLOG_MAX, expired, key=lambda row: (row.until, row.order))
        for row in take_turns(oldest, lambda row: row.lane.number, RECLAIM_MAX):
            state = state_after_expiry(row.attempts, row.new.attempts_max, row.cancel_requested)
            if state is not State.CANCELLED:
                row.errors.append(build_error(row, expired_lease(row.owner), now))
            self._state.move(row, AFTER_EXPIRY[state], now)

    def _promote(self, now: Instant) -> None:
        if self._promote_earliest(self._state.at(Place.SCHEDULED), PROMOTE_MAX, now) == PROMOTE_MAX:
            self._promote_by_lane(now)

    def _promote_earliest(self, scheduled: Iterable[JobRow], limit: int, now: Instant) -> int:
        due = (row for row in scheduled if row.run_at <= now)
        earliest = nsmallest(limit, due, key=lambda row: (row.run_at, row.order))
        for row in earliest:
            self._state.move(row, Place.READY, now)
        return len(earliest)

    def _promote_by_lane(self, now: Instant) -> None:
        waiting = {lane.number: lane.places[Place.SCHEDULED] for lane in self._state.lanes.values()}
        visited = sorted(n for n, rows in waiting.items() if rows and n > self._state.promoted_upto)[:PROMOTE_MAX]
        due = [n for n in visited if any(row.run_at <= now for row in waiting[n].values())]
        for number in due:
            self._promote_earliest(list(waiting[number].values()), PROMOTE_MAX // len(due), now)
        self._state.promoted_upto = visited[-1] if len(visited) == PROMOTE_MAX else 0

    def _reopen(self, now: Instant) -> None:
        """Open the lanes whose time has come. A worker asks the limiter again."""
        closed = [lane for lane in self._state.lanes.values() if lane.closed_until is not None]
        due = [(lane.closed_until, lane.number, lane) for lane in closed if (lane.closed_until or 0) <= now]
        first = [lane for _, _, lane in nsmallest(BACKLOG_MAX, due)]
        for lane in take_turns(first, lambda lane: lane.tenant, REOPEN_MAX):
            lane.open()

    def _close(self, wants: Wants, now: Instant) -> None:
        """Close the lanes of these gates. A lane without a gate stays open."""
        for closing in distinct_closings(wants.closed):
            for queue in wants.queues:
                lane = self._state.lanes.get((queue, closing.gate.tenant, closing.gate.needs))
                if lane is not None and self._gate(lane) is not None and wants.tenant in (None, lane.tenant):
                    lane.close(closing, now)

    def _lease(self, wants: Wants, worker: WorkerId, repeat: bool, now: Instant) -> list[JobRow]:
        adopted = self._adopt(wants, worker, now) if repeat else []
        return adopted or self._claim(wants, worker, now)

    def _adopt(self, wants: Wants, worker: WorkerId, now: Instant) -> list[JobRow]:
        """Leases that the first try of this exchange was granted; its reply was lost."""
        granted = [row for row in self._state.at(Place.LEASED) if (row.token, row.owner) == (wants.token, worker)]
        for row in granted:
            row.until = now + usable_lease_us(row.new.lease_us)
            self._state.wake()
        return sorted(granted, key=lambda row: row.order)[: wants.repeat_max]

    def _claim(self, wants: Wants, worker: WorkerId, now: Instant) -> list[JobRow]:
        admits = admits_by_gate(wants.admits)
        lanes = {lane.number: lane for lane in self._with_work(wants.queues, wants.tenant)}
        open_ = [lane for lane in lanes.values() if self._is_open_for(lane, admits)]
        turns = self._turns(open_, wants.queues)[:LANES_MAX]
        shares = divide_claim(wants.count, turns, admits)
        self._advance(turns, shares, lanes)
        ready = [(lanes[lane].places[Place.READY], portion) for lane, portion in shares.items()]
        claimed = [row for rows, portion in ready for row in nsmallest(portion, rows.values(), key=urgency)]
        for row in claimed:
            # The attempt is counted at the claim, so that a job that kills its worker is not retried for ever.
            row.attempts += 1
            row.fence += 1
            self._state.move(row, Place.LEASED, now)
            row.token, row.owner, row.until = wants.token, worker, now + usable_lease_us(row.new.lease_us)
            if row.last_token == wants.token:
                # A delayed copy of a claim: from now on the token stands for the new lease.
                row.last_token = None
        return claimed

    def _is_open_for(self, lane: Lane, admits: Mapping[Gate, int]) -> bool:
        """A worker that has what a gate needs may enter although the lane is marked as closed."""
        gate = self._gate(lane)
        return lane.closed_until is None if gate is None else gate in admits

    def _advance(self, turns: Sequence[LaneTurn], shares: Mapping[int, int], lanes: Mapping[int, Lane]) -> None:
        flows, vtimes = advance(turns, shares)
        for flow, times in flows.items():
            before = self._state.flows.get(flow, NO_TIMES)
            floor = before.lane_floor if times.lane_floor is None else times.lane_floor
            self._state.flows[flow] = replace(times, lane_floor=floor)
        for number, vtime in vtimes.items():
            lanes[number].vtime = vtime

    def _with_work(self, queues: Sequence[str], tenant: str | None = None) -> list[Lane]:
        pauses = self._state.pauses.values()
        wanted = [lane for lane in self._state.lanes.values() if lane.queue in queues and tenant in (None, lane.tenant)]
        return [lane for lane in wanted if lane.ready and covering_pause(lane.queue, lane.tenant, pauses) is None]

    def _turns(self, lanes: Sequence[Lane], queues: Sequence[str]) -> list[LaneTurn]:
        """These lanes in the order in which they are served: the first lane of each flow, then the second of each."""
        times = self._state.flows
        floor = max((each.vfloor for (queue, _), each in times.items() if queue in queues), default=0)
        ranks: Counter[Flow] = Counter()
        turns: list[tuple[int, int, str, str, LaneTurn]] = []
        for lane in sorted(lanes, key=lambda lane: (lane.vtime, lane.needs)):
            flow = times.get(lane.flow, NO_TIMES)
            place, lane_place = max(flow.vtime, floor), max(lane.vtime, flow.lane_floor or 0)
            turn = LaneTurn(lane.number, lane.ready, self._weight(lane), self._gate(lane), lane.flow, place, lane_place)
            ranks[lane.flow] += 1
            # Of several flows at the floor, the one that has been behind for longest comes first.
            turns.append((ranks[lane.flow], flow.vtime, *lane.flow, turn))
        return [turn for *_, turn in sorted(turns, key=lambda each: each[:4])]

    def _weight(self, lane: Lane) -> int:
        tenant = self._state.tenants.get(lane.tenant)
        return 1 if tenant is None else tenant.weight

    def _gate(self, lane: Lane) -> Gate | None:
        tenant = self._state.tenants.get(lane.tenant)
        is_gated = bool(lane.needs) or (tenant is not None and tenant.is_capped)
        return Gate(lane.needs, lane.tenant) if is_gated else None

    def _gated(self, wants: Wants) -> tuple[Gated, ...]:
        lanes = [lane for lane in self._with_work(wants.queues, wants.tenant) if lane.closed_until is None]
        turns = self._turns([lane for lane in lanes if self._gate(lane) is not None], wants.queues)
        listed = {turn.lane for of_flow in by_flow(turns).values() for turn in of_flow[:LANES_MAX]}
        ready: dict[Gate, int] = {}
        for turn in turns:
            if turn.lane in listed and turn.gate is not None:
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
        self._state.changed(row)
        return True

    @atomic
    async def report(self, reports: Sequence[ProgressReport]) -> None:
        for report in reports:
            row = self._state.rows.get(report.id)
            if row is not None and row.token == report.token:
                row.progress = report.progress
                self._state.changed(row)

    def _held(self, job: JobId, token: Token, now: Instant) -> JobRow | None:
        """The job, if this token holds it. An expired lease does not count: the next exchange reclaims it."""
        row = self._state.rows.get(job)
        return row if row is not None and row.token == token and row.until > now else None

    @atomic
    async def wait_us(self, queues: Sequence[str], closed: Sequence[Gate] = ()) -> int | None:
        now = self._state.now_us()
        open_ = [lane for lane in self._with_work(queues) if lane.closed_until is None]
        if any((gate := self._gate(lane)) is None or gate not in closed for lane in open_):
            return 0
        due = [row.run_at for row in self._state.at(Place.SCHEDULED)]
        due += [row.until for row in self._state.at(Place.LEASED)]
        due += [lane.closed_until for lane in self._state.lanes.values() if lane.closed_until is not None]
        return max(min(due) - now, 0) if due else None

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
    async def run_now(self, which: JobFilter, limit: int) -> list[JobId]:
        now = self._state.now_us()
        rows = self._select(which, (Place.SCHEDULED,), limit)
        for row in rows:
            row.run_at = min(row.run_at, now)
            self._state.move(row, Place.READY, now)
        return [row.id for row in rows]

    @atomic
    async def open_lanes(self, name: str, limit: int, tenant: str | None = None) -> int:
        quoted = quoted_name(name)
        closed = [lane for lane in self._state.lanes.values() if lane.closed_until is not None and quoted in lane.needs]
        found = [(lane.closed_until or 0, lane.number, lane) for lane in closed if tenant in (None, lane.tenant)]
        opened = nsmallest(max(limit, 0), found)
        for _, _, lane in opened:
            lane.open()
        self._state.wake()
        return len(opened)

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
        self._state.delete_empty_lanes(limit)
        return len(old)

    def _select(self, which: JobFilter, places: Sequence[Place], limit: int) -> list[JobRow]:
        matching = (row for row in self._state.at(*places) if matches(row, which))
        return nsmallest(limit, matching, key=lambda row: row.order)
