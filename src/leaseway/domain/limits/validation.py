"""Checks of the arguments of a limiter. Every limiter refuses the same invalid values before it reads any state."""

from collections.abc import Sequence

from leaseway.domain.errors import BadValue
from leaseway.domain.ids import SECOND_US
from leaseway.domain.limits.buckets import Granted, Notice
from leaseway.domain.limits.limit import COUNT_MAX, PermitRequest
from leaseway.domain.validators import check_int, check_name

PERMIT_REQUESTS_MAX = 16
SPAN_US_MAX = 31 * 86_400 * SECOND_US
"""The longest time that is accepted. Every store can add it to an instant without overflow."""
GENERATION_MAX = 2**31 - 1
"""More than any limiter counts."""


def check_requests(asks: Sequence[PermitRequest]) -> None:
    check_int("asks: their number", len(asks), 1, PERMIT_REQUESTS_MAX)
    for ask in asks:
        check_name("ask: name", ask.name)
        check_name(f"ask {ask.name}: limit", ask.limit)
        check_int(f"ask {ask.name}: cost", ask.cost, 1, COUNT_MAX)
    if len({ask.name for ask in asks}) < len(asks):
        raise BadValue("asks", "name a limit twice; add up what it costs")


def check_acquire(asks: Sequence[PermitRequest], least: int, most: int, in_flight_us: int) -> None:
    check_requests(asks)
    check_int("least", least, 1, COUNT_MAX)
    check_int("most", most, least, COUNT_MAX)
    check_int("in_flight_us", in_flight_us, 0, SPAN_US_MAX)


def check_unused(granted: Granted, unused: int) -> None:
    """No more can be returned than was granted."""
    check_int("unused", unused, 0, granted.count)
    for generation in granted.generations:
        check_int("granted: generation", generation, 0, GENERATION_MAX)


def check_in_flight(asks: Sequence[PermitRequest], holder: str, count: int, in_flight_us: int = 1) -> None:
    check_requests(asks)
    check_name("holder", holder)
    check_int("count", count, 1, COUNT_MAX)
    check_int("in_flight_us", in_flight_us, 1, SPAN_US_MAX)


def check_ended(asks: Sequence[PermitRequest], holder: str, count: int, used: Sequence[int]) -> None:
    """With `used`, `count` may be 0: nothing is in flight any more, and only its use is reported."""
    check_in_flight(asks, holder, max(count, 1) if used else count)
    check_int("count", count, 0, COUNT_MAX)
    if used and len(used) != len(asks):
        raise BadValue("used", f"has {len(used)} amounts for {len(asks)} limits; give one for each")
    for ask, amount in zip(asks, used, strict=False):
        check_int(f"used: {ask.name}", amount, 0, COUNT_MAX)


def check_notice(notice: Notice) -> None:
    for field, value, most in (
        ("generation", notice.generation, GENERATION_MAX),
        ("retry_after_us", notice.retry_after_us, SPAN_US_MAX),
        ("reset_us", notice.reset_us, SPAN_US_MAX),
        ("remaining", notice.remaining, COUNT_MAX),
        ("circuit", notice.circuit, GENERATION_MAX),
    ):
        if value is not None:
            check_int(f"notice about {notice.name}: {field}", value, 0, most)
