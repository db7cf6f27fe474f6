"""submit ─► store ─► exchange ─► [admit (lane, limits, budget)] ─► run handler ─► settle

Jobs that need something wait behind a gate until this worker has it: tokens of all their limits, taken in one call, a
seat of their tenant, and a budget that is not used up. Only then are they claimed, exactly as many as may start. A gate
that stays shut costs nothing until the instant at which it may open: the limiter has named it.

    exchange says which gates have jobs ─► ask the limiter ─► admits, for the next exchange ─► leases with their tokens
                                             └─► shut until …
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
from leaseway.worker.limiter_client import NO_PERMIT, Asks, LimiterClient, Permit, make_permit

GATES_MAX = 1_000
"""So many gates are named in one call. Whoever has more learns of the rest from time to time."""
ADMIT_SECONDS = 0.025
"""Between two asks for the same gate: meanwhile tokens gather, and one exchange starts several jobs."""
LOOK_SECONDS = 0.1
"""Between two looks whether those who have started have called by now."""
SHUT_SECONDS_MAX = 60.0
"""After this time a gate is tried again, whatever was said: a definition may have changed."""
UNKNOWN_SECONDS = 10.0
TENANTS_SECONDS = 10.0
"""How long a worker believes what it has read about tenants."""


class GateState:
    """One gate, as this worker knows it."""

    __slots__ = ("asks", "gate", "hand", "offered", "ready", "seat_of", "shut_until", "why")

    def __init__(self, gate: Gate, asks: Asks) -> None:
        self.gate = gate
        self.asks = asks
        self.ready = 0
        self.shut_until = float("-inf")
        self.why = ""
        self.seat_of = ""
        """The limit for whose seat it waits."""
        self.hand: list[Permit] = []
        """For jobs that the next exchange may bring."""
        self.offered: list[Permit] = []
        """For those of the exchange that is under way."""

    @property
    def tokens(self) -> list[Permit]:
        return self.hand + self.offered


class Admission:
    def __init__(self, world: Environment, tokens: LimiterClient) -> None:
        self._world = world
        self._tokens = tokens
        tokens.on_left = self._reopen
        self._doors: dict[Gate, GateState] = {}
        self._tenants: dict[str, Tenant] = {}
        self._tenants_at = float("-inf")
        self._about_to_call: Counter[Gate] = Counter()
        self._unused: list[Permit] = []
        self._left: list[PermitRequest] = []
        self.wanted = asyncio.Event()
        """Jobs wait behind a gate that may open, or something else has changed."""

    # -- what the worker's loop says and asks -----------------------------------------------------------------------

    def learn(self, gated: Sequence[Gated], closed: Iterable[Gate]) -> bool:
        """From an exchange: behind which gates jobs are ready. All others have none, except those of which we wanted no
        word. Whether it was news."""
        ready = {each.gate: each.ready for each in gated}
        is_news = not ready.keys() <= self._doors.keys()
        is_all = len(ready) < LANES_MAX
        for gate in self._doors.keys() - ready.keys() - set(closed):
            if self._doors[gate].tokens:
                self._doors[gate].ready = 0
            elif is_all or self._doors[gate].ready < 1:
                del self._doors[gate]
        for gate, count in ready.items():
            door = self._doors.get(gate)
            if door is None:
                door = self._doors[gate] = GateState(gate, parse_needs(gate.needs).limits)
            door.ready = count
        # Whoever is furthest behind asks first, or the first one would take all the room each time.
        quiet = {gate: door for gate, door in self._doors.items() if gate not in ready}
        self._doors = quiet | {gate: self._doors[gate] for gate in ready}
        if ready:
            self.wanted.set()
        return is_news

    def closed(self) -> tuple[Gate, ...]:
        """Gates that stay shut for a while: room for word of others, if there are many."""
        now = self._now()
        shut = (door.gate for door in self._doors.values() if door.shut_until > now and not door.tokens)
        return tuple(islice(shut, GATES_MAX))

    def admits(self) -> tuple[Admit, ...]:
        """What is in hand and still good, for the exchange that leaves now."""
        for door in self._doors.values():
            tokens, door.hand, door.offered = door.tokens, [], []
            for token in tokens:
                (door.offered if self._tokens.is_good(token) else self._unused).append(token)
        return tuple(Admit(door.gate, len(door.offered)) for door in self._doors.values() if door.offered)

    def known(self) -> tuple[Gate, ...]:
        """Gates that need no look at the store: jobs are ready behind them, and we ask the limiter ourselves. Where we
        believe that there are none, somebody has to look: a late reply may have told what was true before."""
        busy = (gate for gate, door in self._doors.items() if door.ready > 0)
        return tuple(sorted(islice(busy, GATES_MAX)))

    def seated(self, claimed: Iterable[Attempt]) -> list[Attempt]:
        """Each job with the token that admitted it. Somebody else was faster: what is left in our hands goes back."""
        jobs = list(claimed)
        for running in jobs:
            door = self._doors.get(Gate(running.lease.needs, running.lease.tenant))
            if door is not None and door.offered:
                running.token = door.offered.pop()
                running.seat = next((ask for ask in running.token.granted.asks if ask not in door.asks), None)
        for door in self._doors.values():
            self._unused += door.offered
            door.offered = []
        if self._unused:
            self.wanted.set()
        return jobs

    def end(self, running: Attempt) -> None:
        """A job leaves: its seat is free, and a token goes back that it did not use for a call. Its start is a fact."""
        if running.token is not None:
            self._unused.append(running.token.without(running.seat))
        if running.seat is not None:
            self._left.append(running.seat)
        running.token = running.seat = None
        self.wanted.set()

    def seats(self, jobs: Iterable[Attempt]) -> dict[PermitRequest, int]:
        """How many seats of each tenant these jobs, and those that we may claim next, take."""
        counts = {PermitRequest(tenant.limit, tenant.limit): 0 for tenant in self._tenants.values() if tenant.is_capped}
        for running in jobs:
            if running.seat is not None:
                counts[running.seat] = counts.get(running.seat, 0) + 1
        tokens = [token for door in self._doors.values() for token in door.tokens] + self._unused
        for ask in [*(ask for token in tokens for ask in token.granted.asks if ask in counts), *self._left]:
            counts[ask] = counts.get(ask, 0) + 1
        return counts

    # -- beside the loop --------------------------------------------------------------------------------------------

    async def wait(self, has_room: bool) -> None:
        """Until there may be something to ask for, or to give back. Without room, until a job ends."""
        opens = min((door.shut_until for door in self._doors.values() if door.ready > 0), default=None)
        seconds = max(opens - self._now(), ADMIT_SECONDS) if opens is not None and has_room else None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.wanted.wait()
        self.wanted.clear()

    async def open_next(self, room: int, jobs: Iterable[Attempt]) -> bool:
        """Ask for what is behind gates that may be open, as long as there is room. Whether something was granted.
        `jobs` are those that we hold."""
        held = (Gate(each.lease.needs, each.lease.tenant) for each in jobs if each.token is not None)
        self._about_to_call = Counter(held)
        await self._give_back()
        if not any(door.ready > 0 for door in self._doors.values()):
            return False
        await self._read_tenants()
        if self._tenants_at == float("-inf"):
            # Nobody could tell us who is capped: nothing starts that a cap might forbid.
            for door in self._doors.values():
                self._shut(door, self._tokens.pause_seconds(5), "what was agreed with its tenant cannot be read")
            return False
        is_granted = False
        room -= sum(len(door.tokens) for door in self._doors.values())
        for door in list(self._doors.values()):
            if room <= 0:
                break
            if door.ready > 0 and not door.tokens and door.shut_until <= self._now():
                room -= await self._try(door, min(room, door.ready))
                if self._doors.get(door.gate) is not door:
                    # An exchange has told us meanwhile that nobody waits there any more.
                    self._unused += door.hand
                    door.hand = []
                    self.wanted.set()
                is_granted |= bool(door.hand)
        return is_granted

    async def leave(self) -> None:
        """The worker goes: nobody shall wait for what it has in its hands."""
        for door in self._doors.values():
            self._unused += door.tokens
            door.hand, door.offered = [], []
        await self._give_back()

    async def _give_back(self) -> None:
        """Until the limiter has heard of it, it is counted as ours: seats are rather taken too long than twice."""
        while self._unused:  # ends: what was tried is gone, and tokens do not come faster than jobs
            granted = self._unused[0].granted
            same = [token for token in self._unused if token.granted is granted]
            try:
                if granted.asks:
                    await self._tokens.give_back(granted, len(same))
            finally:  # nothing is ever given back twice, also if we are stopped here
                for token in same:
                    self._unused.remove(token)
        while self._left:
            try:
                await self._tokens.leave((self._left[0],))
            finally:
                del self._left[0]

    async def _try(self, door: GateState, count: int) -> int:
        try:
            if (shut_seconds := await self._without_budget(door)) > 0:
                self._shut(door, shut_seconds, "its budget is used up")
                return 0
            asks = self._asks(door)
            if not self._tokens.last_long(door.asks):
                count, asks = min(count, await self._expected(door)), asks[len(door.asks) :]
            if not asks or count < 1:
                door.hand = [NO_PERMIT] * count
                return count
            verdict, sent_at = await self._tokens.grant(asks, count)
        except UnknownLimit as error:
            # Perhaps the limits have moved to a new store: tell it what we know.
            await self._tokens.declare([tenant.definition() for tenant in self._tenants.values() if tenant.is_capped])
            self._world.events.emit("limit_unknown", error=error)
            self._shut(door, UNKNOWN_SECONDS, str(error))
            return 0
        except TransientError as error:
            # Nobody can say how much was used: nothing starts, and nothing fails.
            self._world.events.emit("limiter_unavailable", error=error)
            self._shut(door, self._tokens.pause_seconds(5), "the limiter cannot be reached")
            return 0
        except LeasewayError as error:
            # Somebody must mend it. Those behind other gates do not wait for that.
            self._shut(door, UNKNOWN_SECONDS, str(error))
            return 0
        match verdict:
            case Granted(count=granted):
                door.hand = [make_permit(verdict, sent_at)] * granted
                self._shut(door, ADMIT_SECONDS, "")
                return granted
            case Wait(wait_us, name, why):
                self._shut(door, wait_us / SECOND_US, f"limit {name}: {why}")
                door.seat_of = name if why == CONCURRENCY_REACHED else ""
            case Never(name, most):
                self._shut(door, SHUT_SECONDS_MAX, f"limit {name}: never grants more than {most:,} at once")
        return 0

    async def _expected(self, door: GateState) -> int:
        """Tokens of short windows would not live until the call. They are taken there; here we only look whether it is
        worth while to start, and how many."""
        units, wait = await self._tokens.expected(door.asks)
        units -= self._about_to_call.get(door.gate, 0)
        if wait is not None:
            self._shut(door, wait.wait_us / SECOND_US, f"limit {wait.name}: {wait.why}")
        elif units < 1:
            self._shut(door, LOOK_SECONDS, "")
        return max(units, 0)

    async def _without_budget(self, door: GateState) -> float:
        """How long until one of the budgets has something again; 0 if all have."""
        budgets = parse_needs(door.gate.needs).budgets
        if not budgets:
            return 0.0
        return await self._world.ledger.wait_us(budgets) / SECOND_US

    def _asks(self, door: GateState) -> Asks:
        tenant = self._tenants.get(door.gate.tenant)
        if tenant is None or not tenant.is_capped:
            return door.asks
        return (*door.asks, PermitRequest(tenant.limit, tenant.limit))

    async def _read_tenants(self) -> None:
        # A gate of jobs that need nothing is there because of a cap: if we know of none, somebody has set it just now.
        is_outdated = any(
            door.ready > 0 and not door.gate.needs and not self._asks(door) for door in self._doors.values()
        )
        if self._now() - self._tenants_at < TENANTS_SECONDS and not is_outdated:
            return
        if is_outdated:
            self._tenants_at = float("-inf")
        try:
            tenants = await self._world.store.tenants()
            self._tenants = {tenant.name: tenant for tenant in tenants}
            self._tenants_at = self._now()
        except LeasewayError as error:
            self._world.events.emit("store_unavailable", doing="read tenants", error=error)

    def _shut(self, door: GateState, seconds: float, why: str) -> None:
        door.shut_until = self._now() + min(seconds, SHUT_SECONDS_MAX)
        if why and why != door.why:
            self._world.events.emit("gate_shut", tenant=door.gate.tenant, why=why, seconds=round(seconds, 3))
        door.why = why or door.why

    def _reopen(self, left: Asks) -> None:
        """Nobody can say when a seat will be free. Of our own we know it."""
        names = {ask.name for ask in left}
        for door in self._doors.values():
            if door.seat_of in names:
                door.shut_until, door.seat_of = self._now(), ""
                self.wanted.set()

    def _now(self) -> float:
        return self._world.clock.monotonic()
