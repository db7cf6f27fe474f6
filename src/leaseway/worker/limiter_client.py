"""submit ─► store ─► exchange ─► [admit (lane, limits, budget)] ─► run handler: tokens, from the limiter to a call.

A token is taken just before a request leaves, by whoever asks first, and is good for a moment only. Tokens of long
windows are taken some at a time, so that a busy worker asks the store once for many calls; those that nobody has used
in time are used up. One call to the store is under way for each set of limits, and everybody else of this process
waits behind it in line.
"""

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from leaseway.domain.errors import LeasewayError, TransientError, UnknownLimit, UsageError
from leaseway.domain.ids import SECOND_US, WorkerId
from leaseway.domain.limits.buckets import (
    PAUSED,
    Acquisition,
    Granted,
    Never,
    Notice,
    Verdict,
    Wait,
    forecast,
    size_limit,
)
from leaseway.domain.limits.limit import COUNT_MAX, LimitDefinition, PermitRequest, permit_lease_us
from leaseway.domain.limits.rate_limit_headers import RateLimitStatus
from leaseway.domain.limits.validation import PERMIT_REQUESTS_MAX
from leaseway.domain.outcome import Deferred
from leaseway.domain.worker_pacing import retry_delay_seconds
from leaseway.ports.limiter import Limiter
from leaseway.worker.environment import Environment
from leaseway.worker.limiter_fallback import LimiterFallback

DRIFT = 0.01
"""How much faster than ours the store's clock may go."""
PATIENCE_SECONDS = 10.0
"""A handler waits for so long in its place. Whatever takes longer, the job waits for in its lane."""
KEEP_SECONDS = 5.0
READ_SECONDS = 60.0
SEAT_US = 30 * SECOND_US
LONG_US = SECOND_US // 2
LATE_MAX = 5
"""So many tokens in a row that came too late to be used are worth a word."""
LINES_MAX = 1_000
"""From so many on, those are forgotten in which nobody stands: there may be millions of names."""
AHEAD_SHARE = 4
"""A worker never keeps more than this part of a bucket for itself."""

Asks = tuple[PermitRequest, ...]


class Permit(NamedTuple):
    """One of a grant, and until when it may be used, on our own clock."""

    granted: Granted
    good_until: float
    taken_at: float = 0.0

    def without(self, ask: PermitRequest | None) -> "Permit":
        """The same for all limits but this one."""
        if ask is None:
            return self
        left = [each for each in zip(self.granted.asks, self.granted.generations, strict=True) if each[0] != ask]
        asks, generations = tuple(each for each, _ in left), tuple(generation for _, generation in left)
        return self._replace(granted=msgspec.structs.replace(self.granted, asks=asks, generations=generations))


NO_PERMIT = Permit(Granted((), 1, 0, 0, 0, ()), float("inf"))

"""For jobs that need no limit."""


def make_permit(granted: Granted, taken_at: float) -> Permit:
    """`taken_at`: before the call to the limiter left."""
    return Permit(granted, taken_at + granted.lease_us / SECOND_US * (1 - DRIFT), taken_at)


