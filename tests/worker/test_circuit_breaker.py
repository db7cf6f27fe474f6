"""Calls that the provider does not serve: a circuit breaker stops the fleet, and one call finds out when it is back."""

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import pairwise

import pytest
from tests.worker.test_why import why

from leaseway import App, Context, HttpReply, HttpRequest, Limit, State, Throttled
from leaseway.domain.errors import LeasewayError
from leaseway.domain.http import ConnectFailed, ProxyRefused, ReplyLost, ReplyTimeout, ReplyUnreadable
from leaseway.domain.limits.level import Breaker
from leaseway.domain.limits.limit import PermitRequest
from leaseway.testing import VirtualTime, virtual_time

MAPS = Limit("maps", "60000/minute", breaker=2)
PLAIN = Limit("plain", "60000/minute")
URL = "https://maps.test/"
Answers = Callable[[HttpRequest], HttpReply]


@pytest.fixture
def app() -> App:
    return App("memory://")


def breaker(app: App, time: VirtualTime, name: str = "maps", limit: str = "maps") -> Breaker:
    _, (level,) = time.run(app._world.limiter.levels([PermitRequest(name, limit)]))
    return level.breaker


def breaker_after(app: App, answer: Answers, calls: int = 2) -> Breaker:
    @app.job(limits=[MAPS, PLAIN], attempts=1)
    async def ask(ctx: Context) -> None:
        for _ in range(calls):
            try:
                await ctx.http.post(URL, retry=False)
            except (LeasewayError, OSError):
                continue

    with virtual_time(app, transport=answer) as time:
        time.run(ask.submit())
        time.run_for(5)
        return breaker(app, time)


def failing(error: Exception) -> Answers:
    def answer(request: HttpRequest) -> HttpReply:
        raise error

    return answer


@pytest.mark.parametrize(
    "answer",
    [
        lambda _: HttpReply(500),
        lambda _: HttpReply(503),
        lambda _: HttpReply(504),
        failing(ReplyTimeout("silent")),
        failing(ReplyLost("cut")),
        failing(ConnectFailed("refused")),
    ],
    ids=["500", "503", "504", "timeout", "cut", "no connection"],
)
def test_calls_that_are_not_served_open_the_breaker(app: App, answer: Answers) -> None:
    """The next jobs would each wait for a timeout, and lose an attempt."""
    state = breaker_after(app, answer)
    assert (state.failures, state.trips) == (2, 1)


@pytest.mark.parametrize(
    "answer",
    [
        lambda _: HttpReply(200),
        lambda _: HttpReply(404),
        lambda _: HttpReply(501),
        failing(ProxyRefused("the proxy answers 407")),
        failing(ReplyUnreadable("it cannot be decompressed")),
    ],
    ids=["200", "404", "501", "proxy", "unreadable"],
)
def test_what_says_nothing_about_the_provider_does_not_open_it(app: App, answer: Answers) -> None:
    """A wrong request, or a proxy that lets nothing out, would stop all other jobs."""
    assert breaker_after(app, answer, calls=4) == Breaker()


def test_an_answer_between_failures_keeps_it_closed(app: App) -> None:
    """A provider that fails every other call still serves half of them."""
    statuses = iter([500, 400, 500, 200, 500, 404])
    assert breaker_after(app, lambda _: HttpReply(next(statuses)), calls=6) == Breaker()


def test_an_outage_costs_a_few_attempts_and_no_job(app: App) -> None:
    """Without the breaker, each of these jobs would use up its attempts within a minute and fail. Nothing may leave
    while it is open, and all jobs must be done soon after the provider is back."""
    failed: list[timedelta] = []

    def answer(request: HttpRequest) -> HttpReply:
        if time.elapsed < timedelta(minutes=30):
            failed.append(time.elapsed)
            return HttpReply(500)
        return HttpReply(200)

    @app.job(limits=[MAPS], attempts=3)
    async def ask(ctx: Context, n: int) -> None:
        (await ctx.http.get(URL)).raise_for_status()

    with virtual_time(app, transport=answer) as time:
        jobs = time.run(ask.submit_many([{"n": n} for n in range(40)]))
        time.run_until_empty(concurrency=4)
        states = [time.run(app.find(job.id)) for job in jobs]
        ended = time.elapsed
    assert {record.state for record in states if record is not None} == {State.DONE}
    assert sum(record.attempts > 1 for record in states if record is not None) <= len(failed)
    assert len(failed) <= 4 + 11  # those in flight, and then one after 10, 20, 40, 80, 160 and 300 seconds each
    pauses = [later - earlier for earlier, later in pairwise(failed[3:])]
    assert min(pauses) >= timedelta(seconds=9)
    assert ended < timedelta(minutes=36)


