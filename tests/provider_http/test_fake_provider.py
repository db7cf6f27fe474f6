"""The fake provider: if it counts wrongly, the tests that use it prove nothing."""

import asyncio

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leaseway.domain.errors import BadValue
from leaseway.testing.provider import Provider, most_within, provider


async def statuses(it: Provider, count: int, headers: dict[str, str] | None = None) -> list[int]:
    async with httpx2.AsyncClient(headers=headers) as client:
        return [(await client.get(it.url)).status_code for _ in range(count)]


async def test_over_the_limit_it_refuses_and_says_for_how_long() -> None:
    """A client can respect a limit only if the refusal says how long to wait."""
    async with provider(limits=["3 per 60 s", "2/second"]) as it, httpx2.AsyncClient() as client:
        replies = [await client.get(it.url) for _ in range(20)]
    refused = [reply for reply in replies if reply.status_code == 429]
    assert len(refused) >= 17
    assert it.refused == len(refused)
    for reply in refused:
        assert 1 <= int(reply.headers["Retry-After"]) <= 60
        assert reply.headers["RateLimit-Policy"] == '"60000ms";q=3;w=60, "1000ms";q=2;w=1'
        assert ";r=0;" in reply.headers["RateLimit"]


async def test_its_limit_holds_in_every_window_and_opens_again() -> None:
    """A fixed window that restarts at full minutes lets twice as many requests pass; the fake provider must use a
    sliding window.
    """
    async with provider(limits=["5 per 0.2 s"]) as it, httpx2.AsyncClient() as client:
        while sum(arrival.is_accepted for arrival in it.arrivals) < 30:
            await client.get(it.url)
    accepted_ns = [arrival.at_ns for arrival in it.arrivals if arrival.is_accepted]
    assert most_within(accepted_ns, 200_000_000) <= 5


async def test_each_key_has_limits_of_its_own() -> None:
    """One customer of a provider must not use up the quota of another."""
    async with provider(limits=["2/hour"]) as it:
        assert await statuses(it, 3, headers={"Authorization": "a"}) == [200, 200, 429]
        assert await statuses(it, 3, headers={"X-Api-Key": "b"}) == [200, 200, 429]
        assert it.most_in_any_window(3_600, key="a") == 3
        assert it.most_in_any_window(3_600) == 6


@given(st.lists(st.integers(0, 50), max_size=30), st.integers(1, 20))
def test_the_fullest_window_is_found(times_ns: list[int], window_ns: int) -> None:
    """The result must equal that of the simplest way to count."""
    plain = max((sum(at <= other < at + window_ns for other in times_ns) for at in times_ns), default=0)
    assert most_within(times_ns, window_ns) == plain


async def test_what_it_was_told_comes_in_order_and_then_the_usual() -> None:
    """A test that prepares a response must know which request gets it."""
    async with provider() as it:
        it.answer(418, times=2)
        it.answer(204, {"X-Said": "yes"})
        it.delay(0.01)
        assert await statuses(it, 5) == [418, 418, 204, 200, 200]
        assert [arrival.status for arrival in it.arrivals] == [418, 418, 204, 200, 200]


async def test_a_cut_before_reading_counts_nothing_and_one_after_counts() -> None:
    """The two failures differ only in whether the request was executed."""
    async with provider() as it, httpx2.AsyncClient() as client:
        it.cut(after_reading=False)
        with pytest.raises(httpx2.TransportError):
            await client.get(it.url)
        assert it.arrivals == []
        it.cut(after_reading=True)
        with pytest.raises(httpx2.TransportError):
            await client.get(it.url)
        assert [arrival.is_accepted for arrival in it.arrivals] == [True]


async def test_work_done_twice_under_one_key_is_counted_and_refusals_are_not() -> None:
    """A refused request was not executed, so repeating it is not a duplicate; an interrupted one was."""
    async with provider() as it, httpx2.AsyncClient() as client:
        for key, status in (("a", 200), ("a", 429), ("b", 500), ("b", 200), ("c", 200)):
            it.answer(status)
            await client.post(it.url, headers={"Idempotency-Key": key})
        await client.post(it.url)
        await client.post(it.url)
        assert it.duplicates == 0
        it.cut(after_reading=True)
        with pytest.raises(httpx2.TransportError):
            await client.post(it.url, headers={"Idempotency-Key": "c"})
        assert it.duplicates == 1


async def test_many_connections_at_once_are_served() -> None:
    """Workers of a fleet connect concurrently, and bodies larger than one packet must arrive whole."""
    async with provider() as it, httpx2.AsyncClient() as client:
        bodies = [str(number) * 100_000 for number in range(8)]
        replies = await asyncio.gather(*(client.post(it.url, content=body) for body in bodies))
    assert [reply.json()["body"] for reply in replies] == bodies


async def test_its_end_frees_a_client_that_still_waits() -> None:
    """A failing test must not hang in its cleanup."""
    patient = httpx2.AsyncClient(timeout=None)
    async with asyncio.timeout(30), patient as client, asyncio.TaskGroup() as tasks, provider() as it:
        it.hang()
        waiting = tasks.create_task(outcome(client, it.url))
        await it.has_seen(1)
    assert isinstance(waiting.result(), httpx2.TransportError)


async def outcome(client: httpx2.AsyncClient, url: str) -> Exception | None:
    try:
        await client.get(url)
    except httpx2.TransportError as error:
        return error
    return None


@pytest.mark.parametrize("limits", ["3/second", ["often"], [3]])
async def test_limits_that_cannot_be_read_are_refused(limits: list[str]) -> None:
    """Without a limit, every test of limits would pass."""
    with pytest.raises(BadValue, match="limits"):
        async with provider(limits=limits):
            pass
