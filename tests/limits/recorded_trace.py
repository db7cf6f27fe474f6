"""Everything that can happen to a limiter, as values: a history is a list of steps that any limiter can run."""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from leaseway.domain.errors import UnknownLimit
from leaseway.domain.ids import SECOND_US, Instant
from leaseway.domain.limits.buckets import Granted, Notice
from leaseway.domain.limits.level import Level
from leaseway.domain.limits.limit import Limit, LimitDefinition, PermitRequest
from leaseway.ports.limiter import Limiter
from leaseway.testing.clock import FakeClock

DEFINITIONS: list[LimitDefinition] = [
    limit.definition
    for limit in (
        Limit("maps", "30/minute", breaker=2),
        Limit("maps", "7 per 11 s", "100/minute", burst=0.3, cost_max=3),
        Limit("maps", "100/minute", "997/hour", burst=0.03, lease=2),
        Limit("mail:{tenant}", "10 per 3 s", burst=0.7, cost_max=3),
        Limit("mail:{tenant}", "100 per 3 s", concurrency=2),
        Limit("phone", concurrency=3),
        Limit("phone", "50/minute", concurrency=2, cost_max=2),
        Limit("phone", "40 per 10 s", "200/minute", unit="tokens", cost_max=20),
        Limit("mail:{tenant}", "30 per 3 s", unit="tokens"),
        Limit("maps", "60 per 11 s", breaker=1),
        Limit("phone", "40 per 10 s", unit="tokens", cost_max=20, breaker=1),
    )
]
NAMES = {"maps": "maps", "mail:one": "mail:{tenant}", "mail:two": "mail:{tenant}", "phone": "phone"}
"""Every limit by its name, with the name of its definition."""
UNKNOWN = PermitRequest("fax", "fax")
NUMBER_MAX = 30
HOLDERS = ("one", "two")


class Step(Struct, frozen=True):
    """One method call with all arguments that any method might need; unused ones are ignored."""

    verb: str
    names: tuple[str, ...] = ("maps",)
    number: int = 1
    least: int = 1
    holder: str = "one"
    us: int = 0


