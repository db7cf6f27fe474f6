"""Other limiters, each set up as in its own documentation: one call that may leave now, or may not.

They are imported late: a worker with a wrong clock must have it wrong before they read it.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import NamedTuple

Try = Callable[[], bool]


class Peer(NamedTuple):
    name: str
    package: str
    opened: Callable[[str, int, int], Try]
    """For the server at this URL, and this many calls in this many seconds."""


def limits_fixed(url: str, count: int, seconds: int) -> Try:
    return by_limits("FixedWindowRateLimiter", url, count, seconds)


def limits_moving(url: str, count: int, seconds: int) -> Try:
    return by_limits("MovingWindowRateLimiter", url, count, seconds)


def limits_sliding(url: str, count: int, seconds: int) -> Try:
    return by_limits("SlidingWindowCounterRateLimiter", url, count, seconds)


def by_limits(strategy: str, url: str, count: int, seconds: int) -> Try:
    from limits import RateLimitItemPerSecond, storage, strategies

    limiter = getattr(strategies, strategy)(storage.RedisStorage(url))
    item = RateLimitItemPerSecond(count, seconds)
    return lambda: bool(limiter.hit(item, "maps"))


def pyrate(url: str, count: int, seconds: int) -> Try:
    from pyrate_limiter import Limiter, Rate, RedisBucket
    from redis import Redis

    limiter = Limiter(RedisBucket.init([Rate(count, seconds * 1_000)], Redis.from_url(url), "maps"))
    return lambda: bool(limiter.try_acquire("maps", blocking=False))


def throttled_tokens(url: str, count: int, seconds: int) -> Try:
    return by_throttled("token_bucket", url, count, seconds)


def throttled_gcra(url: str, count: int, seconds: int) -> Try:
    return by_throttled("gcra", url, count, seconds)


def by_throttled(algorithm: str, url: str, count: int, seconds: int) -> Try:
    from throttled import Throttled, rate_limiter, store

    quota = rate_limiter.per_duration(timedelta(seconds=seconds), count, burst=count)
    throttle = Throttled(using=algorithm, quota=quota, store=store.RedisStore(server=url))
    return lambda: not throttle.limit("maps").limited


PEERS = {
    name: Peer(name, package, opened)
    for name, package, opened in (
        ("limits, fixed window", "limits", limits_fixed),
        ("limits, moving window", "limits", limits_moving),
        ("limits, sliding window", "limits", limits_sliding),
        ("PyrateLimiter", "pyrate_limiter", pyrate),
        ("throttled-py, token bucket", "throttled", throttled_tokens),
        ("throttled-py, GCRA", "throttled", throttled_gcra),
    )
}
IN_PROCESS = "aiolimiter"
