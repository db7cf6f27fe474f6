"""Buckets that hold in every window: what a limit's numbers become, and every decision about them.

For "L in any window W" a bucket of B tokens is refilled every T, so that B + (W + E + δ) / T ≤ L + 1: E is how long a
worker may keep tokens that it took ahead, δ the way from the grant to the provider. Costs are whole, and two sends
exactly W apart are not in one window, so the + 1 is safe. T is kept in whole nanoseconds, rounded up.

The whole state of a bucket is its `tat`, the instant at which it will be full again: it holds
B − (tat − now) / T tokens. A clock that steps back can only lower it, and a denial does not touch it. What was written
under another fence (`since`) is not trusted: the bucket was empty at `since`.

Everything here is pure. Memory and SQLite call it; PostgreSQL and Redis say the same in their own languages, and one
recorded trace proves that they give the same answers.
"""

import math
from collections.abc import Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from leaseway.domain.errors import BadValue
from leaseway.domain.ids import SECOND_US, Instant
from leaseway.domain.limits.limit import (
    COUNT_MAX,
    LimitDefinition,
    PermitRequest,
    Rate,
    fallback_rate,
    permit_lease_us,
    shared_rate,
    wire_delay_us,
)

EXACT_MAX = 2**53
"""Lua counts in doubles: beyond this it would no longer count exactly."""
BURST_MIN, SMALL_COUNT = 2, 10
"""With a burst of one, whoever comes a moment late for his turn wastes it, and a third of the rate is lost. Very small
limits cannot afford more."""
SLOWER = 70
"""Percent of the pace that is left after a congestion event."""
PERCENT_MIN = 10
FASTER = 5
"""Percent that come back for each quiet span."""
QUIET_US_MIN = 10 * SECOND_US
RETRY_SHARE = 10
RETRY_US_MIN = SECOND_US
"""A refusal that names no time closes for a tenth of the shortest window, at least a second."""
CONCURRENCY_ONLY_US = 60 * SECOND_US
"""A limit without rates grants seats; how long one waits for its call is the holder's affair."""
IN_FLIGHT_GRACE_US = 10 * SECOND_US
"""After a fence, holders of seats say within this time that they still sit there."""
IDLE_US = 31 * 86_400 * SECOND_US
"""What has been idle for so long may be forgotten, even if the clock is set back by less."""
CONCURRENCY_REACHED = "all its seats are taken"
PAUSED = "it is paused"
PAUSED_US = 5 * SECOND_US
"""How often somebody looks whether it was resumed."""
IN_FLIGHT_WAIT_US = SECOND_US // 2
"""When to look again for a free seat: nobody knows when one leaves."""


class RateWindow(Struct, frozen=True):
    """One rate of a limit, sized."""

    window_us: int
    burst: int
    token_ns: int


class Sizing(Struct, frozen=True):
    """A definition as stores use it. The version grows with every change."""

    windows: tuple[RateWindow, ...]
    concurrency: int | None = None
    lease_us: int = 0
    """How long after its grant a token may still be sent."""
    version: int = 1
    paused: bool = False


class Bucket(Struct, frozen=True):
    tat: Instant
    turn: Instant
    """When the next one who is refused shall come back: the shadow queue."""
    token_ns: int
    """The pace at which `tat` was written."""


class InFlight(Struct, frozen=True):
    count: int
    until: Instant


class Level(Struct, frozen=True):
    """All that is known about one limit: a bucket per window, and what the provider said."""

    buckets: Mapping[int, Bucket] = field(default_factory=dict)
    """By the length of their windows, in microseconds."""
    since: Instant = -1
    """The fence under which this was written."""
    blocked_until: Instant = 0
    percent: int = 100
    generation: int = 0
    """Counts congestion events: many workers see one, and it slows once."""
    slowed_at: Instant = 0
    seats: Mapping[str, InFlight] = field(default_factory=dict)
    """Calls under way, by who makes them."""


NEW = Level()


