"""The rate limiter's buckets (GCRA): every decision about permits. All functions are pure.

A bucket holds at most B permits and gains one every T; `limit.py` explains how B and T follow from a limit.

The state of a bucket is its `tat` (theoretical arrival time), the instant at which it will be full again: it holds
B − (tat − now) / T permits. A clock that steps back can only lower that number, and a refusal does not change it. State
that was written under another fence (`since`) is not trusted: the bucket counts as empty at `since`.

Windows of limits in other units than requests are logged instead: `sliding_log.py` has their arithmetic.

The limiters in memory, SQLite and MongoDB call this module. PostgreSQL and Redis implement the same rules in SQL and
Lua, and a recorded trace proves that all of them give the same answers.
"""

import math
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from leaseway.domain.ids import SECOND_US, Instant
from leaseway.domain.limits.breaker import NO_BREAKER, begin_probe, breaker_wait, is_half_open, is_watched
from leaseway.domain.limits.level import NEW, Bucket, InFlight, Level
from leaseway.domain.limits.limit import COUNT_MAX, PermitRequest, RateWindow, Sizing, divide_up
from leaseway.domain.limits.sliding_log import (
    LOGGED,
    held_until,
    log_call,
    relog,
    reserve,
    reserved_in,
    room_in,
    wait_for,
)

FASTER = 5
"""The percentage points that are restored after each quiet span."""
QUIET_US_MIN = 10 * SECOND_US
IN_FLIGHT_GRACE_US = 10 * SECOND_US
"""After the limiter lost its state, workers report their in-flight calls within this time."""
IDLE_US = 31 * 86_400 * SECOND_US
"""State that has been idle for this long may be deleted, even if the clock is set back by less."""
CONCURRENCY_REACHED = "its concurrency limit is reached"
PAUSED = "it is paused"
RATE_USED = "its rate per {:g} s is used up"
PAUSED_US = 5 * SECOND_US
"""How often to check whether a paused limit was resumed."""
IN_FLIGHT_WAIT_US = SECOND_US // 2
"""When to ask again under a concurrency limit: it is not known when a call ends."""


class Granted(Struct, frozen=True):
    """`count` permits for each of the requests. They are valid for `lease_us`, counted from before the call was
    sent."""

    asks: tuple[PermitRequest, ...]
    count: int
    granted_at: Instant
    since: Instant
    lease_us: int
    generations: tuple[int, ...]
    """In the order of the requests. A notice about a throttled call carries it back."""
    circuits: tuple[int, ...] = ()
    """The numbers of their circuit breakers, which reports of calls carry back; -1: it has none. Empty if none has
    one."""
    watched: tuple[bool, ...] = ()
    """Whether answers are reported to the circuit breaker, too."""


class Wait(Struct, frozen=True):
    """No permit now. `name` is the limit with the longest wait, and `why` explains it."""

    wait_us: int
    name: str
    why: str


class Never(Struct, frozen=True):
    """The request is larger than what the limit ever grants at once, which is `most`."""

    name: str
    most: int


Verdict = Granted | Wait | Never


class Notice(Struct, frozen=True):
    """What a provider's reply reported about one limit."""

    name: str
    limit: str
    generation: int
    throttled: bool = False
    retry_after_us: int | None = None
    remaining: int | None = None
    reset_us: int | None = None
    circuit: int = 0
    failed: bool = False
    """The provider did not reply, or failed to serve the call."""
    answered: bool = False


# -- taking and returning permits ----------------------------------------------------------------------------------


class Acquisition(Struct, frozen=True):
    """One request with the sizing and the level of its limit."""

    ask: PermitRequest
    sizing: Sizing
    level: Level


class CallHolder(Struct, frozen=True):
    """Who makes the calls, and for how long they are counted. After the limiter lost its state, no call starts before
    `none_before`, so that calls in flight can be reported first."""

    holder: str = ""
    in_flight_us: int = 0
    none_before: Instant = 0


class Denial(Struct, frozen=True):
    """Why a request cannot be granted now."""

    wait_us: int
    why: str = ""
    window_us: int | None = None
    """The window of the rate that is used up; None: the reason is not a rate."""
    place: int = -1


NO_HOLDER = CallHolder()
NO_DENIAL = Denial(0)


