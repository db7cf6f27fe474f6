"""submit ─► store ─► exchange ─► [admit (lane, limits, budget)] ─► run handler ─► settle

Jobs that need limits or budgets wait behind a gate until this worker has what they need: a permit of each of their
limits, taken in one call, a place under the concurrency limit of their tenant, and a budget that is not used up. Only
then are they claimed, and exactly as many as may start. A closed gate costs nothing until the time at which it may
open, which the limiter has named.

    exchange reports gates with ready jobs ─► take permits ─► admits, for the next exchange ─► leases with their permits
                                                └─► closed until …
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice

from leaseway.domain.errors import LeasewayError, TransientError, UnknownLimit
from leaseway.domain.exchange import LANES_MAX, Admit, Gate, Gated
from leaseway.domain.ids import SECOND_US
from leaseway.domain.limits.buckets import CONCURRENCY_REACHED, Granted, Never, Wait
from leaseway.domain.limits.limit import PermitRequest
from leaseway.domain.requirements import parse_needs
from leaseway.domain.tenant import Tenant
from leaseway.worker.attempt import Attempt
from leaseway.worker.environment import Environment
from leaseway.worker.limiter_client import NO_PERMIT, LimiterClient, Permit, PermitRequests, make_permit

GATES_MAX = 1_000
"""The most gates that one call names. A worker with more gates learns of the others from time to time."""
ADMIT_SECONDS = 0.025
"""The pause between two requests for the same gate. Permits gather meanwhile, and one exchange starts several jobs."""
RECHECK_SECONDS = 0.1
"""How soon to check again whether the jobs that were started have made their calls."""
CLOSED_SECONDS_MAX = 60.0
"""A gate is tried again after this time at the latest, because the definition of a limit may have changed."""
UNKNOWN_SECONDS = 10.0
TENANTS_SECONDS = 10.0
"""How long a worker caches the settings of tenants."""


class GateState:
    """What this worker knows of one gate."""

    __slots__ = ("closed_until", "gate", "offered", "permits", "ready", "requests", "waits_for", "why")

    def __init__(self, gate: Gate, requests: PermitRequests) -> None:
        self.gate = gate
        self.requests = requests
        self.ready = 0
        self.closed_until = float("-inf")
        self.why = ""
        self.waits_for = ""
        """The limit whose concurrency is used up."""
        self.permits: list[Permit] = []
        """For jobs that the next exchange may bring."""
        self.offered: list[Permit] = []
        """For jobs of the exchange that is on its way."""

    @property
    def all_permits(self) -> list[Permit]:
        return self.permits + self.offered


class Admission:
    def __init__(self, environment: Environment, limiter: LimiterClient) -> None:
        self._environment = environment
        self._limiter = limiter
        limiter.on_ended = self._reopen
        self._gates: dict[Gate, GateState] = {}
        self._tenants: dict[str, Tenant] = {}
        self._tenants_at = float("-inf")
        self._about_to_call: Counter[Gate] = Counter()
        self._unused: list[Permit] = []
        self._ended: list[PermitRequest] = []
        self.wanted = asyncio.Event()
        """Jobs wait behind a gate that may open, or something else has changed."""

    # -- called by the worker's loop --------------------------------------------------------------------------------

    def learn(self, gated: Sequence[Gated], closed: Iterable[Gate]) -> bool:
        """From the reply to an exchange: the gates behind which jobs are ready. All other gates have none, except the
        closed ones, which the exchange was told to leave out. Returns whether a gate is new."""
        ready = {each.gate: each.ready for each in gated}
        is_news = not ready.keys() <= self._gates.keys()
        is_all = len(ready) < LANES_MAX
        for gate in self._gates.keys() - ready.keys() - set(closed):
            if self._gates[gate].all_permits:
                self._gates[gate].ready = 0
            elif is_all or self._gates[gate].ready < 1:
                del self._gates[gate]
        for gate, count in ready.items():
            state = self._gates.get(gate)
            if state is None:
                state = self._gates[gate] = GateState(gate, parse_needs(gate.needs).limits)
            state.ready = count
        # The gates come in the order in which their lanes are served. Keep it, or the first gate would take all room.
        quiet = {gate: state for gate, state in self._gates.items() if gate not in ready}
        self._gates = quiet | {gate: self._gates[gate] for gate in ready}
        if ready:
            self.wanted.set()
        return is_news

    def closed(self) -> tuple[Gate, ...]:
        """Gates that stay closed for a while. The exchange leaves them out, which makes room for others."""
        now = self._now()
        closed = (state.gate for state in self._gates.values() if state.closed_until > now and not state.all_permits)
        return tuple(islice(closed, GATES_MAX))

    def admits(self) -> tuple[Admit, ...]:
        """The permits that are still valid, for the exchange that is sent now."""
        for state in self._gates.values():
            permits, state.permits, state.offered = state.all_permits, [], []
            for permit in permits:
                (state.offered if self._limiter.is_valid(permit) else self._unused).append(permit)
        return tuple(Admit(state.gate, len(state.offered)) for state in self._gates.values() if state.offered)

    def known(self) -> tuple[Gate, ...]:
        """Gates that a poll can leave out: jobs are ready behind them, and this worker asks the limiter itself. Gates
        that seem to have no jobs are not left out, because a late reply may have been outdated."""
        busy = (gate for gate, state in self._gates.items() if state.ready > 0)
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

    async def open_next(self, room: int, held: Iterable[Attempt]) -> bool:
        """Take permits for gates that may be open, while there is room. `held`: the attempts that this worker holds.
        Returns whether a permit was granted."""
        about_to_call = (Gate(each.lease.needs, each.lease.tenant) for each in held if each.permit is not None)
        self._about_to_call = Counter(about_to_call)
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
        for state in list(self._gates.values()):
            if room <= 0:
                break
            if state.ready > 0 and not state.all_permits and state.closed_until <= self._now():
                room -= await self._open(state, min(room, state.ready))
                if self._gates.get(state.gate) is not state:
                    # An exchange has reported meanwhile that no job waits there any more.
                    self._unused += state.permits
                    state.permits = []
                    self.wanted.set()
                is_granted |= bool(state.permits)
        return is_granted

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
        try:
            if (wait_seconds := await self._budget_wait_seconds(state)) > 0:
                self._close(state, wait_seconds, "its budget is used up")
                return 0
            requests = self._requests(state)
            if not self._limiter.last_long(state.requests):
                count, requests = min(count, await self._expected(state)), requests[len(state.requests) :]
            if not requests or count < 1:
                state.permits = [NO_PERMIT] * count
                return count
            verdict, sent_at = await self._limiter.grant(requests, count)
        except LeasewayError as error:
            await self._close_after_error(state, error)
            return 0
        match verdict:
            case Granted(count=granted):
                state.permits = [make_permit(verdict, sent_at)] * granted
                self._close(state, ADMIT_SECONDS, "")
                return granted
            case Wait(wait_us, name, why):
                self._close(state, wait_us / SECOND_US, f"limit {name}: {why}")
                state.waits_for = name if why == CONCURRENCY_REACHED else ""
            case Never(name, most):
                self._close(state, CLOSED_SECONDS_MAX, f"limit {name}: never grants more than {most:,} at once")
        return 0

    async def _close_after_error(self, state: GateState, error: LeasewayError) -> None:
        if isinstance(error, UnknownLimit):
            # The limits may have moved to a new store. Declare the limits of tenants again.
            capped = [tenant.definition() for tenant in self._tenants.values() if tenant.is_capped]
            await self._limiter.declare(capped)
            self._environment.events.emit("limit_unknown", error=error)
            self._close(state, UNKNOWN_SECONDS, str(error))
        elif isinstance(error, TransientError):
            # It is not known how much was used: nothing starts, and no job fails.
            self._environment.events.emit("limiter_unavailable", error=error)
            self._close(state, self._limiter.pause_seconds(5), "the limiter cannot be reached")
        else:
            # An operator has to fix this. Jobs behind other gates continue.
            self._close(state, UNKNOWN_SECONDS, str(error))

    async def _expected(self, state: GateState) -> int:
        """Permits of short windows would expire before the call, so they are taken by the call itself. Here the worker
        only estimates how many jobs are worth starting."""
        units, wait = await self._limiter.expected(state.requests)
        units -= self._about_to_call.get(state.gate, 0)
        if wait is not None:
            self._close(state, wait.wait_us / SECOND_US, f"limit {wait.name}: {wait.why}")
        elif units < 1:
            self._close(state, RECHECK_SECONDS, "")
        return max(units, 0)

    async def _budget_wait_seconds(self, state: GateState) -> float:
        """How long until all budgets have something left; 0 if they have it now."""
        budgets = parse_needs(state.gate.needs).budgets
        if not budgets:
            return 0.0
        return await self._environment.ledger.wait_us(budgets) / SECOND_US

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
            tenants = await self._environment.store.tenants.all()
            self._tenants = {tenant.name: tenant for tenant in tenants}
            self._tenants_at = self._now()
        except LeasewayError as error:
            self._environment.events.emit("store_unavailable", doing="read tenants", error=error)

    def _close(self, state: GateState, seconds: float, why: str) -> None:
        state.closed_until = self._now() + min(seconds, CLOSED_SECONDS_MAX)
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
                self.wanted.set()

    def _now(self) -> float:
        return self._environment.clock.monotonic()
