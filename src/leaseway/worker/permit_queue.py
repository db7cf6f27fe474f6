"""exchange ─► [admit] ─► run handler: the queue in front of one set of limits.

Calls of one process that need the same limits wait in one queue. The first one asks the limiter for all of them, so
that at most one request per set of limits is under way. Permits of long windows are taken ahead; those that are not
used in time are lost.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from leaseway.domain.errors import TransientError, UsageError
from leaseway.domain.exchange import Gate
from leaseway.domain.ids import SECOND_US
from leaseway.domain.limits.buckets import RATE_USED, Granted, Never, Wait
from leaseway.domain.limits.limit import LimitDefinition, PermitRequest, permit_lease_us, size_limit
from leaseway.domain.limits.sliding_log import NOTHING_USED
from leaseway.domain.outcome import Deferred

if TYPE_CHECKING:
    from leaseway.worker.limiter_client import LimiterClient

LATE_MAX = 5
"""After this many permits in a row that arrived too late to be used, a warning is logged."""
BELIEVE_SECONDS = 60.0
"""How long a refusal is remembered. After that the limit may have been raised."""
TURNS_MAX = 1_000
TOGETHER_MAX = 32
"""How many gates a worker asks for at once."""
AHEAD_SHARE = 4
"""A worker takes at most this fraction (a quarter) of a bucket ahead."""
DEFER_FAILURES = 5
"""A job that cannot get a permit for reasons of leaseway waits in its lane as long as a worker does between two calls
after so many failures."""
UNREACHABLE = "the limiter cannot be reached"
TOO_LATE = "its permits arrive too late to be used"


T = TypeVar("T")
DRIFT = 0.01
"""How much faster than this worker's clock the store's clock may run."""

PermitRequests = tuple[PermitRequest, ...]


class Permit(NamedTuple):
    """One unit of a grant, and until when it is valid by this worker's clock."""

    granted: Granted
    valid_until: float
    taken_at: float = 0.0

    def without(self, request: PermitRequest | None) -> "Permit":
        """The same permit for all limits but this one."""
        if request is None:
            return self
        granted = self.granted
        kept = [place for place, each in enumerate(granted.asks) if each != request]

        def left(values: tuple[T, ...]) -> tuple[T, ...]:
            return tuple(values[place] for place in kept) if values else ()

        return self._replace(
            granted=msgspec.structs.replace(
                granted,
                asks=left(granted.asks),
                generations=left(granted.generations),
                circuits=left(granted.circuits),
                watched=left(granted.watched),
            )
        )


NO_PERMIT = Permit(Granted((), 1, 0, 0, 0, ()), float("inf"))
"""For jobs that need no limit."""


def make_permit(granted: Granted, taken_at: float) -> Permit:
    """`taken_at`: before the request to the limiter was sent."""
    return Permit(granted, taken_at + granted.lease_us / SECOND_US * (1 - DRIFT), taken_at)


class Turns:
    """When this worker should ask the limiter again, by set of limits.

    The limiter gives every refused request its own time to come back. If several jobs of a worker asked, the worker
    would reserve more times than it uses, and permits would have no taker meanwhile. So no job asks before that time.
    """

    def __init__(self) -> None:
        self._turns: dict[PermitRequests, tuple[float, float, Wait]] = {}

    def refusal(self, requests: PermitRequests, now: float) -> Wait | None:
        refused_at, turn, refusal = self._turns.get(requests, (now, now, None))
        if refusal is None or not now < min(turn, refused_at + BELIEVE_SECONDS):
            return None
        return msgspec.structs.replace(refusal, wait_us=int((turn - now) * SECOND_US) + 1)

    def note(self, requests: PermitRequests, verdict: Granted | Wait | Never, now: float) -> None:
        self._turns.pop(requests, None)
        if isinstance(verdict, Wait) and verdict.why.startswith(RATE_USED.partition("{")[0]):
            if len(self._turns) >= TURNS_MAX:
                self._turns.clear()
            self._turns[requests] = (now, now + verdict.wait_us / SECOND_US, verdict)

    def forget(self) -> None:
        """There may be permits earlier, because a limit has changed."""
        self._turns.clear()


class GateState:
    """What this worker knows of one gate."""

    __slots__ = ("closed_until", "gate", "is_shared", "offered", "permits", "ready", "requests", "waits_for", "why")

    def __init__(self, gate: Gate, requests: PermitRequests) -> None:
        self.gate = gate
        self.requests = requests
        self.ready = 0
        self.closed_until = float("-inf")
        self.why = ""
        self.waits_for = ""
        """The limit whose concurrency is used up."""
        self.is_shared = False
        """The store was told that this gate is closed."""
        self.permits: list[Permit] = []
        """For jobs that the next exchange may bring."""
        self.offered: list[Permit] = []
        """For jobs of the exchange that is on its way."""

    @property
    def all_permits(self) -> list[Permit]:
        return self.permits + self.offered


def choose_together(
    waiting: Iterable[GateState],
    requests_of: Callable[[GateState], PermitRequests],
    room_of: Callable[[str], int],
    room: int,
) -> list[tuple[GateState, int]]:
    """The first gate, and the next ones of its tenant as far as there is room for their jobs. No two of them need the
    same limit: the second one would ask before the answer to the first one is known, and a limiter keeps a time for
    every request that it refuses. `room_of`: for jobs of a tenant, if that is less than `room`."""
    chosen, names, tenant = list[tuple[GateState, int]](), set[str](), ""
    for state in waiting:
        needed = {request.name for request in requests_of(state)}
        if not chosen:
            chosen, names, tenant = [(state, min(room, state.ready))], needed, state.gate.tenant
            room = room_of(tenant) if needed else 0
        elif state.gate.tenant != tenant or not needed or needed & names:
            break
        else:
            chosen.append((state, min(room, state.ready)))
            names |= needed
        room -= chosen[-1][1]
        if room < 1 or len(chosen) == TOGETHER_MAX:
            break
    return chosen


