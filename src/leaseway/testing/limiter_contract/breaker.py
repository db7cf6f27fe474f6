"""Circuit breakers: after failures in a row no call leaves, until one call has probed the provider."""

import pytest

from leaseway.domain.errors import BadValue
from leaseway.domain.ids import SECOND_US
from leaseway.domain.limits.breaker import FAILURES_US, OPEN, OPEN_US, OPEN_US_MAX, PROBE_US_MIN, PROBED, PROBED_US
from leaseway.domain.limits.buckets import Granted, Notice
from leaseway.domain.limits.limit import Limit
from leaseway.ports.limiter import Limiter
from leaseway.testing.clock import FakeClock
from leaseway.testing.limiter_contract.fixtures import MAIL, MAPS, ask, granted, level_of, ready, throttled, waits

FRAIL = Limit("frail", "600/minute", breaker=3)
FRAIL_TOKENS = Limit("frail-tokens", "10000/minute", unit="tokens", breaker=3)
FRAIL_TENANTS = Limit("frail:{tenant}", "600/minute", breaker=3)


async def called(limiter: Limiter, limit: Limit, *, failed: bool, circuit: int | None = None, name: str = "") -> None:
    """A call has ended that was granted under this number of the breaker."""
    if circuit is None:
        circuit = (await level_of(limiter, limit)).breaker.number
    name = name or limit.name
    await limiter.observe(Notice(name, limit.name, 0, circuit=circuit, failed=failed, answered=not failed))


async def opened(limiter: Limiter, clock: FakeClock, limit: Limit = FRAIL) -> None:
    await ready(limiter, clock, limit)
    for _ in range(3):
        await called(limiter, limit, failed=True)


async def probe(limiter: Limiter, limit: Limit = FRAIL) -> Granted:
    return await granted(limiter, ask(limit), most=5)


@pytest.mark.parametrize("limit", [FRAIL, FRAIL_TOKENS], ids=["requests", "tokens"])
async def test_failures_in_a_row_stop_all_calls(limiter: Limiter, clock: FakeClock, limit: Limit) -> None:
    """Every further call would wait for a timeout, use up an attempt, and keep the provider down."""
    await ready(limiter, clock, limit)
    for _ in range(2):
        await called(limiter, limit, failed=True)
    await granted(limiter, ask(limit))
    await called(limiter, limit, failed=True)
    wait = await waits(limiter, ask(limit))
    assert (wait.wait_us, wait.name, wait.why) == (OPEN_US, limit.name, OPEN)


async def test_an_answer_between_failures_starts_the_count_again(limiter: Limiter, clock: FakeClock) -> None:
    """A provider that answers most calls is not down, and stopping the fleet would be worse than a few failures."""
    await ready(limiter, clock, FRAIL)
    for _ in range(5):
        await called(limiter, FRAIL, failed=True)
        await called(limiter, FRAIL, failed=True)
        await called(limiter, FRAIL, failed=False)
    await granted(limiter, ask(FRAIL))


async def test_answers_are_asked_for_only_after_a_failure(limiter: Limiter, clock: FakeClock) -> None:
    """A report of every call would double the load of the limiter."""
    await ready(limiter, clock, FRAIL, MAPS)
    assert (await granted(limiter, ask(FRAIL))).watched == (False,)
    await called(limiter, FRAIL, failed=True)
    both = await granted(limiter, ask(FRAIL), ask(MAPS))
    assert (both.circuits, both.watched) == ((0, -1), (True, False))
    alone = await granted(limiter, ask(MAPS))
    assert (alone.circuits, alone.watched) == ((), ())


async def test_failures_far_apart_are_not_in_a_row(limiter: Limiter, clock: FakeClock) -> None:
    """Three failures of a job that runs once a day say nothing about the provider."""
    await ready(limiter, clock, FRAIL)
    for _ in range(5):
        await called(limiter, FRAIL, failed=True)
        clock.advance_us(FAILURES_US + 1)
    await granted(limiter, ask(FRAIL))


async def test_after_the_wait_one_call_probes(limiter: Limiter, clock: FakeClock) -> None:
    """If all waiting calls left at once, a provider that comes back would be down again."""
    await opened(limiter, clock)
    clock.advance_us(OPEN_US - 1)
    await waits(limiter, ask(FRAIL))
    clock.advance_us(1)
    assert (await probe(limiter)).count == 1
    wait = await waits(limiter, ask(FRAIL))
    assert (wait.wait_us, wait.why) == (PROBED_US, PROBED)


