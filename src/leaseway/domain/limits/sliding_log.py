"""Limits that are settled with what calls really used: those in other units than requests, such as tokens. Pure.

A call reserves its estimate before it leaves. When it ends, the reservation goes and what it used is logged. A call is
admitted only if, in each window W of the limit L,

    what is logged within the last W + what is reserved ≤ L

What a call used counts from its end, because only the provider knows at which moment between its start and its end the
provider counted it. `docs/concepts/limits.md` has the proof. The log has slices, so that it stays small: what is logged
in a slice counts until a window after the end of the slice.
"""

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from leaseway.domain.ids import SECOND_US, Instant
from leaseway.domain.limits.level import Bucket, InFlight, Level, Use, Uses
from leaseway.domain.limits.limit import RateWindow, Sizing

SLICES = 60
"""Of each window. A coarser log would keep more of the limit unused."""
LOGGED = -1
"""The `turn` of a bucket that only marks that its window is logged. Its `tat` is when its last use leaves it."""
SETTLE_WAIT_US = SECOND_US // 2
"""When to ask again while calls are in flight: each of them may return what it does not use."""


NOTHING_USED: Mapping[str, int] = {}
"""The use, by limit, of calls that were not made or that the provider has refused. Compared by identity."""


def counts_until(window_us: int, at: Instant) -> Instant:
    slice_us = max(window_us // SLICES, 1)
    return (at // slice_us + 1) * slice_us + window_us


def add_use(uses: Uses, window_us: int, until: Instant, amount: int) -> Uses:
    """Uses of one slice are one entry."""
    for place, each in enumerate(uses):
        if (each.window_us, each.until) == (window_us, until):
            return (*uses[:place], Use(window_us, until, each.amount + amount), *uses[place + 1 :])
    return (*uses, Use(window_us, until, amount))


def keep_counted(uses: Uses, windows: Iterable[RateWindow], now: Instant) -> Uses:
    lengths = {window.window_us for window in windows}
    return tuple(each for each in uses if each.until > now and each.window_us in lengths)


def room_in(window: RateWindow, uses: Uses, reserved: int, percent: int) -> int:
    """How much of the limit is neither used nor reserved. Negative: calls have used more than their estimates."""
    used = sum(each.amount for each in uses if each.window_us == window.window_us)
    return window.burst * percent // 100 - used - reserved


def wait_for(missing: int, window: RateWindow, uses: Uses, is_reserved: bool, now: Instant) -> int:
    """When this much will have left the window, or when to ask again because calls may end before."""
    wait_us = SETTLE_WAIT_US
    for each in sorted((use for use in uses if use.window_us == window.window_us), key=lambda use: use.until):
        missing -= each.amount
        if missing <= 0:
            wait_us = min(each.until - now, SETTLE_WAIT_US) if is_reserved else each.until - now
            break
    return max(wait_us, 1)


# -- the log of a level ---------------------------------------------------------------------------------------------


def reserved_in(level: Level) -> int:
    return sum(calls.count for calls in level.in_flight.values())


def held_until(level: Level, holder: str) -> Instant:
    calls = level.in_flight.get(holder)
    return 0 if calls is None else calls.until


def reserve(level: Level, holder: str, amount: int, until: Instant) -> Level:
    """A reservation lasts until the last call of its holder must have ended."""
    held = level.in_flight.get(holder, InFlight(0, 0))
    calls = InFlight(held.count + amount, max(held.until, until))
    return replace(level, in_flight={**level.in_flight, holder: calls})


def log_call(level: Level, sizing: Sizing, at: Instant, amount: int) -> Level:
    """A call has ended at this instant."""
    for window in sizing.windows if amount else ():
        level = log_use(level, window.window_us, counts_until(window.window_us, at), amount)
    return level


def log_use(level: Level, window_us: int, until: Instant, amount: int) -> Level:
    bucket = level.buckets[window_us]
    bucket = replace(bucket, tat=max(bucket.tat, until))
    used = add_use(level.used, window_us, until, amount)
    return replace(level, used=used, buckets={**level.buckets, window_us: bucket})


def relog(level: Level, sizing: Sizing, now: Instant) -> Level:
    """The log at this moment. What a holder has reserved and not reported in time is used. A window without a log is
    used up where a bucket would be empty."""
    before, fresh = level, replace(level, buckets={}, used=keep_counted(level.used, sizing.windows, now))
    for window in sizing.windows:
        bucket = before.buckets.get(window.window_us)
        is_new = bucket is None or bucket.turn != LOGGED
        mark = Bucket(0 if bucket is None or is_new else bucket.tat, LOGGED, window.permit_ns)
        fresh = replace(fresh, buckets={**fresh.buckets, window.window_us: mark})
        is_full = sizing.starts_full and not before.buckets
        until = window.window_us + (now if before.buckets or sizing.starts_empty else level.since)
        if is_new and not is_full and until > now:
            fresh = log_use(fresh, window.window_us, until, window.burst)
    for holder, calls in before.in_flight.items():
        if calls.until <= now:
            left = {name: each for name, each in fresh.in_flight.items() if name != holder}
            fresh = log_call(replace(fresh, in_flight=left), sizing, calls.until, calls.count)
    return replace(fresh, used=keep_counted(fresh.used, sizing.windows, now))
