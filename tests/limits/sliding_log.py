"""The provider's own view: every request that arrived, and the number of requests in any window, without buckets."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

from leaseway.domain.ids import Instant
from leaseway.domain.limits.limit import Rate

Arrival = tuple[Instant, int]
"""The instant and the weight of a request."""


def most_in_a_window(arrivals: Sequence[Arrival], window_us: int) -> int:
    """The fullest window starts with an arrival. Two arrivals exactly one window apart are not in the same window."""
    ordered = sorted(arrivals)
    instants = [at for at, _ in ordered]
    sums = [0, *accumulate(weight for _, weight in ordered)]
    return max((sums[bisect_left(instants, at + window_us)] - sums[i] for i, at in enumerate(instants)), default=0)


def excess(arrivals: Sequence[Arrival], rates: Sequence[Rate]) -> int:
    """By how much the worst window of all rates exceeds its limit; 0 or less means never."""
    return max(most_in_a_window(arrivals, rate.window_us) - rate.count for rate in rates)
