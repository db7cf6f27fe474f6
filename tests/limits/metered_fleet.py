"""A fleet of hostile workers against one limit on tokens: they estimate, call, settle late or never, and crash, while
the limiter loses its state or its clock is set back.

The provider counts what a call used at some moment between its grant and its end. The two extreme views are kept: all
calls counted at arrival, and all counted at completion. Real time is the provider's.
"""

from collections.abc import Callable
from random import Random

from msgspec import Struct
from msgspec.structs import replace
from tests.limits.sliding_log import Arrival, excess

from leaseway.domain.ids import SECOND_US, Instant
from leaseway.domain.limits.buckets import (
    Acquisition,
    CallHolder,
    Granted,
    end_calls,
    refresh,
    renew_calls,
    take,
)
from leaseway.domain.limits.level import NEW, Level
from leaseway.domain.limits.limit import LimitDefinition, PermitRequest, Sizing, size_limit

START = 1_000 * SECOND_US
STEPS = 150
CALL_US_MAX = 5 * SECOND_US
"""The longest call, and how long a reservation lasts that no worker renews."""

End = Callable[[Acquisition, str, int, int | None, Instant], Level]


def refund_at_grant(taking: Acquisition, holder: str, count: int, used: int | None, now: Instant) -> Level:
    """The obvious way: what a call used counts from its start, as if nothing were in flight between two windows."""
    return end_calls(taking, holder, count, used, now - CALL_US_MAX)


def forget_excess(taking: Acquisition, holder: str, count: int, used: int | None, now: Instant) -> Level:
    """Without debt: a call never uses more than its estimate."""
    reserved = count * taking.ask.cost
    return end_calls(taking, holder, count, min(reserved if used is None else used, reserved), now)


class MeteredFlaws(Struct, frozen=True):
    """The safeguards that are removed; by default none."""

    ended: End = end_calls
    is_charged: bool = True
    """What a crashed worker has reserved counts as used."""
    is_fenced: bool = True


NO_FLAWS = MeteredFlaws()


class Call(Struct):
    ask: PermitRequest
    holder: str
    begun: Instant
    until: Instant
    actual: int


class MeteredFleet:
    def __init__(
        self,
        definition: LimitDefinition,
        seed: int,
        flaws: MeteredFlaws = NO_FLAWS,
        overrun: float = 1.0,
    ) -> None:
        """`overrun`: how many times its estimate a call may use."""
        self.definition, self.flaws, self.overrun = definition, flaws, overrun
        self.sizing: Sizing = size_limit(definition)
        self.chance = Random(seed)
        self.real: Instant = START
        self.behind_us = 0
        self.since: Instant = 0  # long ago: nothing is used
        self.level = NEW
        self.holders = ["one", "two"]
        self.calls: list[Call] = []
        self.arrived: list[Arrival] = []
        self.completed: list[Arrival] = []
        self.excess_of_dead = 0
        """What calls used beyond their estimates whose workers died, so that nobody could say."""
        self.excess_in_flight = 0
        """The most that calls in flight at one moment used beyond their estimates."""

    def live(self) -> tuple[int, int]:
        """Run a history. Returns by how much the worst window exceeded the limit, by arrivals and by completions."""
        weights = [self.chance.choice(often) for often in ACTIONS.values()]
        for act in self.chance.choices(list(ACTIONS), weights, k=STEPS):
            act(self)
        for call in self.calls:
            self.completed.append((call.until, call.actual))
        return excess(self.arrived, self.definition.rates), excess(self.completed, self.definition.rates)

    def now(self) -> Instant:
        return self.real - self.behind_us

    # -- actions ----------------------------------------------------------------------------------------------------

    def wait(self) -> None:
        longest_us = max(window.window_us for window in self.sizing.windows)
        self.pass_time(self.chance.choice((0, 1, SECOND_US // 10, SECOND_US, CALL_US_MAX, longest_us // 7, longest_us)))

    def pass_time(self, us: int) -> None:
        """Workers that live renew their reservations and settle calls in time; those whose end has come are settled."""
        until = self.real + us
        for call in sorted(self.calls, key=lambda each: each.until):
            if call.until <= until:
                self.real = max(self.real, call.until)
                self.end(call)
        self.real = until

    def begin(self) -> None:
        for _ in range(self.chance.choice((1, 1, 3, 20))):
            cost = self.chance.randint(1, self.definition.cost_max)
            ask = PermitRequest("tpm", "tpm", cost)
            holder = self.chance.choice(self.holders)
            caller = CallHolder(holder, CALL_US_MAX, self.since + CALL_US_MAX)
            taking = Acquisition(ask, self.sizing, self.level)
            verdict, (self.level,) = take([taking], self.now(), self.since, caller=caller)
            if isinstance(verdict, Granted):
                actual = self.chance.choice((0, 1, cost // 3, cost, int(cost * self.overrun)))
                us = self.chance.choice((0, 1, SECOND_US, CALL_US_MAX))
                self.calls.append(Call(ask, holder, self.real, self.real + us, actual))
                self.arrived.append((self.real, actual))
                over = sum(max(each.actual - each.ask.cost, 0) for each in self.calls)
                self.excess_in_flight = max(self.excess_in_flight, over)

    def settle(self) -> None:
        if self.calls:
            self.end(self.chance.choice(self.calls))

    def end(self, call: Call) -> None:
        self.calls.remove(call)
        self.completed.append((self.real, call.actual))
        level = refresh(self.level, self.sizing, self.now(), self.since)
        taking = Acquisition(call.ask, self.sizing, level)
        used = None if self.chance.random() < 0.1 and call.actual <= call.ask.cost else call.actual
        self.level = self.flaws.ended(taking, call.holder, 1, used, self.now())

    def renew(self) -> None:
        taking = Acquisition(PermitRequest("tpm", "tpm"), self.sizing, self.level)
        level = refresh(self.level, self.sizing, self.now(), self.since)
        for holder in self.holders:
            if units := sum(call.ask.cost for call in self.calls if call.holder == holder):
                level = renew_calls(taking, level, holder, units, self.now() + CALL_US_MAX)
        self.level = level

    def crash(self) -> None:
        """A worker dies, and its calls end at the provider. Nothing is settled, and another worker starts."""
        holder = self.chance.choice(self.holders)
        self.holders[self.holders.index(holder)] = f"{holder}+"
        for call in [each for each in self.calls if each.holder == holder]:
            self.calls.remove(call)
            self.excess_of_dead += max(call.actual - call.ask.cost, 0)
            self.completed.append((call.until, call.actual))
        if not self.flaws.is_charged:
            left = {name: each for name, each in self.level.in_flight.items() if name != holder}
            self.level = replace(self.level, in_flight=left)

    def lose_state(self) -> None:
        """The workers report what is in flight before anything is granted."""
        if self.chance.random() < 0.1:
            self.level = NEW
            if self.flaws.is_fenced:
                self.since = self.now()
            self.renew()

    def set_clock_back(self) -> None:
        if self.chance.random() < 0.1:
            self.behind_us += self.chance.choice((1, SECOND_US, 20 * SECOND_US))


ACTIONS: dict[Callable[[MeteredFleet], None], tuple[int, ...]] = {
    MeteredFleet.wait: (1, 4, 12),
    MeteredFleet.begin: (4, 8),
    MeteredFleet.settle: (1, 4, 8),
    MeteredFleet.renew: (0, 1, 2),
    MeteredFleet.crash: (0, 0, 1),
    MeteredFleet.lose_state: (0, 0, 1),
    MeteredFleet.set_clock_back: (0, 0, 1),
}
