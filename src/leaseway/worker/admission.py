"""submit ─► store ─► exchange ─► [admit (lane, limits, budget)] ─► run handler ─► settle

Jobs that need limits or budgets wait behind a gate until this worker has what they need: a permit of each of their
limits, taken in one call, a place under the concurrency limit of their tenant, and a budget that is not used up. Only
then are they claimed, and exactly as many as may start. A closed gate costs nothing until the time at which it may
open, which the limiter has named.

    exchange reports gates with ready jobs ─► take permits ─► admits, for the next exchange ─► leases with their permits
                                                └─► closed until …, for the next exchange ─► the store closes the lanes

The store reports a bounded number of gates, tenants in turn, and leaves out the lanes that a worker has closed. So a
worker sees the gates of every tenant, however many closed gates one of them has, and a refusal of the limiter counts
for all workers.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Set
from itertools import islice

from leaseway.domain.errors import LeasewayError, TransientError, UnknownLimit
from leaseway.domain.exchange import CLOSED_US_MAX, GATES_MAX, LANES_MAX, WHY_LENGTH_MAX, Admit, Closing, Gate, Gated
from leaseway.domain.ids import SECOND_US
from leaseway.domain.limits.buckets import CONCURRENCY_REACHED, Granted, Never, Verdict, Wait
from leaseway.domain.limits.limit import PermitRequest
from leaseway.domain.requirements import readable_needs
from leaseway.domain.tenant import Tenant
from leaseway.domain.validators import printable
from leaseway.worker.environment import Environment
from leaseway.worker.limiter_client import LimiterClient
from leaseway.worker.permit_queue import NO_PERMIT, GateState, Permit, PermitRequests, choose_together, make_permit
from leaseway.worker.settle import Attempt

SHARED_SECONDS_MIN = 1.0
"""Gates that are closed for a shorter time are not closed in the store, unless that makes room for other gates."""
REFUSALS_MAX = 10
"""How many gates may refuse before the permits of others are used."""
ADMIT_SECONDS = 0.025
"""The pause between two requests for the same gate. Permits gather meanwhile, and one exchange starts several jobs."""
BEGUN_SECONDS = 1.0
"""How soon to check again whether jobs that have begun to call still wait for the same limits."""
RECHECK_SECONDS = 0.1
"""How soon to check again whether the jobs that were started have made their calls."""
CLOSED_SECONDS_MAX = CLOSED_US_MAX / SECOND_US
"""A gate is tried again after this time at the latest, because the definition of a limit may have changed."""
UNKNOWN_SECONDS = 10.0
TENANTS_SECONDS = 10.0
"""How long a worker caches the settings of tenants."""


def count_begun(held: Iterable[Attempt], tenant: str) -> int:
    """The jobs of a tenant that may have to wait in place."""
    return sum(1 for each in held if each.lease.needs and each.lease.tenant == tenant)


class Admission:
    def __init__(self, environment: Environment, limiter: LimiterClient) -> None:
        self._environment = environment
        self._limiter = limiter
        limiter.on_ended = self._reopen
        self._gates: dict[Gate, GateState] = {}
        self._tenants: dict[str, Tenant] = {}
        self._tenants_at = float("-inf")
        self._about_to_call: Counter[Gate] = Counter()
        self._room_of: Callable[[str], int] = lambda _: 0
        self._unused: list[Permit] = []
        self._ended: list[PermitRequest] = []
        self._closings: dict[Gate, tuple[float, str]] = {}
        """Closed gates that the store does not know yet: until when and why."""
        self._openings: set[Gate] = set()
        """Gates that the store has closed and that may be open now."""
        self._is_cut = False
        """The store may have more gates to report than the last reply contained."""
        self.has_news = False
        """The store does not know yet which of the reported gates are closed. If there are more gates than one reply
        contains, it reports others in return."""
        self.wanted = asyncio.Event()
        """Jobs wait behind a gate that may open, or something else has changed."""

    # -- called by the worker's loop --------------------------------------------------------------------------------

    def learn(self, gated: Sequence[Gated]) -> bool:
        """From the reply to an exchange: the gates behind which jobs are ready. The store leaves out closed gates, so
        this worker remembers those that it has closed, and tries them at their time. Returns whether the next exchange
        is worthwhile because a gate is new. If there are more gates than one reply contains, it is worthwhile only
        after these have been tried: see `has_news`."""
        now, before = self._now(), self._gates
        self._is_cut, self.has_news = len(gated) >= LANES_MAX, False
        # The gates come in the order in which their lanes are served. Keep it, or the first gate would take all room.
        self._gates = {}
        for each in gated:
            state = before.get(each.gate) or GateState(each.gate, readable_needs(each.gate.needs).limits)
            state.ready = each.ready
            if state.is_shared:
                self._opened_by_store(state)
            self._gates[each.gate] = state
        for gate, state in before.items():
            if gate in self._gates:
                continue
            if state.all_permits:
                state.ready = 0
                self._gates[gate] = state
            elif state.closed_until > now and len(self._gates) < GATES_MAX:
                self._gates[gate] = state
        if gated:
            self.wanted.set()
        return not self._is_cut and not self._gates.keys() <= before.keys()

    def _opened_by_store(self, state: GateState) -> None:
        """Its lanes were closed, and are open: at their time, or because a limit, a budget or a tenant has changed."""
        state.closed_until, state.is_shared = self._now(), False
        self._tenants_at = min(self._tenants_at, self._now() - TENANTS_SECONDS)
        self._limiter.forget_definitions()

    def take_closings(self) -> tuple[Closing, ...]:
        """The gates that the store shall close or open, for the exchange that is sent now."""
        now, closings = self._now(), self._closings
        waits = [(gate, int((until - now) * SECOND_US), why) for gate, (until, why) in closings.items()]
        closed = [Closing(gate, wait_us, why) for gate, wait_us, why in waits if wait_us > 0]
        for closing in closed:
            if (state := self._gates.get(closing.gate)) is not None:
                state.is_shared = True
        opened = sorted(self._openings)[: GATES_MAX - len(closed)]
        self._openings -= set(opened)
        self._closings, self.has_news = {}, False
        return (*closed, *(Closing(gate, 0, "") for gate in opened))

    def admits(self) -> tuple[Admit, ...]:
        """The permits that are still valid, for the exchange that is sent now."""
        for state in self._gates.values():
            permits, state.permits, state.offered = state.all_permits, [], []
            for permit in permits:
                (state.offered if self._limiter.is_valid(permit) else self._unused).append(permit)
        offering = (state for state in self._gates.values() if state.offered)
        return tuple(Admit(state.gate, len(state.offered)) for state in islice(offering, GATES_MAX))

    def known(self) -> tuple[Gate, ...]:
        """Gates that a poll can leave out: jobs are ready behind them, and this worker asks the limiter itself. Gates
        that seem to have no jobs are not left out, because a late reply may have been outdated; nor are those that
        the store has closed, because it may open them before their time."""
        busy = (gate for gate, state in self._gates.items() if state.ready > 0 and not state.is_shared)
        return tuple(sorted(islice(busy, GATES_MAX)))

    def assign(self, claimed: Iterable[Attempt]) -> list[Attempt]:
        """Give each claimed job the permit that admitted it. Permits that are left, because other workers were faster,
        are returned."""
        attempts = list(claimed)
        for attempt in attempts:
            state = self._gates.get(Gate(attempt.lease.needs, attempt.lease.tenant))
            if state is not None and state.offered:
                attempt.permit = state.offered.pop()
                requests = attempt.permit.granted.asks
                attempt.tenant_permit = next((each for each in requests if each not in state.requests), None)
        for state in self._gates.values():
            self._unused += state.offered
            state.offered = []
        if self._unused:
            self.wanted.set()
        return attempts

    def end(self, attempt: Attempt) -> None:
        """An attempt ended: its place under the tenant's concurrency limit is free, and a permit that it did not use is
        returned. The start itself stays counted."""
        if attempt.permit is not None:
            self._unused.append(attempt.permit.without(attempt.tenant_permit))
        if attempt.tenant_permit is not None:
            self._ended.append(attempt.tenant_permit)
        attempt.permit = attempt.tenant_permit = None
        self.wanted.set()

    def tenant_calls(self, attempts: Iterable[Attempt]) -> dict[PermitRequest, int]:
        """How many places these attempts, and those that may be claimed next, take under the limits of tenants."""
        counts = {PermitRequest(each.limit, each.limit): 0 for each in self._tenants.values() if each.is_capped}
        for attempt in attempts:
            if attempt.tenant_permit is not None:
                counts[attempt.tenant_permit] = counts.get(attempt.tenant_permit, 0) + 1
        permits = [permit for state in self._gates.values() for permit in state.all_permits] + self._unused
        granted = (request for permit in permits for request in permit.granted.asks if request in counts)
        for request in [*granted, *self._ended]:
            counts[request] = counts.get(request, 0) + 1
        return counts

    # -- beside the loop --------------------------------------------------------------------------------------------

    async def wait(self, has_room: bool) -> None:
        """Wait until there may be a permit to take or to return. Without room, wait until a job ends."""
        opens = min((state.closed_until for state in self._gates.values() if state.ready > 0), default=None)
        seconds = max(opens - self._now(), ADMIT_SECONDS) if opens is not None and has_room else None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.wanted.wait()
        self.wanted.clear()

    async def open_next(self, room: int, held: Callable[[], Iterable[Attempt]], places: Callable[[str], int]) -> bool:
        """Take permits for gates that may be open, while there is room. `held`: the attempts that this worker holds.
        `places`: how many jobs of a tenant can wait in place, which each job with requirements may have to do.
        Returns whether an exchange is worthwhile: a permit was granted, or a gate is closed."""
        about_to_call = (Gate(each.lease.needs, each.lease.tenant) for each in held() if each.permit is not None)
        self._about_to_call = Counter(about_to_call)
        # Counted when it is used: jobs of an exchange may arrive while the limiter or the ledger is asked.
        self._room_of = lambda tenant: places(tenant) - count_begun(held(), tenant) - self._count_permits(tenant)
        await self._return_unused()
        if not any(state.ready > 0 for state in self._gates.values()):
            return False
        await self._read_tenants()
        if self._tenants_at == float("-inf"):
            # It is not known which tenants are capped, so nothing may start that a cap could forbid.
            for state in self._gates.values():
                self._close(state, self._limiter.pause_seconds(5), "the settings of its tenant cannot be read")
            return False
        is_granted = False
        room -= sum(len(state.all_permits) for state in self._gates.values())
        tried: set[Gate] = set()
        refused = 0
        # An exchange may report other gates meanwhile, so the next ones are chosen anew each time.
        while room > 0 and (chosen := self._next(tried, room)):
            tried.update(state.gate for state, _ in chosen)
            await self._return_unused()  # the permit of a job that has ended may be the one that a gate needs
            room -= await self._open_together(chosen)
            for state, _ in chosen:
                if self._gates.get(state.gate) is not state:
                    # An exchange has reported meanwhile that no job waits there any more.
                    self._unused += state.permits
                    state.permits = []
                    self.wanted.set()
                is_granted |= bool(state.permits)
                refused = 0 if state.permits else refused + 1
            if is_granted and refused >= REFUSALS_MAX:
                self.wanted.set()
                return True
        # Until the store knows of a closed gate, it cannot open it when a limit or a budget changes.
        self.has_news = room > 0 and bool(self._closings)
        return is_granted or self.has_news

    def _count_permits(self, tenant: str) -> int:
        return sum(len(state.all_permits) for gate, state in self._gates.items() if gate.tenant == tenant)

    def _next(self, tried: Set[Gate], room: int) -> list[tuple[GateState, int]]:
        """The first gate that may be open and was not tried yet, and those that can be asked for together with it. Each
        with the number of permits to ask for."""
        now, untried = self._now(), (state for gate, state in self._gates.items() if gate not in tried)
        waiting = (each for each in untried if each.ready > 0 and each.closed_until <= now and not each.all_permits)
        return choose_together(waiting, self._requests, lambda tenant: min(room, self._room_of(tenant)), room)

    async def _open_together(self, chosen: Sequence[tuple[GateState, int]]) -> int:
        """A store answers requests that arrive together in one transaction."""
        if len(chosen) == 1:
            return await self._open(*chosen[0])
        async with asyncio.TaskGroup() as group:
            opening = [group.create_task(self._open(state, count)) for state, count in chosen]
        return sum(task.result() for task in opening)

    async def leave(self) -> None:
        """The worker stops: return all permits, so that other workers need not wait until they expire."""
        for state in self._gates.values():
            self._unused += state.all_permits
            state.permits, state.offered = [], []
        await self._return_unused()

    async def _return_unused(self) -> None:
        """Until the limiter has answered, a place is counted as taken: too long rather than twice."""
        while self._unused:  # ends, because what was tried is removed and permits do not come faster than jobs
            granted = self._unused[0].granted
            same = [permit for permit in self._unused if permit.granted is granted]
            try:
                if granted.asks:
                    await self._limiter.give_back(granted, len(same))
            finally:  # nothing is returned twice, even if this task is cancelled here
                for permit in same:
                    self._unused.remove(permit)
        while self._ended:
            try:
                await self._limiter.end_calls((self._ended[0],))
            finally:
                del self._ended[0]

    async def _open(self, state: GateState, count: int) -> int:
        """Take up to `count` permits for one gate. Returns how many were granted."""
        state.is_shared = False
        try:
            if (wait_seconds := await self._budget_wait_seconds(state)) > 0:
                self._close(state, wait_seconds, "its budget is used up", is_shared=True)
                return 0
            if state.gate.needs and (count := min(count, self._room_of(state.gate.tenant))) < 1:
                self._close(state, BEGUN_SECONDS, "too many jobs of its tenant have begun, and wait in this worker")
                return 0
            requests = self._requests(state)
            if self._limiter.is_waited_for(requests):
                self._close(state, BEGUN_SECONDS, "jobs that have begun wait for the same limits")
                return 0
            if not self._limiter.takes_before_claim(state.requests):
                count, requests = min(count, await self._expected(state)), requests[len(state.requests) :]
            if not requests or count < 1:
                state.permits = [NO_PERMIT] * count
                return count
            verdict, sent_at = await self._grant(state, requests, count)
        except LeasewayError as error:
            self._close_after_error(state, error)
            return 0
        match verdict:
            case Granted(count=granted):
                state.permits = [make_permit(verdict, sent_at)] * granted
                self._close(state, ADMIT_SECONDS, "")
                return granted
            case Wait(wait_us, name, why):
                state.waits_for = name if why == CONCURRENCY_REACHED else ""
                self._close(state, wait_us / SECOND_US, f"limit {name}: {why}", is_shared=True)
            case Never(name, most):
                why = f"limit {name}: never grants more than {most:,} at once"
                self._close(state, CLOSED_SECONDS_MAX, why, is_shared=True)
        return 0

    async def _grant(self, state: GateState, requests: PermitRequests, count: int) -> tuple[Verdict, float]:
        try:
            return await self._limiter.grant(requests, count)
        except UnknownLimit:
            # The limiter has lost its definitions. Those of the code were declared again, the caps of tenants were not.
            if (tenant := self._tenants.get(state.gate.tenant)) is None or not tenant.is_capped:
                raise
            await self._limiter.declare([tenant.definition()])
        return await self._limiter.grant(requests, count)

    def _close_after_error(self, state: GateState, error: LeasewayError) -> None:
        if isinstance(error, TransientError):
            # It is not known how much was used: nothing starts, and no job fails. Other workers may reach the limiter.
            self._environment.events.emit("limiter_unavailable", error=error)
            return self._close(state, self._limiter.pause_seconds(5), "the limiter cannot be reached")
        # An operator has to fix this. Jobs behind other gates continue.
        if is_unknown := isinstance(error, UnknownLimit):
            self._environment.events.emit("limit_unknown", error=error)
        self._close(state, UNKNOWN_SECONDS, str(error), is_shared=is_unknown)

    async def _expected(self, state: GateState) -> int:
        """Permits of short windows would expire before the call, so they are taken by the call itself. Here the worker
        only estimates how many jobs are worth starting."""
        units, wait = await self._limiter.expected(state.requests)
        units -= self._about_to_call.get(state.gate, 0)
        if wait is not None:
            state.waits_for = wait.name if wait.why == CONCURRENCY_REACHED else ""
            self._close(state, wait.wait_us / SECOND_US, f"limit {wait.name}: {wait.why}", is_shared=True)
        elif units < 1:
            self._close(state, RECHECK_SECONDS, "")
        return max(units, 0)

    async def _budget_wait_seconds(self, state: GateState) -> float:
        """How long until all budgets have something left; 0 if they have it now."""
        if not (budgets := readable_needs(state.gate.needs).budgets):
            return 0.0
        return await self._environment.ledger.reads.wait_us(budgets) / SECOND_US

    def _requests(self, state: GateState) -> PermitRequests:
        tenant = self._tenants.get(state.gate.tenant)
        if tenant is None or not tenant.is_capped:
            return state.requests
        return (*state.requests, PermitRequest(tenant.limit, tenant.limit))

    async def _read_tenants(self) -> None:
        # Jobs that need nothing are behind a gate only because of a cap. If none is known, it was set just now.
        is_outdated = any(
            state.ready > 0 and not state.gate.needs and not self._requests(state) for state in self._gates.values()
        )
        if self._now() - self._tenants_at < TENANTS_SECONDS and not is_outdated:
            return
        if is_outdated:
            self._tenants_at = float("-inf")
        try:
            self._tenants = {tenant.name: tenant for tenant in await self._environment.store.tenants.all()}
            self._tenants_at = self._now()
        except LeasewayError as error:
            self._environment.events.emit("store_unavailable", doing="read tenants", error=error)

    def _close(self, state: GateState, seconds: float, why: str, *, is_shared: bool = False) -> None:
        """`is_shared`: the limiter or the ledger would give every worker this answer."""
        seconds_max = min(seconds, CLOSED_SECONDS_MAX)
        state.closed_until = self._now() + seconds_max
        # When a call ends is not known, and the worker of that call tries the gate again at once.
        is_worthwhile = self._is_cut or (seconds_max >= SHARED_SECONDS_MIN and not state.waits_for)
        if is_shared and is_worthwhile and len(self._closings) < GATES_MAX:
            self._closings[state.gate] = (state.closed_until, printable(why)[:WHY_LENGTH_MAX])
        else:
            self._closings.pop(state.gate, None)
        if why and why != state.why:
            self._environment.events.emit("gate_closed", tenant=state.gate.tenant, why=why, seconds=round(seconds, 3))
        state.why = why or state.why

    def _reopen(self, ended: PermitRequests) -> None:
        """When a call of another process ends is not known. When one of this process ends, the gate can open at
        once."""
        names = {request.name for request in ended}
        for state in self._gates.values():
            if state.waits_for in names:
                state.closed_until, state.waits_for = self._now(), ""
                if self._closings.pop(state.gate, None) is None and state.is_shared:
                    self._openings.add(state.gate)
                state.is_shared = False
                self.wanted.set()

    def _now(self) -> float:
        return self._environment.clock.monotonic()