def take(
    takings: Sequence[Acquisition],
    now: Instant,
    since: Instant,
    least: int = 1,
    most: int = 1,
    caller: CallHolder = NO_HOLDER,
) -> tuple[Verdict, list[Level]]:
    """Grant all requests or none. Returns the verdict and the levels to write, in their order. A refusal changes
    only the time at which the next refused caller should come back."""
    before = [taking.level for taking in takings]
    levels = [refresh(taking.level, taking.sizing, now, since) for taking in takings]
    count, longest = most, NO_DENIAL
    for place, (taking, level) in enumerate(zip(takings, levels, strict=True)):
        most_at_once = units_at_once(taking)
        if least > most_at_once:
            return Never(taking.ask.name, most_at_once * taking.ask.cost), before
        hindrance, units = available(taking, level, now, least, caller)
        count = min(count, units)
        if hindrance.wait_us > longest.wait_us:
            longest = replace(hindrance, place=place)
    if longest.wait_us > 0:
        wait, before[longest.place] = refuse(takings[longest.place], levels[longest.place], now, least, longest)
        return wait, before
    taken = [spend(taking, level, now, count, caller) for taking, level in zip(takings, levels, strict=True)]
    asks, lease_us = tuple(taking.ask for taking in takings), min(taking.sizing.lease_us for taking in takings)
    circuits, watched = circuits_granted(takings, levels)
    generations = tuple(level.generation for level in levels)
    return Granted(asks, count, now, since, lease_us, generations, circuits, watched), taken


def circuits_granted(
    takings: Sequence[Acquisition], levels: Sequence[Level]
) -> tuple[tuple[int, ...], tuple[bool, ...]]:
    if all(taking.sizing.breaker is None for taking in takings):
        return (), ()
    pairs = list(zip(takings, levels, strict=True))
    watched = tuple(taking.sizing.breaker is not None and is_watched(level.breaker) for taking, level in pairs)
    numbers = tuple(NO_BREAKER if taking.sizing.breaker is None else level.breaker.number for taking, level in pairs)
    return numbers, watched