async def test_a_probe_that_is_answered_closes_the_breaker(limiter: Limiter, clock: FakeClock) -> None:
    """The provider is back, and its whole rate is there at once."""
    await opened(limiter, clock)
    clock.advance_us(OPEN_US)
    verdict = await probe(limiter)
    await called(limiter, FRAIL, failed=False, circuit=verdict.circuits[0])
    assert (await probe(limiter)).count == 5
    for _ in range(2):
        await called(limiter, FRAIL, failed=True)
    await granted(limiter, ask(FRAIL))


async def test_probes_that_fail_come_less_and_less_often(limiter: Limiter, clock: FakeClock) -> None:
    """An outage of hours must not cost an attempt every ten seconds, nor may its end be noticed only hours later."""
    await opened(limiter, clock)
    expected = OPEN_US
    for _ in range(8):
        assert (await waits(limiter, ask(FRAIL))).wait_us == expected
        clock.advance_us(expected)
        verdict = await probe(limiter)
        await called(limiter, FRAIL, failed=True, circuit=verdict.circuits[0])
        expected = min(2 * expected, OPEN_US_MAX)
    clock.advance_us(OPEN_US_MAX)
    await called(limiter, FRAIL, failed=False, circuit=(await probe(limiter)).circuits[0])
    for _ in range(3):
        await called(limiter, FRAIL, failed=True)
    assert (await waits(limiter, ask(FRAIL))).wait_us == OPEN_US


async def test_a_lost_probe_is_replaced(limiter: Limiter, clock: FakeClock) -> None:
    """Its worker may have died, and the limit must not stay closed for ever."""
    await opened(limiter, clock)
    clock.advance_us(OPEN_US)
    await limiter.acquire([ask(FRAIL)], holder="one", in_flight_us=2 * PROBE_US_MIN)
    clock.advance_us(2 * PROBE_US_MIN - 1)
    await waits(limiter, ask(FRAIL))
    clock.advance_us(1)
    await probe(limiter)


async def test_calls_that_began_before_say_nothing_afterwards(limiter: Limiter, clock: FakeClock) -> None:
    """Calls that were in flight when the breaker opened time out one by one. They must neither prolong its wait nor
    open it again after the provider has answered."""
    await opened(limiter, clock)
    for failed in (True, True, False):
        await called(limiter, FRAIL, failed=failed, circuit=0)
    assert (await waits(limiter, ask(FRAIL))).wait_us == OPEN_US
    clock.advance_us(OPEN_US)
    verdict = await probe(limiter)
    await called(limiter, FRAIL, failed=False, circuit=0)
    await waits(limiter, ask(FRAIL))
    await called(limiter, FRAIL, failed=False, circuit=verdict.circuits[0])
    for _ in range(5):
        await called(limiter, FRAIL, failed=True, circuit=0)
    await granted(limiter, ask(FRAIL))


async def test_a_refusal_and_an_open_breaker_wait_for_the_longer(limiter: Limiter, clock: FakeClock) -> None:
    """Neither may open the limit for the other."""
    await opened(limiter, clock)
    await throttled(limiter, FRAIL, seconds=60)
    assert (await waits(limiter, ask(FRAIL))).wait_us == 60 * SECOND_US
    clock.advance(60)
    assert (await probe(limiter)).count == 1


async def test_breakers_of_tenants_are_apart(limiter: Limiter, clock: FakeClock) -> None:
    """The revoked account or the broken endpoint of one tenant must not stop the calls of the others."""
    await ready(limiter, clock, FRAIL_TENANTS, MAIL)
    for _ in range(3):
        await called(limiter, FRAIL_TENANTS, failed=True, circuit=0, name="frail:one")
    await granted(limiter, ask(FRAIL_TENANTS, name="frail:two"))
    await granted(limiter, ask(MAIL))
    assert (await waits(limiter, ask(MAIL), ask(FRAIL_TENANTS, name="frail:one"))).name == "frail:one"


async def test_a_limit_without_a_breaker_ignores_failures(limiter: Limiter, clock: FakeClock) -> None:
    """A limit without `breaker=` must never stop a fleet."""
    await ready(limiter, clock, MAPS)
    for _ in range(20):
        await called(limiter, MAPS, failed=True, circuit=0)
    assert (await granted(limiter, ask(MAPS))).circuits == ()
    await opened(limiter, clock)
    await limiter.definitions.change(Limit("frail", "600/minute").definition)
    await granted(limiter, ask(FRAIL))


@pytest.mark.parametrize("threshold", [0, -1, 1_001, True])
def test_a_threshold_that_makes_no_sense_is_refused(threshold: int) -> None:
    """With 0 the breaker would never close."""
    with pytest.raises(BadValue, match="breaker"):
        Limit("frail", "600/minute", breaker=threshold)