class Granted(Struct, frozen=True):
    """So many times the whole ask. Tokens are used within the lease, counted from before the call was sent."""

    asks: tuple[PermitRequest, ...]
    count: int
    granted_at: Instant
    since: Instant
    lease_us: int
    generations: tuple[int, ...]
    """In the order of the asks; a notice about a refusal carries it back."""


class Wait(Struct, frozen=True):
    """Not now. `name` is the limit that takes longest, and `why` says what of it, for people."""

    wait_us: int
    name: str
    why: str


class Never(Struct, frozen=True):
    """More than the limit ever grants at once, which is `most`."""

    name: str
    most: int


Verdict = Granted | Wait | Never


class Notice(Struct, frozen=True):
    """What a provider said about one limit in a reply."""

    name: str
    limit: str
    generation: int
    throttled: bool = False
    retry_after_us: int | None = None
    remaining: int | None = None
    reset_us: int | None = None


def size_limit(definition: LimitDefinition, version: int = 1) -> Sizing:
    windows = tuple(size_window(definition, shared_rate(definition, rate)) for rate in definition.rates)
    return Sizing(windows, definition.concurrency, permit_life_us(definition), version, definition.paused)


def size_fallback(definition: LimitDefinition) -> Sizing:
    """For a worker that cannot reach the limiter, and may use a part that was set aside."""
    windows = tuple(size_window(definition, fallback_rate(definition, rate)) for rate in definition.rates)
    return Sizing(windows, None, permit_life_us(definition))


def permit_life_us(definition: LimitDefinition) -> int:
    """The lease, and half of the delay: the other half is the network's."""
    delays_us = [wire_delay_us(definition, rate) for rate in definition.rates]
    return permit_lease_us(definition) + min(delays_us) // 2 if delays_us else CONCURRENCY_ONLY_US


