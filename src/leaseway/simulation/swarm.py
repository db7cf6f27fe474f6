"""What one seed decides: which faults there are, how often, and how large the world is.

Every probability is drawn per seed, and many are drawn as zero: in a world with all faults at once each fault hides
what another one would have shown.
"""

from random import Random

from msgspec import Struct
from msgspec.structs import replace

LEASE_SECONDS = 2.0
FAULTY_SECONDS = 10.0
FAVOURITES = ("quick", "tidy", "steps", "sleepy", "parent", "endless")


class Streams:
    """One random stream per purpose, so that one more draw in one place does not change all the others."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def of(self, purpose: str) -> Random:
        return Random(f"{self.seed}:{purpose}")


class FaultRates(Struct, frozen=True, kw_only=True):
    """Probabilities per call of the store, unless the name says seconds."""

    latency_seconds: float = 0.01
    """Mean latency of one direction; never more than `LATENCY_SECONDS_MAX`."""
    stall: float = 0.0
    """The call or its reply takes up to several leases."""
    busy: float = 0.0
    full: float = 0.0
    """The disk is full in the middle of a transaction, which must leave nothing behind."""
    request_lost: float = 0.0
    reply_lost: float = 0.0
    """The call was executed, but the caller does not learn it."""
    blocked: float = 0.0
    """Per successful claim: a handler blocks the event loop, so that only the lease-renewal thread can act."""
    hint_lost: float = 0.0
    hint_wrong: float = 0.0


CALM = FaultRates()


class Swarm(Struct, frozen=True, kw_only=True):
    """One world. The `every` fields are mean seconds between two events; 0 means never."""

    faults: FaultRates
    workers: int
    concurrency: int
    grace_seconds: float
    crash_every: float
    pause_every: float
    pause_seconds: tuple[float, float]
    drain_every: float
    outage_every: float
    """Every call of every process fails for some seconds."""
    step_every: float
    """The machine's wall clock, which is the store's, is set forward or back."""
    submissions: int
    favourite: str
    """The kind of most submissions; empty for an even mix."""
    clients: int
    cancel: float
    """The probability that a submitted job is cancelled from outside."""
    replay_every: float
    """An operator retries failed and cancelled jobs."""


def draw(seed: int) -> Swarm:
    chance = Streams(seed).of("swarm")

    def maybe(share: float, least: float, most: float) -> float:
        """The share of worlds that have this fault."""
        value = chance.uniform(least, most)
        return value if chance.random() < share else 0.0

    workers = chance.choice((1, 1, 2, 3, 4))
    is_alone = workers == 1
    # A single worker that is away for longer than a lease is granted its own jobs again: keep other faults rare.
    faults = draw_faults(chance, roughness=chance.choice((0.0, 0.0, 1.0) if is_alone else (0.0, 1.0, 1.0, 2.0)))
    return Swarm(
        faults=replace(faults, blocked=draw_blocked(Streams(seed).of("blocked"))),
        workers=workers,
        concurrency=chance.randint(6, 12) if is_alone else chance.randint(1, 4),
        grace_seconds=chance.choice((0.0, 0.5, 10.0)),
        crash_every=maybe(0.1 if is_alone else 0.5, 2.0, 8.0),
        pause_every=maybe(0.9, 2.0, 4.0) if is_alone else maybe(0.5, 1.5, 6.0),
        pause_seconds=(LEASE_SECONDS, 1.7 * LEASE_SECONDS) if is_alone else (0.3, 3 * LEASE_SECONDS),
        drain_every=maybe(0.2 if is_alone else 0.5, 2.0, 8.0),
        outage_every=maybe(0.2, 4.0, 10.0),
        step_every=maybe(0.2, 4.0, 12.0),
        submissions=chance.randint(8, 18),
        favourite=chance.choice(("quick", "tidy", "steps") if is_alone else ("", *FAVOURITES)),
        clients=chance.randint(1, 3),
        cancel=maybe(0.6, 0.1, 0.5),
        replay_every=maybe(0.5, 2.0, 6.0),
    )


def draw_blocked(chance: Random) -> float:
    return chance.choice((0.0, 0.0, chance.uniform(0.1, 0.5)))


def draw_faults(chance: Random, roughness: float) -> FaultRates:
    """Some worlds have a perfect link to the store, some a very bad one."""

    def maybe(share: float, least: float, most: float) -> float:
        value = chance.uniform(least, most) * roughness
        return value if chance.random() < share else 0.0

    return FaultRates(
        latency_seconds=chance.choice((0.001, 0.01, 0.04)),
        stall=maybe(0.5, 0.002, 0.02),
        busy=maybe(0.5, 0.01, 0.1),
        full=maybe(0.4, 0.01, 0.1),
        request_lost=maybe(0.5, 0.01, 0.1),
        reply_lost=maybe(0.7, 0.02, 0.15),
        hint_lost=min(maybe(0.5, 0.1, 1.0), 1.0),
        hint_wrong=maybe(0.3, 0.05, 0.3),
    )
