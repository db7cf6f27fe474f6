"""A fleet of hostile workers against one limit: they take permits ahead, send at the last moment, return late and
crash, while the store loses its state or its clock is set back.

Real time is the provider's. A seed decides the actions of fleet and store, and also which actions are frequent or
absent in this history: a fleet that always does a bit of everything never comes close to a bound. `Flaws` are the
safeguards that an ablation removes.
"""

from collections.abc import Callable
from random import Random

from msgspec import Struct
from msgspec.structs import replace
from tests.limits.sliding_log import Arrival, excess

from leaseway.domain.ids import SECOND_US, Instant
from leaseway.domain.limits.buckets import Acquisition, Granted, credit_unused, take
from leaseway.domain.limits.level import NEW, Level
from leaseway.domain.limits.limit import LimitDefinition, PermitRequest, Sizing, size_limit, wire_delay_us

START = 1_000 * SECOND_US
STEPS = 120


def one_for_one(taking: Acquisition, now: Instant, granted: Granted, unused: int) -> Level:
    """The obvious return: unused permits come back in full, however old they are."""
    return credit_unused(taking, granted.granted_at, granted, unused)


class Flaws(Struct, frozen=True):
    """The safeguards that are removed; by default none."""

    returned: Callable[[Acquisition, Instant, Granted, int], Level] = credit_unused
    fenced: bool = True
    skew_us: int = 0
    """Workers send their own clocks, and every second worker's clock is wrong by this much."""
    sizing: Sizing | None = None


SOUND = Flaws()


class Lease(Struct):
    granted: Granted
    begun: Instant
    """In real time, which a worker's monotonic clock measures."""
    left: int


class Fleet:
    def __init__(self, definition: LimitDefinition, seed: int, flaws: Flaws = SOUND) -> None:
        self.definition = definition
        self.flaws = flaws
        self.sizing = flaws.sizing or size_limit(definition)
        self.chance = Random(seed)
        self.real: Instant = START
        self.behind_us = 0
        self.since: Instant = 0  # long ago: the first burst is part of the hazard
        self.level = NEW
        self.leases: list[Lease] = []
        self.arrivals: list[Arrival] = []
        self.patience = self.chance.choice((0, 0.5, 1))
        """The share of calls that wait for the last moment of their lease."""
        self.ask = PermitRequest("maps", definition.name, self.chance.randint(1, definition.cost_max))

    def live(self) -> int:
        """Run a whole history; returns by how much the worst window exceeded the limit."""
        weights = [self.chance.choice(often) for often in ACTIONS.values()]
        for act in self.chance.choices(list(ACTIONS), weights, k=STEPS):
            act(self)
        return self.excess()

    def excess(self) -> int:
        return excess(self.arrivals, self.definition.rates)

    def now(self, worker: int = 0) -> Instant:
        return self.real - self.behind_us + self.flaws.skew_us * (worker % 2)

    def taking(self) -> Acquisition:
        return Acquisition(self.ask, self.sizing, self.level)

    # -- actions
    # --------------------------------------------------------------------------------------------------------

    def wait(self) -> None:
        longest_us = max(window.window_us for window in self.sizing.windows)
        token_us = self.sizing.windows[0].permit_ns // 1_000
        steps_us = [0, 1, token_us // 2, token_us, self.sizing.lease_us // 2, self.sizing.lease_us, longest_us // 7]
        self.real += self.chance.choice(steps_us)

    def lease(self) -> None:
        self.leased(self.chance.choice((1, 2, 5, 1_000)), self.chance.randrange(4))

    def leased(self, most: int, worker: int = 0) -> Lease | None:
        verdict, (self.level,) = take([self.taking()], self.now(worker), self.since, 1, most)
        if not isinstance(verdict, Granted):
            return None
        self.leases.append(Lease(verdict, self.real, verdict.count))
        return self.leases[-1]

    def send(self) -> None:
        """Send some calls of a valid lease, now or at the last moment; the network adds a delay."""
        if (lease := self.picked()) is not None and lease.left > 0:
            latest = lease.begun + lease.granted.lease_us
            at = latest if self.chance.random() < self.patience else self.real
            self.sent(lease, self.chance.choice((1, lease.left)), at, self.chance.choice((0, self.network_us())))

    def sent(self, lease: Lease, count: int, at: Instant, network_us: int = 0) -> None:
        """A worker that is too late discards its permits."""
        lease.left -= count
        if self.real <= at <= lease.begun + lease.granted.lease_us:
            self.arrivals.append((at + network_us, count * self.ask.cost))

    def network_us(self) -> int:
        shortest = self.definition.rates[0]
        return wire_delay_us(self.definition, shortest) // 2

    def give_back(self) -> None:
        if (lease := self.picked()) is not None:
            self.returned(lease)

    def returned(self, lease: Lease) -> None:
        self.leases.remove(lease)
        self.level = self.flaws.returned(self.taking(), self.now(), lease.granted, lease.left)

    def take_and_send(self, worker: int = 0) -> None:
        """Take all available permits at once."""
        if (lease := self.leased(1_000, worker)) is not None:
            self.sent(lease, lease.left, self.real)

    def crash(self) -> None:
        if self.leases:
            self.leases.remove(self.chance.choice(self.leases))

    def lose_state(self) -> None:
        """The store restarts empty or with an older state, only now and then."""
        if self.chance.random() < 0.1:
            self.level = self.chance.choice((NEW, replace(self.level, buckets={})))
            if self.flaws.fenced:
                self.since = self.now()

    def set_clock_back(self) -> None:
        if self.chance.random() < 0.1:
            self.behind_us += self.chance.choice((1, SECOND_US, 20 * SECOND_US))

    def picked(self) -> Lease | None:
        return self.chance.choice(self.leases) if self.leases else None


ACTIONS: dict[Callable[[Fleet], None], tuple[int, ...]] = {
    Fleet.wait: (1, 4, 12),
    Fleet.lease: (4, 8),
    Fleet.send: (1, 4, 8),
    Fleet.give_back: (0, 1, 4),
    Fleet.crash: (0, 0, 1),
    Fleet.lose_state: (0, 0, 1),
    Fleet.set_clock_back: (0, 0, 1),
}
"""The maximum number of each action in a history."""