def size_window(definition: LimitDefinition, rate: Rate) -> RateWindow:
    least = BURST_MIN if definition.burst_share and rate.count >= SMALL_COUNT else 1
    burst = min(max(definition.cost_max, math.ceil(definition.burst_share * rate.count), least), rate.count)
    span_us = rate.window_us + permit_lease_us(definition) + wire_delay_us(definition, rate)
    # Instants are whole microseconds: a faster bucket would hold more than its burst.
    token_ns = max(divide_up(span_us * 1_000, rate.count - burst + 1), 1_000)
    # A slowed pace is up to ten times as long.
    if burst * token_ns * (100 // PERCENT_MIN) >= EXACT_MAX:
        raise BadValue(
            f"limit {definition.name}",
            f"{rate} with a burst of {burst:,} cannot be counted exactly; give a shorter window or a smaller burst",
        )
    return RateWindow(rate.window_us, burst, token_ns)


# -- taking and giving back ----------------------------------------------------------------------------------------


class Acquisition(Struct, frozen=True):
    """One ask with all that is known about its limit."""

    ask: PermitRequest
    sizing: Sizing
    level: Level


class CallHolder(Struct, frozen=True):
    """Who sits down, and for how long. After a fence nobody does, until those who sat before have said so again."""

    holder: str = ""
    seat_us: int = 0
    none_before: Instant = 0


class Denial(Struct, frozen=True):
    wait_us: int
    why: str = ""
    window_us: int | None = None
    """Of the rate that is used up; None: tokens would not help."""
    place: int = -1


NO_HOLDER = CallHolder()
NO_DENIAL = Denial(0)


def take(
    takings: Sequence[Acquisition],
    now: Instant,
    since: Instant,
    least: int = 1,
    most: int = 1,
    seating: CallHolder = NO_HOLDER,
) -> tuple[Verdict, list[Level]]:
    """All asks or none; and the levels to write, in their order. Of a refusal only the shadow queue remains."""
    before = [taking.level for taking in takings]
    levels = [refresh(taking.level, taking.sizing, now, since) for taking in takings]
    count, longest = most, NO_DENIAL
    for place, (taking, level) in enumerate(zip(takings, levels, strict=True)):
        most_at_once = units_at_once(taking)
        if least > most_at_once:
            return Never(taking.ask.name, most_at_once * taking.ask.cost), before
        hindrance, units = available(taking, level, now, least, seating)
        count = min(count, units)
        if hindrance.wait_us > longest.wait_us:
            longest = replace(hindrance, place=place)
    if longest.wait_us > 0:
        wait, before[longest.place] = refuse(takings[longest.place], levels[longest.place], now, least, longest)
        return wait, before
    taken = [spend(taking, level, now, count, seating) for taking, level in zip(takings, levels, strict=True)]
    asks, lease_us = tuple(taking.ask for taking in takings), min(taking.sizing.lease_us for taking in takings)
    return Granted(asks, count, now, since, lease_us, tuple(level.generation for level in levels)), taken


def forecast(takings: Sequence[Acquisition], now: Instant, since: Instant, horizon_us: int) -> tuple[int, Wait | None]:
    """How many could be granted within this time, if nobody else asked; or what stands against even one. A guess that
    takes nothing: for those who decide whether it is worth while to get in line."""
    units, longest = COUNT_MAX, NO_DENIAL
    for place, taking in enumerate(takings):
        level = refresh(taking.level, taking.sizing, now, since)
        hindrance, _ = available(taking, level, now, 1, NO_HOLDER)
        if hindrance.wait_us > longest.wait_us:
            longest = replace(hindrance, place=place)
        for window in taking.sizing.windows:
            bucket = level.buckets[window.window_us]
            room_us = refill_us(window, bucket) - max(bucket.tat - now, 0) + horizon_us
            units = min(units, room_us * 1_000 // (taking.ask.cost * bucket.token_ns))
    if longest.wait_us > horizon_us:
        return 0, Wait(longest.wait_us, takings[longest.place].ask.name, longest.why)
    return max(units, 1), None


def units_at_once(taking: Acquisition) -> int:
    """How many of these asks could be granted together, if nothing had been used."""
    seats = COUNT_MAX if taking.sizing.concurrency is None else taking.sizing.concurrency
    return min([seats, *(window.burst // taking.ask.cost for window in taking.sizing.windows)])


def available(taking: Acquisition, level: Level, now: Instant, least: int, seating: CallHolder) -> tuple[Denial, int]:
    """What stands longest against this ask, and how many of it would pass now."""
    if taking.sizing.paused:
        return Denial(PAUSED_US, PAUSED), 0
    longest, units = Denial(level.blocked_until - now, "the provider asked us to wait"), COUNT_MAX
    for window in taking.sizing.windows:
        bucket = level.buckets[window.window_us]
        room_us = refill_us(window, bucket) - max(bucket.tat - now, 0)
        units = min(units, room_us * 1_000 // (taking.ask.cost * bucket.token_ns))
        wait_us = us_from_ns(least * taking.ask.cost * bucket.token_ns) - room_us
        if wait_us > longest.wait_us:
            longest = Denial(wait_us, f"its rate per {window.window_us / SECOND_US:g} s is used up", window.window_us)
    if taking.sizing.concurrency is not None:
        free = taking.sizing.concurrency - sum(seat.count for seat in level.seats.values())
        units = min(units, free)
        wait_us = max(seating.none_before - now, in_flight_wait_us(level, now) if free < least else 0)
        if wait_us > longest.wait_us:
            longest = Denial(wait_us, CONCURRENCY_REACHED)
    return longest, units


def refuse(taking: Acquisition, level: Level, now: Instant, least: int, hindrance: Denial) -> tuple[Wait, Level]:
    """Whoever is refused for want of tokens gets a turn of his own, so that not all come back at once."""
    if hindrance.window_us is None:
        return Wait(hindrance.wait_us, taking.ask.name, hindrance.why), taking.level
    bucket, earliest = level.buckets[hindrance.window_us], now + hindrance.wait_us
    # Beyond a whole window, those who were given turns have left long ago.
    turn = max(bucket.turn, earliest) if bucket.turn <= earliest + hindrance.window_us else earliest
    bucket = replace(bucket, turn=turn + us_from_ns(least * taking.ask.cost * bucket.token_ns))
    level = replace(level, buckets={**level.buckets, hindrance.window_us: bucket})
    return Wait(turn - now, taking.ask.name, hindrance.why), level


def spend(taking: Acquisition, level: Level, now: Instant, count: int, seating: CallHolder) -> Level:
    buckets = dict(level.buckets)
    for window in taking.sizing.windows:
        bucket = buckets[window.window_us]
        tat = max(bucket.tat, now) + us_from_ns(count * taking.ask.cost * bucket.token_ns)
        buckets[window.window_us] = replace(bucket, tat=tat)
    seats = dict(level.seats)
    if taking.sizing.concurrency is not None:
        held = seats.get(seating.holder, InFlight(0, now)).count
        seats[seating.holder] = InFlight(held + count, now + seating.seat_us)
    return replace(level, buckets=buckets, seats=seats)


def credit_unused(taking: Acquisition, now: Instant, granted: Granted, unused: int) -> Level:
    """Take back tokens that were not used. They are worth less with every moment: had they never been taken, the bucket
    might have been full and refilled nothing. After a refusal none come back: it was to reopen with one token."""
    level, age_us = taking.level, now - granted.granted_at
    generation = granted.generations[granted.asks.index(taking.ask)]
    if level.since != granted.since or level.generation != generation or age_us < 0:
        return level
    buckets = dict(level.buckets)
    for window in taking.sizing.windows:
        bucket = buckets.get(window.window_us)
        if bucket is not None:
            worth_us = unused * taking.ask.cost * bucket.token_ns // 1_000 - age_us
            buckets[window.window_us] = replace(bucket, tat=bucket.tat - max(worth_us, 0))
    return replace(level, buckets=buckets)


def end_calls(level: Level, holder: str, count: int) -> Level:
    seats = dict(level.seats)
    if (seat := seats.pop(holder, None)) is not None and seat.count > count:
        seats[holder] = replace(seat, count=seat.count - count)
    return replace(level, seats=seats)


def renew_calls(level: Level, holder: str, count: int, until: Instant) -> Level:
    """So many seats are this holder's, whatever was known of them before: calls that are under way are a fact."""
    return replace(level, seats={**level.seats, holder: InFlight(count, until)})


# -- what the provider says -----------------------------------------------------------------------------------------


def apply_notice(taking: Acquisition, notice: Notice, now: Instant, since: Instant) -> Level:
    level = refresh(taking.level, taking.sizing, now, since)
    return (
        apply_throttle(taking, level, notice, now) if notice.throttled else apply_remaining(taking, level, notice, now)
    )


def apply_throttle(taking: Acquisition, level: Level, notice: Notice, now: Instant) -> Level:
    """Closed until the time given, slower once for each event, and open again with one token."""
    retry_after_us = notice.retry_after_us
    if retry_after_us is None:
        shortest = min((window.window_us for window in taking.sizing.windows), default=0)
        retry_after_us = max(shortest // RETRY_SHARE, RETRY_US_MIN)
    blocked_until = max(level.blocked_until, now + retry_after_us)
    level = replace(level, blocked_until=blocked_until, slowed_at=blocked_until)
    if notice.generation == level.generation:
        percent = max(level.percent * SLOWER // 100, PERCENT_MIN)
        level = replace(level, percent=percent, generation=level.generation + 1)
    level = repace(level, taking.sizing, now)
    buckets = dict(level.buckets)
    for window in taking.sizing.windows:
        bucket = buckets[window.window_us]
        one_token = blocked_until + refill_us(window, bucket) - us_from_ns(bucket.token_ns)
        buckets[window.window_us] = replace(bucket, tat=max(bucket.tat, one_token))
    return replace(level, buckets=buckets)


def apply_remaining(taking: Acquisition, level: Level, notice: Notice, now: Instant) -> Level:
    """The provider says how much is left. Less than we thought: believed. More: not."""
    if notice.remaining is None or not taking.sizing.windows:
        return level
    window = matching_window(taking.sizing, notice.reset_us)
    bucket = level.buckets[window.window_us]
    left_us = us_from_ns(min(notice.remaining, window.burst) * bucket.token_ns)
    tat = max(bucket.tat, now + refill_us(window, bucket) - left_us)
    return replace(level, buckets={**level.buckets, window.window_us: replace(bucket, tat=tat)})


def matching_window(sizing: Sizing, reset_us: int | None) -> RateWindow:
    """Which window does a provider speak of that says when it begins anew? The shortest that lasts as long."""
    longest = max(sizing.windows, key=lambda window: window.window_us)
    fitting = [window for window in sizing.windows if reset_us is not None and window.window_us >= reset_us]
    return min(fitting, key=lambda window: window.window_us, default=longest)


# -- what time and new definitions do -------------------------------------------------------------------------------


def refresh(level: Level, sizing: Sizing, now: Instant, since: Instant) -> Level:
    """The level as it stands now: fenced, recovered, at the pace of today, without those who left their seats."""
    if level.since != since:
        level = replace(level, since=since, buckets={}, seats={})
    if level.percent < 100 and now - level.slowed_at >= (span_us := quiet_us(sizing)):
        spans = (now - level.slowed_at) // span_us
        percent = min(100, level.percent + FASTER * spans)
        level = replace(level, percent=percent, slowed_at=level.slowed_at + spans * span_us)
    if any(seat.until <= now for seat in level.seats.values()):
        level = replace(level, seats={who: seat for who, seat in level.seats.items() if seat.until > now})
    return repace(level, sizing, now)


def repace(level: Level, sizing: Sizing, now: Instant) -> Level:
    """A bucket for each window, at its present pace: tokens that were used stay used. A bucket that nobody has seen was
    empty at the fence; one that came later, with a new definition, is empty now."""
    buckets = {}
    for window in sizing.windows:
        token_ns = divide_up(window.token_ns * 100, level.percent)
        bucket = level.buckets.get(window.window_us)
        if bucket is None:
            empty_at = now if level.buckets else level.since
            bucket = Bucket(empty_at + us_from_ns(window.burst * token_ns), 0, token_ns)
        elif bucket.token_ns != token_ns:
            away_us = math.ceil(max(bucket.tat - now, 0) * (token_ns / bucket.token_ns))
            # What was used of a larger limit has left the window by then. It must not close a smaller one for months.
            most_us = max(window.window_us, us_from_ns(window.burst * token_ns)) + max(level.blocked_until - now, 0)
            bucket = Bucket(now + min(away_us, most_us), bucket.turn, token_ns)
        buckets[window.window_us] = bucket
    return replace(level, buckets=buckets)


def idle_at(level: Level, sizing: Sizing) -> Instant | None:
    """From when on nobody could tell this level from one that was never seen. None: it must be remembered."""
    is_whole = all(window.window_us in level.buckets for window in sizing.windows)
    if not is_whole or level.percent < 100 or level.generation > 0:
        return None
    ends = [bucket.tat for bucket in level.buckets.values()] + [bucket.turn for bucket in level.buckets.values()]
    ends += [level.since + us_from_ns(window.burst * window.token_ns) for window in sizing.windows]
    ends += [seat.until for seat in level.seats.values()]
    return max([level.since, level.blocked_until, *ends]) + IDLE_US


def quiet_us(sizing: Sizing) -> int:
    return max(min((window.window_us for window in sizing.windows), default=0), QUIET_US_MIN)


def in_flight_wait_us(level: Level, now: Instant) -> int:
    first = min((seat.until for seat in level.seats.values()), default=now + IN_FLIGHT_WAIT_US)
    return max(min(first - now, IN_FLIGHT_WAIT_US), 1)


def refill_us(window: RateWindow, bucket: Bucket) -> int:
    """How long an empty bucket takes to be full."""
    return us_from_ns(window.burst * bucket.token_ns)


def permits_left(window: RateWindow, bucket: Bucket, now: Instant) -> int:
    """How many are there now."""
    return max(refill_us(window, bucket) - max(bucket.tat - now, 0), 0) * 1_000 // bucket.token_ns


def us_from_ns(ns: int) -> int:
    return divide_up(ns, 1_000)


def divide_up(number: int, by: int) -> int:
    """Divided, and rounded up."""
    return -(-number // by)
