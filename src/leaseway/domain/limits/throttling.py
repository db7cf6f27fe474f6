"""What a provider's reply changes in a limit: it closes, slows down and reopens, or has less left than expected. Pure.

A notice is made by the worker that received the reply (`notices.py`), and applied by the limiter for the whole fleet.
"""

from msgspec.structs import replace

from leaseway.domain.ids import SECOND_US, Instant
from leaseway.domain.limits.breaker import apply_call
from leaseway.domain.limits.buckets import Acquisition, Notice, refill_us, refresh, repace, us_from_ns
from leaseway.domain.limits.level import Level
from leaseway.domain.limits.limit import PERCENT_MIN, RateWindow, Sizing
from leaseway.domain.limits.sliding_log import log_use, reserved_in, room_in

SLOWER = 70
"""The percentage of the rate that remains after the provider throttles a call."""
RETRY_SHARE = 10
RETRY_US_MIN = SECOND_US
"""A throttled call without Retry-After closes the limit for a tenth of the shortest window, at least a second."""


def apply_notice(taking: Acquisition, notice: Notice, now: Instant, since: Instant) -> Level:
    level = refresh(taking.level, taking.sizing, now, since)
    breaker = apply_call(level.breaker, taking.sizing.breaker, notice, now)
    if breaker is not level.breaker:
        level = replace(level, breaker=breaker)
    return (
        apply_throttle(taking, level, notice, now) if notice.throttled else apply_remaining(taking, level, notice, now)
    )


def apply_throttle(taking: Acquisition, level: Level, notice: Notice, now: Instant) -> Level:
    """Close the limit for the given time, slow it once per event, and let it reopen with one permit. A limit that is
    logged reopens with what is left of its window."""
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
    if taking.sizing.is_metered:
        return level
    buckets = dict(level.buckets)
    for window in taking.sizing.windows:
        bucket = buckets[window.window_us]
        one_permit = blocked_until + refill_us(window, bucket) - us_from_ns(bucket.permit_ns)
        buckets[window.window_us] = replace(bucket, tat=max(bucket.tat, one_permit))
    return replace(level, buckets=buckets)


def apply_remaining(taking: Acquisition, level: Level, notice: Notice, now: Instant) -> Level:
    """Apply the remaining quota that the provider reports, if it is smaller than the bucket's."""
    if notice.remaining is None or not taking.sizing.windows:
        return level
    window = matching_window(taking.sizing, notice.reset_us)
    if taking.sizing.is_metered:
        return log_unexplained(level, window, notice, now)
    bucket = level.buckets[window.window_us]
    left_us = us_from_ns(min(notice.remaining, window.burst) * bucket.permit_ns)
    tat = max(bucket.tat, now + refill_us(window, bucket) - left_us)
    return replace(level, buckets={**level.buckets, window.window_us: replace(bucket, tat=tat)})


def log_unexplained(level: Level, window: RateWindow, notice: Notice, now: Instant) -> Level:
    """Another client of the account has used what this fleet cannot explain. It counts until the window resets."""
    assert notice.remaining is not None
    room = room_in(window, level.used, reserved_in(level), level.percent)
    if room <= notice.remaining:
        return level
    reset_us = window.window_us if notice.reset_us is None else min(notice.reset_us, window.window_us)
    return log_use(level, window.window_us, now + reset_us, room - notice.remaining)


def matching_window(sizing: Sizing, reset_us: int | None) -> RateWindow:
    """The window that a provider's reset time belongs to: the shortest one that is at least as long."""
    longest = max(sizing.windows, key=lambda window: window.window_us)
    fitting = [window for window in sizing.windows if reset_us is not None and window.window_us >= reset_us]
    return min(fitting, key=lambda window: window.window_us, default=longest)