def permits_ahead(requests: PermitRequests, definitions: Mapping[str, LimitDefinition]) -> int | None:
    """How many permits may be taken beyond those that are waited for. None: one at a time, because a permit that is not
    used would take a place under a concurrency limit, or has the weight of one call."""
    most = 1_000
    for request in requests:
        definition = definitions.get(request.limit)
        if definition is None or definition.concurrency is not None or definition.is_metered:
            return None
        if not permit_lease_us(definition):
            most = 0
        windows = size_limit(definition).windows
        most = min([most, *(window.burst // request.cost // AHEAD_SHARE for window in windows)])
    return most


class PermitQueue:
    def __init__(self, limiter: "LimiterClient", requests: PermitRequests, ahead: int | None) -> None:
        self.requests = requests
        self._permits: deque[Permit] = deque()
        self.call_ended = asyncio.Event()
        """A call of this process ended, so that its place under a concurrency limit is free."""
        self._limiter = limiter
        self._ahead = ahead
        self._lock = asyncio.Lock()
        self.waiting = 0
        self._refusal = Wait(0, "", "")
        self._closed_until = float("-inf")
        self._believed_until = float("-inf")
        self._late = 0
        self._used = 0
        self._used_since = limiter.now()

    async def take(self, requests: PermitRequests, patience_seconds: float, in_flight_us: int) -> Permit:
        """`requests`: those of the queue, with the weights of this call."""
        self.waiting += 1
        try:
            if self._limiter.now() < self._believed_until:
                self._defer_if_longer(patience_seconds)
            async with self._lock:
                if self._refusal.why in (UNREACHABLE, TOO_LATE):
                    self._defer_if_longer(0)  # the call before this one waited for too long
                return await self._first(requests, self._limiter.now() + patience_seconds, in_flight_us)
        finally:
            self.waiting -= 1

    async def _first(self, requests: PermitRequests, until: float, in_flight_us: int) -> Permit:
        failures = 0
        while (permit := await self._next_valid()) is None:
            self.call_ended.clear()
            if self._late >= LATE_MAX and self._limiter.now() >= until:
                self._defer(TOO_LATE)
            try:
                verdict, sent_at = await self._limiter.grant(requests, self._count(), in_flight_us)
            except TransientError as error:
                failures += 1
                await self._wait_for_limiter(failures, until, error)
                continue
            match verdict:
                case Granted(count=count):
                    self._permits.extend([make_permit(verdict, sent_at)] * count)
                case Never(name, most):
                    raise UsageError(f"limit {name}: one call needs more than the limit ever grants at once ({most:,})")
                case Wait(wait_us):
                    self._refusal, self._closed_until = verdict, self._limiter.now() + wait_us / SECOND_US
                    self._believed_until = self._limiter.now() + BELIEVE_SECONDS
                    self._defer_if_longer(until - self._limiter.now())
                    await self._until_open(wait_us / SECOND_US)
        return permit

    async def _next_valid(self) -> Permit | None:
        """The next permit that is still valid. Expired ones are lost, but they give up their places."""
        while self._permits:
            permit = self._permits.popleft()
            if self._limiter.is_valid(permit):
                self._used += 1
                self._late = 0
                return permit
            await self._limiter.end_calls(permit.granted.asks, used=NOTHING_USED)
            self._late += 1
            if self._late == LATE_MAX:
                self._limiter.warn_of_late(self.requests, permit)
        return None

    def forget_refusal(self) -> None:
        """The limit may have been raised since."""
        self._believed_until = float("-inf")

    @property
    def is_needed(self) -> bool:
        return self.waiting > 0 or any(map(self._limiter.is_valid, self._permits))

    def _count(self) -> int:
        """How many permits to ask for: those that are waited for here, and what half a second will need, judging by the
        recent rate."""
        now = self._limiter.now()
        elapsed = max(now - self._used_since, 0.1)
        rate = self._used / elapsed
        if elapsed > 2:
            self._used, self._used_since = int(rate), now - 1
        return 1 if self._ahead is None else max(self.waiting, 1) + min(int(rate / 2), self._ahead)

    def _defer_if_longer(self, patience_seconds: float) -> None:
        left = self._closed_until - self._limiter.now()
        if left > patience_seconds and not self._permits:
            why = f"limit {self._refusal.name}: {self._refusal.why}"
            raise Deferred(why, delay_us=int(left * SECOND_US), by_limit=True)

    async def _wait_for_limiter(self, failures: int, until: float, error: TransientError) -> None:
        """While it is not known how much was used, nothing is granted. A handler that waits keeps its slot, which jobs
        without limits could use, so the job goes back to its lane after a while."""
        if failures == 1:
            self._limiter.emit_unavailable(self.requests, error)
        if self._limiter.now() >= until:
            self._defer(UNREACHABLE)
        await self._limiter.sleep(min(self._limiter.pause_seconds(failures), until - self._limiter.now()))

    def _defer(self, why: str) -> None:
        """Send the job back to its lane, and for a moment every other job that needs these limits."""
        seconds, now = self._limiter.pause_seconds(DEFER_FAILURES), self._limiter.now()
        self._refusal = Wait(0, self.requests[0].name, why)
        self._closed_until = self._believed_until = now + seconds
        self._defer_if_longer(0)

    async def _until_open(self, seconds: float) -> None:
        """Wait this long, or until a call of this process ends."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.call_ended.wait()