def test_a_job_that_meets_an_open_breaker_waits_uncounted_and_says_why(app: App) -> None:
    """It could not have been served, so the outage must not count against it."""

    @app.job(limits=[MAPS], attempts=1)
    async def ask(ctx: Context) -> None:
        (await ctx.http.get(URL, retry=False)).raise_for_status()

    with virtual_time(app, transport=lambda _: HttpReply(500)) as time:
        time.run(ask.submit_many([{}] * 2))
        time.run_for(1, concurrency=1)
        job = time.run(ask.submit())
        time.run_for(2)
        record = time.run(app.find(job.id))
        assert record is not None
        assert (record.state, record.attempts) == (State.PENDING, 0)
        reason = str(time.run(why(app, job)))
    assert "limit maps: its circuit breaker is open: 2 calls in a row failed" in reason
    assert "One call probes the provider" in reason


def test_breakers_of_tenants_are_apart(app: App) -> None:
    """The endpoint of one tenant is down, and the jobs of the others must go on."""

    @app.job(limits=[Limit("maps:{tenant}", "60000/minute", breaker=1)], attempts=1)
    async def ask(ctx: Context, url: str) -> None:
        (await ctx.http.get(url, retry=False)).raise_for_status()

    def answer(request: HttpRequest) -> HttpReply:
        return HttpReply(500 if "down" in request.url else 200)

    with virtual_time(app, transport=answer) as time:
        time.run(ask.options(tenant="one").submit(url="https://down.test/"))
        time.run_for(1)
        waiting = time.run(ask.options(tenant="one").submit(url="https://down.test/"))
        others = time.run(ask.options(tenant="two").submit(url="https://up.test/"))
        time.run_for(2)
        states = [time.run(app.find(job.id)) for job in (waiting, others)]
        assert [record.state for record in states if record] == [State.PENDING, State.DONE]
        assert breaker(app, time, "maps:one", "maps:{tenant}").trips == 1


# -- other clients than ctx.http --------------------------------------------------------------------------------------


async def report_500(ctx: Context) -> None:
    async with ctx.call() as call:
        await call.report(500, {})


async def time_out(ctx: Context) -> None:
    async with ctx.call():
        raise TimeoutError


async def lose_connection(ctx: Context) -> None:
    async with ctx.call():
        raise ConnectionResetError


async def hang(ctx: Context) -> None:
    async with ctx.call():
        await asyncio.sleep(3_600)


async def hang_in_http(ctx: Context) -> None:
    await ctx.http.get("https://slow.test/")


async def fail_otherwise(ctx: Context) -> None:
    async with ctx.call():
        raise ValueError("no such street")


async def refused(ctx: Context) -> None:
    async with ctx.call() as call:
        with pytest.raises(Throttled):
            await call.report(429, {"retry-after": "1"})


@pytest.mark.parametrize(
    ("step", "trips"),
    [
        (report_500, 1),
        (time_out, 1),
        (lose_connection, 1),
        (hang, 1),
        (hang_in_http, 1),
        (fail_otherwise, 0),
        (refused, 0),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_the_end_of_a_call_of_any_client_is_reported(app: App, step: Callable[..., object], trips: int) -> None:
    """Only the handler knows the reply; a handler that is stopped by its timeout cannot say anything any more."""

    @app.job(limits=[Limit("maps", "60000/minute", breaker=1)], attempts=1, timeout=20)
    async def ask(ctx: Context) -> None:
        await step(ctx)  # type: ignore[misc]

    async def answer(request: HttpRequest) -> HttpReply:
        await asyncio.sleep(3_600)
        return HttpReply(200)

    with virtual_time(app, transport=answer) as time:
        time.run(ask.submit())
        time.run_for(25)
        assert breaker(app, time).trips == trips


def test_a_block_that_ends_well_answers_the_probe(app: App) -> None:
    """A job that never reports would otherwise keep its own breaker half-open for ever."""
    is_down = True
    done: list[datetime] = []

    @app.job(limits=[Limit("maps", "60000/minute", breaker=1)], attempts=5)
    async def ask(ctx: Context) -> None:
        async with ctx.call():
            if is_down:
                raise TimeoutError
        done.append(time.now)

    with virtual_time(app) as time:
        time.run(ask.submit_many([{}] * 5))
        time.run_for(5)
        is_down = False
        time.run_until_empty()
        assert breaker(app, time) == Breaker(number=2)
    assert len(done) == 5