class LimiterClient:
    """All of a worker's dealings with the limiter."""

    def __init__(self, world: Environment, holder: WorkerId, definitions: Sequence[LimitDefinition]) -> None:
        self._world = world
        self._holder = holder
        self._definitions = {definition.name: definition for definition in definitions}
        self._degraded = LimiterFallback(world.clock, holder, self._definitions)
        self._lines: dict[Asks, PermitQueue] = {}
        self._seats: dict[PermitRequest, int] = {}
        self._doubtful: set[PermitRequest] = set()
        self._closed_at: dict[str, float] = {}
        """When a provider last refused a call of ours, by limit."""
        self.on_left: Callable[[Asks], None] = lambda _: None
        """Told of seats that are free again."""
        self._read_at = float("-inf")
        self._opening = asyncio.Lock()
        self._seating = asyncio.Lock()
        """What we say about seats arrives in the order in which we say it."""
        self._is_open = False

    # -- taking -----------------------------------------------------------------------------------------------------

    async def take(self, asks: Asks, patience_seconds: float = PATIENCE_SECONDS) -> Permit:
        """One for a call that leaves now. `Deferred`: it would take longer than anybody should wait here."""
        line = self._lines.get(asks)
        if line is None:
            if len(self._lines) >= LINES_MAX:
                self._lines = {each.asks: each for each in self._lines.values() if each.is_needed}
            line = self._lines[asks] = PermitQueue(self, asks, self._ahead(asks))
        return await line.take(patience_seconds)

    async def grant(self, asks: Asks, most: int) -> tuple[Verdict, float]:
        """Ask the store once; and when that was."""
        sent_at = self._world.clock.monotonic()
        try:
            await self.limiter()
            async with self._seating if any(map(self._has_seats, asks)) else contextlib.nullcontext():
                await self._clear_up(asks)
                sent_at = self._world.clock.monotonic()
                verdict = await self._taken(asks, most)
                self._sit(verdict)
        except asyncio.CancelledError:
            self._doubtful.update(filter(self._has_seats, asks))
            raise
        except TransientError:
            self._doubtful.update(filter(self._has_seats, asks))
            alone = self._degraded.take(asks, most)
            if alone is None:
                raise
            return alone, self._world.clock.monotonic()
        if isinstance(verdict, Wait) and verdict.why == PAUSED:
            await self._read_definitions(at_once=True)  # no more jobs are claimed for it meanwhile
        return verdict, sent_at

    def _sit(self, verdict: Verdict) -> None:
        if isinstance(verdict, Granted):
            for ask in filter(self._has_seats, verdict.asks):
                self._seats[ask] = self._seats.get(ask, 0) + verdict.count

    async def _taken(self, asks: Asks, most: int) -> Verdict:
        try:
            return await self._world.limiter.take(asks, least=1, most=most, holder=self._holder, seat_us=SEAT_US)
        except UnknownLimit as error:
            await self._tell_again(asks, error)
        try:
            return await self._world.limiter.take(asks, least=1, most=most, holder=self._holder, seat_us=SEAT_US)
        except UnknownLimit as error:  # it has lost its memory twice: not the job's fault
            raise TransientError(f"{error}; it was defined a moment ago") from error

    async def _clear_up(self, asks: Asks) -> None:
        """A reply was lost: the limiter may believe that we sit where nobody of us does."""
        for ask in [ask for ask in asks if ask in self._doubtful]:
            count = sum(count for each, count in self._seats.items() if each.name == ask.name)
            if count:
                await self._world.limiter.keep([ask], self._holder, count, SEAT_US)
            else:
                await self._world.limiter.vacate([ask], self._holder, COUNT_MAX)
            self._doubtful.discard(ask)

    async def _tell_again(self, asks: Asks, error: UnknownLimit) -> None:
        """The limiter has forgotten what our code says."""
        known = [self._definitions[ask.limit] for ask in asks if ask.limit in self._definitions]
        if len(known) < len(asks):
            raise error
        await self._world.limiter.declare(known)

    def last_long(self, asks: Asks) -> bool:
        """Whether tokens of these limits survive the way from here through a claim to a handler's first call."""
        known = [self._definitions[ask.limit] for ask in asks if ask.limit in self._definitions]
        return all(size_limit(definition).lease_us >= LONG_US for definition in known)

    async def expected(self, asks: Asks) -> tuple[int, Wait | None]:
        """How many calls may leave within a second, beside those that wait in line here; or why none may."""
        limiter = await self.limiter()
        if any(ask.limit in self._definitions and self._definitions[ask.limit].paused for ask in asks):
            await self._read_definitions(at_once=True)  # only there one sees that it was resumed
        try:
            now, levels = await limiter.look(asks)
        except UnknownLimit as error:
            await self._tell_again(asks, error)
            now, levels = await limiter.look(asks)
        pairs = [each for each in zip(asks, levels, strict=True) if each[0].limit in self._definitions]
        takings = [Acquisition(ask, size_limit(self._definitions[ask.limit]), level) for ask, level in pairs]
        units, wait = forecast(takings, now, levels[0].since, SECOND_US)
        line = self._lines.get(asks)
        return units - (0 if line is None else line.waiting), wait

    def is_good(self, token: Permit) -> bool:
        """It is not too old, and the provider has not closed since it was granted."""
        if self._world.clock.monotonic() >= token.good_until:
            return False
        return all(token.taken_at > self._closed_at.get(ask.name, float("-inf")) for ask in token.granted.asks)

    async def give_back(self, granted: Granted, count: int) -> None:
        """What was not used. If that fails, it is used up."""
        try:
            with contextlib.suppress(LeasewayError):
                await (await self.limiter()).give_back(granted, count)
        finally:
            await self.leave(granted.asks, count)

    async def leave(self, asks: Asks, count: int = 1) -> None:
        """The call is over: its seats are free."""
        if not any(self._seats.get(ask) for ask in asks):
            return
        try:
            await self._seating.acquire()
        except asyncio.CancelledError:
            self._doubtful.update(self._stand_up(asks, count))
            raise
        try:
            if seated := self._stand_up(asks, count):
                self._doubtful.update(seated)  # until we hear that they are free
                with contextlib.suppress(LeasewayError):
                    await (await self.limiter()).vacate(seated, self._holder, count)
                    self._doubtful.difference_update(seated)
        finally:
            self._seating.release()
        self.on_left(seated)
        for line in self._lines.values():
            if not set(seated).isdisjoint(line.asks):
                line.somebody_left.set()

    def _stand_up(self, asks: Asks, count: int) -> Asks:
        """Those of the asks that have seats."""
        seated = tuple(ask for ask in asks if ask in self._seats)
        for ask in seated:
            if (left := self._seats.pop(ask) - count) > 0:
                self._seats[ask] = left
        return seated

    # -- what the provider says -------------------------------------------------------------------------------------

    async def hear(self, token: Permit, asks: Asks, said: RateLimitStatus) -> None:
        """Tell everybody, if it is news: a refusal always, what is left only when it is less than a bucket."""
        for ask, generation in zip(token.granted.asks, token.granted.generations, strict=True):
            if ask not in asks:
                continue  # the seat of a tenant is no affair of the provider
            if not said.throttled and (said.remaining is None or said.remaining >= self._burst(ask)):
                continue
            notice = Notice(
                name=ask.name,
                limit=ask.limit,
                generation=generation,
                throttled=said.throttled,
                retry_after_us=said.retry_after_us,
                remaining=said.remaining,
                reset_us=said.reset_us,
            )
            if said.throttled:
                if len(self._closed_at) >= LINES_MAX:
                    self._closed_at.clear()  # tokens that old are gone long since
                self._closed_at[ask.name] = self._world.clock.monotonic()
                self._world.events.emit("limit_closed", limit=ask.name, retry_after_us=said.retry_after_us)
            with contextlib.suppress(TransientError):  # the next refusal says it again
                await (await self.limiter()).tell(notice)

    # -- beside the worker ------------------------------------------------------------------------------------------

    async def keep_seats(self, recount: Callable[[], Mapping[PermitRequest, int]]) -> None:
        """Whoever still sits says so, also to a store that has lost its memory."""
        while True:  # until it is cancelled
            await self._world.clock.sleep(KEEP_SECONDS)
            await self.say_where_we_sit(recount)
            if self._is_open:
                await self._degraded.keep(self._world.limiter)
                await self._read_definitions()

    async def leave_all(self, recount: Callable[[], Mapping[PermitRequest, int]]) -> None:
        """The worker goes away."""
        await self.say_where_we_sit(recount)
        if self._is_open:
            await self._degraded.leave(self._world.limiter)

    async def say_where_we_sit(self, recount: Callable[[], Mapping[PermitRequest, int]]) -> None:
        async with self._seating:
            counts = {**self._seats, **recount()}
            self._doubtful.update(ask for ask in self._seats if counts[ask] < 1)
            self._seats = {ask: count for ask, count in counts.items() if count > 0}
            with contextlib.suppress(LeasewayError):
                await self._clear_up(tuple(self._doubtful))
            by_name: Counter[tuple[str, str]] = Counter()
            for ask, count in self._seats.items():  # calls of different weight sit beside each other
                by_name[ask.name, ask.limit] += count
            by_count: dict[int, list[PermitRequest]] = {}
            for (name, limit), count in by_name.items():
                by_count.setdefault(count, []).append(PermitRequest(name, limit))
            for count, asks in by_count.items():
                await self._keep(asks, count)

    async def _keep(self, asks: Sequence[PermitRequest], count: int) -> None:
        for start in range(0, len(asks), PERMIT_REQUESTS_MAX):
            with contextlib.suppress(LeasewayError):
                limiter = await self.limiter()
                await limiter.keep(asks[start : start + PERMIT_REQUESTS_MAX], self._holder, count, SEAT_US)

    async def declare(self, definitions: Sequence[LimitDefinition]) -> None:
        self._definitions.update({definition.name: definition for definition in definitions})
        with contextlib.suppress(TransientError):
            await (await self.limiter()).declare(definitions)

    async def limiter(self) -> Limiter:
        """Opened, and told what our code says, by the first who needs it."""
        async with self._opening:
            if not self._is_open:
                await self._world.limiter.open()
                await self._world.limiter.declare([*self._definitions.values(), *self._degraded.certificates()])
                await self._read_definitions()
                await self._degraded.keep(self._world.limiter)
                self._is_open = True
        return self._world.limiter

    async def _read_definitions(self, *, at_once: bool = False) -> None:
        """Somebody may have changed them."""
        if not at_once and self._world.clock.monotonic() - self._read_at < READ_SECONDS:
            return
        with contextlib.suppress(TransientError):
            definitions = await self._world.limiter.definitions()
            self._definitions.update({definition.name: definition for definition, _ in definitions})
            self._read_at = self._world.clock.monotonic()

    def _ahead(self, asks: Asks) -> int | None:
        """How many tokens may be taken beyond those that are wanted now. None: one at a time, because of the seats."""
        most = 1_000
        for ask in asks:
            definition = self._definitions.get(ask.limit)
            if definition is None or definition.concurrency is not None:
                return None
            if not permit_lease_us(definition):
                most = 0
            most = min([most, *(window.burst // ask.cost // AHEAD_SHARE for window in size_limit(definition).windows)])
        return most

    def _burst(self, ask: PermitRequest) -> int:
        definition = self._definitions.get(ask.limit)
        return 0 if definition is None else max((window.burst for window in size_limit(definition).windows), default=0)

    def _has_seats(self, ask: PermitRequest) -> bool:
        definition = self._definitions.get(ask.limit)
        return definition is None or definition.concurrency is not None

    def tell_of_late(self, asks: Asks, token: Permit) -> None:
        """Too slow for this limit: it would never get anywhere, and nobody would know why."""
        names, seconds = ", ".join(ask.limit for ask in asks), token.granted.lease_us / SECOND_US
        advice = (
            f"its tokens last {seconds:g} s, and the limiter needs longer to grant them; give the limit a longer delay="
        )
        self._world.events.emit("tokens_late", limit=names, advice=advice)

    async def sleep(self, seconds: float) -> None:
        await self._world.clock.sleep(seconds)

    def now(self) -> float:
        return self._world.clock.monotonic()

    def pause_seconds(self, failures: int) -> float:
        return retry_delay_seconds(failures, self._world.chance.random())


class PermitQueue:
    """Those of one process who want the same limits, one behind the other. The first one asks the store for all."""

    def __init__(self, tokens: LimiterClient, asks: Asks, ahead: int | None) -> None:
        self.asks = asks
        self._hand: deque[Permit] = deque()
        self.somebody_left = asyncio.Event()
        self._tokens = tokens
        self._ahead = ahead
        self._door = asyncio.Lock()
        self.waiting = 0
        self._closed = Wait(0, "", "")
        self._closed_until = float("-inf")
        self._believed_until = float("-inf")
        """After that somebody may have raised the limit."""
        self._late = 0
        self._used = 0
        self._used_since = tokens.now()

    async def take(self, patience_seconds: float) -> Permit:
        self.waiting += 1
        try:
            if self._tokens.now() < self._believed_until:
                self._refuse_if_longer(patience_seconds)
            async with self._door:
                return await self._first(self._tokens.now() + patience_seconds)
        finally:
            self.waiting -= 1

    async def _first(self, until: float) -> Permit:
        failures = 0
        while (token := await self._in_hand()) is None:
            self.somebody_left.clear()
            try:
                verdict, sent_at = await self._tokens.grant(self.asks, self._appetite())
            except TransientError:
                # Closed, as long as nobody can say how much was used.
                failures += 1
                await self._tokens.sleep(self._tokens.pause_seconds(failures))
                continue
            match verdict:
                case Granted(count=count):
                    self._hand.extend([make_permit(verdict, sent_at)] * count)
                case Never(name, most):
                    raise UsageError(f"limit {name}: one call asks for more than it ever grants at once, {most:,}")
                case Wait(wait_us):
                    self._closed, self._closed_until = verdict, self._tokens.now() + wait_us / SECOND_US
                    self._believed_until = self._tokens.now() + READ_SECONDS
                    self._refuse_if_longer(until - self._tokens.now())
                    await self._until_open(wait_us / SECOND_US)
        return token

    async def _in_hand(self) -> Permit | None:
        """One that is still good. The others are used up, but nobody needs to sit on their seats."""
        while self._hand:
            token = self._hand.popleft()
            if self._tokens.is_good(token):
                self._used += 1
                self._late = 0
                return token
            await self._tokens.leave(token.granted.asks)
            self._late += 1
            if self._late == LATE_MAX:
                self._tokens.tell_of_late(self.asks, token)
        return None

    @property
    def is_needed(self) -> bool:
        return self.waiting > 0 or any(map(self._tokens.is_good, self._hand))

    def _appetite(self) -> int:
        """As many as wait here, and what half a lease will need, judging by the last moments."""
        now = self._tokens.now()
        elapsed = max(now - self._used_since, 0.1)
        rate = self._used / elapsed
        if elapsed > 2:
            self._used, self._used_since = int(rate), now - 1
        return 1 if self._ahead is None else max(self.waiting, 1) + min(int(rate / 2), self._ahead)

    def _refuse_if_longer(self, patience_seconds: float) -> None:
        left = self._closed_until - self._tokens.now()
        if left > patience_seconds and not self._hand:
            raise Deferred(f"limit {self._closed.name}: {self._closed.why}", delay_us=int(left * SECOND_US))

    async def _until_open(self, seconds: float) -> None:
        """Or until somebody of this process gets up from his seat."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.somebody_left.wait()