def forecast(takings: Sequence[Acquisition], now: Instant, since: Instant, horizon_us: int) -> tuple[int, Wait | None]:
    """How many permits could be granted within this time if there were no other callers; or why not even one. An
    estimate that takes nothing, for deciding how many jobs to start."""
    units, longest = COUNT_MAX, NO_DENIAL
    for place, taking in enumerate(takings):
        level = refresh(taking.level, taking.sizing, now, since)
        hindrance, now_units = available(taking, level, now, 1, NO_HOLDER)
        if hindrance.wait_us > longest.wait_us:
            longest = replace(hindrance, place=place)
        if taking.sizing.is_metered:
            units = min(units, now_units)
        for window in () if taking.sizing.is_metered else taking.sizing.windows:
            bucket = level.buckets[window.window_us]
            room_us = refill_us(window, bucket) - max(bucket.tat - now, 0) + horizon_us
            units = min(units, room_us * 1_000 // (taking.ask.cost * bucket.permit_ns))
    if longest.wait_us > horizon_us:
        return 0, Wait(longest.wait_us, takings[longest.place].ask.name, longest.why)
    return max(units, 1), None


def units_at_once(taking: Acquisition) -> int:
    """How many of these requests could be granted together if nothing had been used."""
    concurrency = COUNT_MAX if taking.sizing.concurrency is None else taking.sizing.concurrency
    return min([concurrency, *(window.burst // taking.ask.cost for window in taking.sizing.windows)])


def available(taking: Acquisition, level: Level, now: Instant, least: int, caller: CallHolder) -> tuple[Denial, int]:
    """The denial with the longest wait, and how many of this request would be granted now."""
    if taking.sizing.paused:
        return Denial(PAUSED_US, PAUSED), 0
    longest, threshold = Denial(level.blocked_until - now, "the provider asked for a wait"), taking.sizing.breaker
    units = least if is_half_open(level.breaker, threshold, now) else COUNT_MAX
    wait_us, why = breaker_wait(level.breaker, threshold, now)
    if wait_us > max(longest.wait_us, 0):
        longest = Denial(wait_us, why)
    if taking.sizing.is_metered:
        return available_in_log(taking, level, now, least, caller, longest, units)
    for window in taking.sizing.windows:
        bucket = level.buckets[window.window_us]
        room_us = refill_us(window, bucket) - max(bucket.tat - now, 0)
        units = min(units, room_us * 1_000 // (taking.ask.cost * bucket.permit_ns))
        wait_us = us_from_ns(least * taking.ask.cost * bucket.permit_ns) - room_us
        if wait_us > longest.wait_us:
            longest = Denial(wait_us, RATE_USED.format(window.window_us / SECOND_US), window.window_us)
    if taking.sizing.concurrency is not None:
        free = taking.sizing.concurrency - sum(calls.count for calls in level.in_flight.values())
        units = min(units, free)
        wait_us = max(caller.none_before - now, in_flight_wait_us(level, now) if free < least else 0)
        if wait_us > longest.wait_us:
            longest = Denial(wait_us, CONCURRENCY_REACHED)
    return longest, units


def available_in_log(
    taking: Acquisition, level: Level, now: Instant, least: int, caller: CallHolder, longest: Denial, units: int
) -> tuple[Denial, int]:
    """As `available`, for a limit that is logged. After the limiter lost its state, reservations are reported first."""
    reserved = reserved_in(level)
    for window in taking.sizing.windows:
        room = room_in(window, level.used, reserved, level.percent)
        units, missing = min(units, room // taking.ask.cost), least * taking.ask.cost - room
        wait_us = caller.none_before - now
        if missing > 0:
            wait_us = max(wait_us, wait_for(missing, window, level.used, reserved > 0, now))
        if wait_us > longest.wait_us:
            longest = Denial(wait_us, RATE_USED.format(window.window_us / SECOND_US), window.window_us)
    return longest, units


def refuse(taking: Acquisition, level: Level, now: Instant, least: int, hindrance: Denial) -> tuple[Wait, Level]:
    """Give each refused caller its own time to come back, so that they do not all return at once. Under a limit that
    is logged, the use of others says when there is room."""
    if hindrance.window_us is None or taking.sizing.is_metered:
        return Wait(hindrance.wait_us, taking.ask.name, hindrance.why), taking.level
    bucket, earliest = level.buckets[hindrance.window_us], now + hindrance.wait_us
    # Callers whose turn is more than a window away have given up long ago.
    turn = max(bucket.turn, earliest) if bucket.turn <= earliest + hindrance.window_us else earliest
    bucket = replace(bucket, turn=turn + us_from_ns(least * taking.ask.cost * bucket.permit_ns))
    level = replace(level, buckets={**level.buckets, hindrance.window_us: bucket})
    return Wait(turn - now, taking.ask.name, hindrance.why), level


def spend(taking: Acquisition, level: Level, now: Instant, count: int, caller: CallHolder) -> Level:
    breaker = begin_probe(level.breaker, taking.sizing.breaker, now, caller.in_flight_us)
    if breaker is not level.breaker:
        level = replace(level, breaker=breaker)
    if taking.sizing.is_metered:
        return reserve(level, caller.holder, count * taking.ask.cost, now + caller.in_flight_us)
    buckets = dict(level.buckets)
    for window in taking.sizing.windows:
        bucket = buckets[window.window_us]
        tat = max(bucket.tat, now) + us_from_ns(count * taking.ask.cost * bucket.permit_ns)
        buckets[window.window_us] = replace(bucket, tat=tat)
    in_flight = dict(level.in_flight)
    if taking.sizing.concurrency is not None:
        held = in_flight.get(caller.holder, InFlight(0, now)).count
        in_flight[caller.holder] = InFlight(held + count, now + caller.in_flight_us)
    return replace(level, buckets=buckets, in_flight=in_flight)


def credit_unused(taking: Acquisition, now: Instant, granted: Granted, unused: int) -> Level:
    """Take back unused permits. They lose value with time: if they had not been taken, the bucket might have been
    full and would have gained nothing. After a throttled call none are taken back, because the limit reopens
    with one permit."""
    level, age_us = taking.level, now - granted.granted_at
    generation = granted.generations[granted.asks.index(taking.ask)]
    is_outdated = level.since != granted.since or level.generation != generation or age_us < 0
    if is_outdated or taking.sizing.is_metered:  # the end of the call returns its reservation
        return level
    buckets = dict(level.buckets)
    for window in taking.sizing.windows:
        bucket = buckets.get(window.window_us)
        if bucket is not None:
            worth_us = unused * taking.ask.cost * bucket.permit_ns // 1_000 - age_us
            buckets[window.window_us] = replace(bucket, tat=bucket.tat - max(worth_us, 0))
    return replace(level, buckets=buckets)


def end_calls(taking: Acquisition, holder: str, count: int, used: int | None, now: Instant) -> Level:
    """`used`: what the calls used of a limit that is logged. None: what they had reserved."""
    level, sizing = taking.level, taking.sizing
    if sizing.is_metered:
        reserved, count = count * taking.ask.cost, count * taking.ask.cost
        level = log_call(level, sizing, now, reserved if used is None else used)
    in_flight = dict(level.in_flight)
    if (calls := in_flight.pop(holder, None)) is not None and calls.count > count:
        in_flight[holder] = replace(calls, count=calls.count - count)
    return replace(level, in_flight=in_flight)


def renew_calls(taking: Acquisition, level: Level, holder: str, count: int, until: Instant) -> Level:
    """Set the number of calls that this holder has in flight, whatever was counted before."""
    if taking.sizing.is_metered:
        level = replace(level, in_flight={**level.in_flight, holder: InFlight(0, held_until(level, holder))})
        return reserve(level, holder, count * taking.ask.cost, until)
    return replace(level, in_flight={**level.in_flight, holder: InFlight(count, until)})


# -- the passing of time and new definitions ------------------------------------------------------------------------


def refresh(level: Level, sizing: Sizing, now: Instant, since: Instant) -> Level:
    """The level at this moment: reset after a fence, recovered from slowing, at the current pace, without expired
    calls."""
    if level.since != since:
        level = replace(level, since=since, buckets={}, in_flight={}, used=())
    if level.percent < 100 and now - level.slowed_at >= (span_us := quiet_us(sizing)):
        spans = (now - level.slowed_at) // span_us
        percent = min(100, level.percent + FASTER * spans)
        level = replace(level, percent=percent, slowed_at=level.slowed_at + spans * span_us)
    if sizing.is_metered:
        return relog(level, sizing, now)
    if any(calls.until <= now for calls in level.in_flight.values()):
        level = replace(
            level, in_flight={holder: calls for holder, calls in level.in_flight.items() if calls.until > now}
        )
    return repace(level, sizing, now)


def repace(level: Level, sizing: Sizing, now: Instant) -> Level:
    """One bucket per window at the current pace; used permits stay used. A bucket without state counts as empty at the
    fence, unless the definition says how it starts; one of a window that a new definition added is empty now."""
    if sizing.is_metered:
        return relog(level, sizing, now)
    buckets = {}
    for window in sizing.windows:
        permit_ns = divide_up(window.permit_ns * 100, level.percent)
        bucket = level.buckets.get(window.window_us)
        if bucket is None or bucket.turn == LOGGED:
            empty_at = now if level.buckets or sizing.starts_empty else level.since
            is_full = sizing.starts_full and not level.buckets
            bucket = Bucket(empty_at + (0 if is_full else us_from_ns(window.burst * permit_ns)), 0, permit_ns)
        elif bucket.permit_ns != permit_ns:
            away_us = math.ceil(max(bucket.tat - now, 0) * (permit_ns / bucket.permit_ns))
            # Use under a larger limit leaves the window after its length. It must not close a smaller limit for months.
            most_us = max(window.window_us, us_from_ns(window.burst * permit_ns)) + max(level.blocked_until - now, 0)
            bucket = Bucket(now + min(away_us, most_us), bucket.turn, permit_ns)
        buckets[window.window_us] = bucket
    return replace(level, buckets=buckets, used=())


def idle_at(level: Level, sizing: Sizing) -> Instant | None:
    """When this level becomes the same as a new one and may be deleted. None: it must be kept."""
    is_whole = all(window.window_us in level.buckets for window in sizing.windows)
    if not is_whole or sizing.starts_empty or level.percent < 100 or level.generation > 0:
        return None
    ends = [bucket.tat for bucket in level.buckets.values()] + [bucket.turn for bucket in level.buckets.values()]
    ends += [level.since + us_from_ns(window.burst * window.permit_ns) for window in sizing.windows]
    ends += [calls.until for calls in level.in_flight.values()]
    ends += [level.breaker.failed_at, level.breaker.open_until, level.breaker.probe_until]
    return max([level.since, level.blocked_until, *ends]) + IDLE_US


def quiet_us(sizing: Sizing) -> int:
    return max(min((window.window_us for window in sizing.windows), default=0), QUIET_US_MIN)


def in_flight_wait_us(level: Level, now: Instant) -> int:
    first = min((calls.until for calls in level.in_flight.values()), default=now + IN_FLIGHT_WAIT_US)
    return max(min(first - now, IN_FLIGHT_WAIT_US), 1)


def refill_us(window: RateWindow, bucket: Bucket) -> int:
    """How long an empty bucket takes to fill."""
    return us_from_ns(window.burst * bucket.permit_ns)


def permits_left(window: RateWindow, bucket: Bucket, now: Instant, level: Level = NEW) -> int:
    """How many permits the bucket holds now. `level`: its level, which may be logged."""
    if bucket.turn == LOGGED:
        return max(room_in(window, level.used, reserved_in(level), level.percent), 0)
    return max(refill_us(window, bucket) - max(bucket.tat - now, 0), 0) * 1_000 // bucket.permit_ns


def us_from_ns(ns: int) -> int:
    return divide_up(ns, 1_000)
