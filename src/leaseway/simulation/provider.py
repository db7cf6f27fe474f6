"""The provider that metered jobs call. It counts requests itself, independently of limits and budgets.

A request takes up to half of the delay that its limits allow for. Every arrival is logged, and the log is the oracle:
never more arrivals than the rate in any window, never more calls in flight than allowed, no call after a refusal
before the time that the refusal named, and none while a circuit breaker is open. Some calls are refused, and some
replies are lost; the cost of a call is booked all the same. In some worlds the provider is down for a while.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from random import Random

from msgspec import Struct

from leaseway.domain.budgets.budget import MICRO
from leaseway.domain.budgets.holds import Lines
from leaseway.domain.ids import SECOND_US
from leaseway.domain.limits import breaker
from leaseway.domain.limits.buckets import Notice
from leaseway.domain.limits.limit import (
    CONCURRENCY_ONLY_US,
    LimitDefinition,
    PermitRequest,
    permit_lease_us,
    wire_delay_us,
)
from leaseway.simulation.judge import Judge
from leaseway.simulation.process import Process
from leaseway.simulation.promises import Promises
from leaseway.virtual_time.loop import SimLoop

WORK_SECONDS_MAX = 0.3
BACK_SECONDS_MAX = 0.02
LOST_SECONDS = 0.5
"""A client gives up on a reply after this time."""
WAY_SECONDS_MAX = 0.1
"""For calls without a limit, whose delay is not bounded."""
RETRY_AFTER_SECONDS = (0.4, 1.5, 4.0, 12.0)
"""The longest is more than a handler waits for in place."""
REFUSED, UNHEARD, FINE, DOWN = 429, 0, 200, 500


class Temper(Struct, frozen=True):
    """How the provider behaves in this world."""

    refuses: float = 0.0
    loses: float = 0.0
    down: tuple[float, float] = (0.0, 0.0)
    """From when until when it fails to serve any call."""


class ProviderReply(Struct, frozen=True):
    status: int
    headers: Mapping[str, str]
    usd: Decimal | None = None
    """The cost of the call, if the caller learns it."""


@dataclass(slots=True)
class ProviderRequest:
    process: Process
    job: str
    asks: tuple[PermitRequest, ...]
    hold: str | None
    lines: Lines
    sent_at: float
    reply: asyncio.Future[ProviderReply]


@dataclass(slots=True)
class Log:
    """What the provider knows about one limit."""

    arrivals: deque[tuple[float, int]] = field(default_factory=deque)
    under_way: int = 0
    closed: list[tuple[float, float]] = field(default_factory=list)
    """Spans in which calls are refused, each from the moment at which every client can know of it."""
    circuit: int = 0
    """How often the circuit breaker must have changed its state. It opens with the first failure in these worlds."""
    is_open: bool = False
    open_span: tuple[float, float] = (0.0, 0.0)
    """From the moment at which every client can know that the breaker is open, until its first probe."""
    probes: list[float] = field(default_factory=list)


class SimulatedProvider:
    def __init__(
        self,
        loop: SimLoop,
        chance: Random,
        judge: Judge,
        temper: Temper,
        limits: Mapping[str, LimitDefinition],
        charged: Callable[[str, int], None],
        *,
        shares_holds: bool = False,
    ) -> None:
        self._loop = loop
        self._chance = chance
        self._judge = judge
        self.temper = temper
        self._limits = limits
        self._logs: dict[str, Log] = {}
        self._charged = charged
        """Called with the true cost of a hold's call, in micro-units of each of its budgets."""
        self._shares_holds = shares_holds
        """One hold pays for all calls of a job, so that the first of several calls leaves something for the others."""
        self._payers: dict[str, tuple[Process, str]] = {}
        """By hold, if it is shared: the process and the job that first called under it."""
        self._charged_micros: Counter[str] = Counter()
        """By hold."""
        self.under_way = 0
        self.lines: dict[str, Lines] = {}
        """By hold, of calls that have arrived."""

    @property
    def _books(self) -> Promises:
        return self._judge.books

    # -- a call -----------------------------------------------------------------------------------------------------

    async def answer(
        self, process: Process, job: str, asks: tuple[PermitRequest, ...], hold: str | None, lines: Lines
    ) -> ProviderReply:
        """Send a request now, and wait for its reply."""
        request = ProviderRequest(process, job, asks, hold, lines, self._loop.time(), process.loop.create_future())
        if not process.is_dead:
            self.under_way += 1
            self._loop.call_later(self._way_seconds(asks), self._arrive, request)
        return await request.reply

    def _way_seconds(self, asks: tuple[PermitRequest, ...]) -> float:
        """The network's half of the delay; often its minimum or maximum, because bounds break there."""
        delays_us = [
            wire_delay_us(self._limits[ask.limit], rate) for ask in asks for rate in self._limits[ask.limit].rates
        ]
        most = min(delays_us) / 2 / SECOND_US if delays_us else WAY_SECONDS_MAX
        return self._chance.choice((0.0, most, self._chance.uniform(0, most)))

    def _arrive(self, request: ProviderRequest) -> None:
        for ask in request.asks:
            self._log(ask, request)
        self._charge_once(request)
        down_since, down_until = self.temper.down
        if down_since <= self._loop.time() < down_until:
            self._books.reach("the provider was down")
            self._finish(request, ProviderReply(DOWN, {}, Decimal(0)))
            return
        is_refused = bool(request.asks) and self._chance.random() < self.temper.refuses
        if is_refused:
            self._books.reach("the provider refused a call")
            self._finish(
                request,
                ProviderReply(REFUSED, {"Retry-After": str(self._chance.choice(RETRY_AFTER_SECONDS))}, Decimal(0)),
            )
            return
        self._loop.call_later(self._chance.uniform(0.01, WORK_SECONDS_MAX), self._serve, request)

    def _serve(self, request: ProviderRequest) -> None:
        usd = None
        if request.hold is not None:
            most = request.lines[0][1] - self._charged_micros[request.hold]
            micros = self._chance.choice((most, most, self._chance.randint(0, most)))
            self._charged_micros[request.hold] += micros
            self._charged(request.hold, micros)
            usd = Decimal(micros) / MICRO
        if self._chance.random() < self.temper.loses:
            self._books.reach("a reply of the provider was lost")
            self._finish(request, ProviderReply(UNHEARD, {}), LOST_SECONDS)
        else:
            self._finish(request, ProviderReply(FINE, {}, usd))

    def _finish(self, request: ProviderRequest, reply: ProviderReply, seconds: float = 0.0) -> None:
        self.under_way -= 1
        for ask in request.asks:
            self._logs[ask.name].under_way -= 1
        seconds += self._chance.uniform(0, BACK_SECONDS_MAX)
        self._loop.call_later(seconds, request.process.loop.call_soon_threadsafe, end, request.reply, reply)

    # -- the oracles ------------------------------------------------------------------------------------------------

    def _log(self, ask: PermitRequest, request: ProviderRequest) -> None:
        """L1: never more arrivals than the limit allows, in any window."""
        log, definition, now = self._logs.setdefault(ask.name, Log()), self._limits[ask.limit], self._loop.time()
        log.arrivals.append((now, ask.cost))
        log.under_way += 1
        longest = max((rate.window_us for rate in definition.rates), default=0) / SECOND_US
        while log.arrivals[0][0] <= now - longest - 1:
            log.arrivals.popleft()
        for rate in definition.rates:
            since = now - rate.window_us / SECOND_US
            weight = sum(cost for at, cost in log.arrivals if at > since + 1e-6)
            if weight > rate.count:
                self._judge.accuse([f"L1 {request.process.name}: {weight} arrivals for {ask.name}, which has {rate}"])
            if weight == rate.count:
                self._books.reach("a limit was used to the last call")
        if definition.concurrency is not None and log.under_way > definition.concurrency:
            self._judge.accuse(
                [f"L2 {log.under_way} calls at once for {ask.name}, {definition.concurrency} are allowed"]
            )
        self._judge_breaker(log, ask.name, request)
        for begin, close in log.closed:
            if begin < request.sent_at < close:
                self._judge.accuse(
                    [f"L3 {request.process.name} called {ask.name}, which is closed for {close - now:.1f} s"]
                )

    def _judge_breaker(self, log: Log, name: str, request: ProviderRequest) -> None:
        known_at, probed_at = log.open_span
        if not log.is_open or request.sent_at <= known_at:
            return
        log.probes.append(request.sent_at)
        recent = [at for at in log.probes if at > request.sent_at - breaker.PROBE_US_MIN / SECOND_US]
        if request.sent_at < probed_at or len(recent) > 1:
            self._judge.accuse([f"L5 {request.process.name} called {name}, whose circuit breaker is open"])

    def told(self, notice: Notice) -> None:
        """The limiter has learned what a reply said. Permits that workers already hold may still be used."""
        definition, now = self._limits.get(notice.limit), self._loop.time()
        if definition is None:
            return
        delays_us = [wire_delay_us(definition, rate) for rate in definition.rates]
        life_us = permit_lease_us(definition) + min(delays_us) if delays_us else CONCURRENCY_ONLY_US
        known_at, log = now + life_us / SECOND_US, self._logs.setdefault(notice.name, Log())
        if notice.throttled and notice.retry_after_us is not None:  # L3
            self._books.reach("a refusal was told to everybody")
            if definition.degraded_share == 0:
                log.closed.append((known_at, now + notice.retry_after_us / SECOND_US))
        if definition.breaker is not None and notice.circuit == log.circuit:
            self._told_of_call(log, notice, known_at)

    def _told_of_call(self, log: Log, notice: Notice, known_at: float) -> None:
        """L5: a failure opens the breaker, again if it was a probe, and an answered probe closes it."""
        if notice.failed:
            self._books.reach("a circuit breaker opened")
            log.circuit, log.is_open = log.circuit + 1, True
            log.open_span = (known_at, self._loop.time() + breaker.OPEN_US / SECOND_US)
            log.probes.clear()
        elif notice.answered and log.is_open:
            self._books.reach("a probe closed a circuit breaker")
            log.circuit, log.is_open = log.circuit + 1, False

    def forgotten(self) -> None:
        """The limiter has lost its state, and no other part keeps what the provider said."""
        for log in self._logs.values():
            log.closed.clear()

    def _charge_once(self, request: ProviderRequest) -> None:
        """L4: the id of a hold stands for one call, or for the calls of one delivery."""
        if request.hold is None:
            return
        if self._shares_holds:
            payer = (request.process, request.job)
            if self._payers.setdefault(request.hold, payer) != payer:
                self._judge.accuse([f"L4 {request.process.name} calls under hold {request.hold} of another delivery"])
            if request.hold in self.lines:
                self._books.reach("one hold paid for several calls")
        elif request.hold in self.lines:
            self._judge.accuse([f"L4 {request.process.name} calls a second time under hold {request.hold}"])
        self.lines[request.hold] = request.lines


def end(reply: asyncio.Future[ProviderReply], answer: ProviderReply) -> None:
    if not reply.done():
        reply.set_result(answer)