class Life:
    """One limiter and its grants, which later steps return or refer to."""

    def __init__(self, limiter: Limiter, clock: FakeClock) -> None:
        self.limiter = limiter
        self.clock = clock
        self.grants: list[Granted] = []

    async def live(self, step: Step) -> Any:
        """Run a step and return the limiter's result."""
        try:
            return await getattr(self, step.verb)(step)
        except UnknownLimit:
            return "unknown"

    def asks(self, step: Step) -> Sequence[PermitRequest]:
        asks = [
            PermitRequest(name, NAMES[name], 1 + (step.number + place) % 3) for place, name in enumerate(step.names)
        ]
        return [*asks, UNKNOWN] if step.number == NUMBER_MAX else asks

    async def advance(self, step: Step) -> None:
        self.clock.advance_us(step.us)

    async def step_back(self, step: Step) -> None:
        """All in-flight calls end first: whether an expired call is counted again is not specified."""
        for holder in HOLDERS:
            await self.limiter.end_calls([PermitRequest(name, limit) for name, limit in NAMES.items()], holder, 1_000)
        self.clock.advance_us(-step.us // 10)

    async def declare(self, step: Step) -> None:
        await self.limiter.definitions.declare([DEFINITIONS[step.number % len(DEFINITIONS)]])

    async def change(self, step: Step) -> int:
        return await self.limiter.definitions.change(DEFINITIONS[step.number % len(DEFINITIONS)])

    async def forget(self, step: Step) -> bool:
        """Only for a short time, or nothing else would happen any more."""
        name = NAMES[step.names[0]]
        forgotten = await self.limiter.definitions.forget(name)
        if step.number % 8:
            await self.limiter.definitions.declare(
                [definition for definition in DEFINITIONS if definition.name == name][:1]
            )
        return forgotten

    async def take(self, step: Step) -> Any:
        most = step.least + step.number % 5
        verdict = await self.limiter.acquire(
            self.asks(step), least=step.least, most=most, holder=step.holder, in_flight_us=step.us + 1
        )
        if isinstance(verdict, Granted):
            self.grants.append(verdict)
        return verdict

    async def give_back(self, step: Step) -> None:
        if self.grants:
            granted = self.grants.pop(-1 - step.number % len(self.grants))
            await self.limiter.return_unused(granted, min(step.least, granted.count))

    async def vacate(self, step: Step) -> None:
        asks = self.asks(step)
        used = [(step.number * 3 + place) % 25 for place, _ in enumerate(asks)] if step.number % 3 else ()
        await self.limiter.end_calls(asks, step.holder, step.least, used)

    async def keep(self, step: Step) -> None:
        await self.limiter.renew_calls(self.asks(step), step.holder, step.least, step.us + 1)

    async def refuse(self, step: Step) -> None:
        """The provider refused, perhaps without a wait."""
        name = step.names[0]
        retry_after_us = None if step.number % 4 == 0 else step.us
        await self.limiter.observe(Notice(name, NAMES[name], step.number % 3, True, retry_after_us))

    async def remain(self, step: Step) -> None:
        name = step.names[0]
        reset_us = None if step.number % 2 else step.us
        await self.limiter.observe(Notice(name, NAMES[name], 0, remaining=step.number, reset_us=reset_us))

    async def fail(self, step: Step) -> None:
        """A call has failed, or was answered; it was granted lately or long ago."""
        name = step.names[0]
        numbers = [
            number
            for granted in self.grants[-3:]
            for request, number in zip(granted.asks, granted.circuits, strict=False)
            if request.name == name
        ]
        circuit = max(numbers[-1], 0) if numbers else step.number % 2
        failed = step.number % 4 > 0
        notice = Notice(name, NAMES[name], 0, circuit=circuit, failed=failed, answered=not failed)
        await self.limiter.observe(notice)

    async def look(self, step: Step) -> Any:
        now, levels = await self.limiter.levels(self.asks(step))
        return now, [from_now(level, now) for level in levels]

    async def definitions(self, step: Step) -> Any:
        """Definitions by position: a new field of definitions must not change the recorded results."""
        found = await self.limiter.definitions.all()
        return [[definition.name, DEFINITIONS.index(definition), version] for definition, version in found]


def from_now(level: Level, now: Instant) -> Any:
    """The relevant part of a level; a store may forget the rest at any time."""
    buckets = {
        str(window_us): [max(bucket.tat - now, 0), max(bucket.turn - now, 0), bucket.permit_ns]
        for window_us, bucket in level.buckets.items()
    }
    seats = {who: [seat.count, seat.until - now] for who, seat in level.in_flight.items()}
    slowed = [level.percent, level.slowed_at if level.percent < 100 else 0, level.generation]
    used = sorted([use.window_us, use.until - now, use.amount] for use in level.used)
    breaker = level.breaker
    circuit = [
        breaker.number,
        breaker.trips,
        *(max(each - now, 0) for each in (breaker.open_until, breaker.probe_until)),
    ]
    return [buckets, seats, slowed, max(level.blocked_until - now, 0), level.since, used, circuit]


OFTEN = {
    "take": 12,
    "advance": 8,
    "give_back": 3,
    "look": 3,
    "vacate": 2,
    "keep": 1,
    "refuse": 2,
    "remain": 2,
    "fail": 5,
    "declare": 1,
    "change": 1,
    "definitions": 1,
    "step_back": 1,
    "forget": 1,
}
SPANS_US = [0, 1, 999, 100_000, SECOND_US, 3 * SECOND_US, 11 * SECOND_US, 61 * SECOND_US, 3_600 * SECOND_US]
BEGINNING = [Step("declare", number=number) for number in (0, 3, 5)] + [Step("advance", us=SPANS_US[-1])]
"""After an hour, buckets are full and calls may be in flight, on every store."""

OUTAGE = [Step("forget", number=1), Step("declare", number=0), Step("advance", us=SPANS_US[-1])]
OUTAGE += [Step("fail", number=1), Step("fail", number=2)]
OUTAGE += 4 * [
    *(2 * [Step("take", number=3), Step("look")]),
    Step("advance", us=61 * SECOND_US),
    *(2 * [Step("take", number=3), Step("look")]),
    Step("fail", number=1),
]
OUTAGE += [
    Step("take", number=3),
    Step("advance", us=SPANS_US[-1]),
    Step("take", number=3),
    Step("fail", number=4),
    Step("take", number=3),
]
"""A circuit breaker opens, its probes fail four times, and the fifth is answered."""
