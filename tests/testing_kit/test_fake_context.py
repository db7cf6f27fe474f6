"""A context for unit tests of users' jobs: it must record what a job does, and behave as the real one does."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from leaseway import (
    App,
    AttemptEnded,
    BadValue,
    Budget,
    ConnectFailed,
    Context,
    HttpReply,
    LeaseLost,
    Limit,
    Throttled,
    UsageError,
)
from leaseway.testing import FakeContext, FakeSyncContext
from leaseway.testing.fake_call import FakeCall
from leaseway.worker.calls.provider_call import ProviderCall
from leaseway.worker.context import HandlerContext, SyncContext

URL = "https://maps.example/geocode"
OK = {"lat": 46.9}

app = App("memory://")
spend = Budget("spend", usd=25, every="day")


@app.job
async def child(x: int) -> None: ...


@app.job(limits=[Limit("maps", "1/day")], budget=spend, cost_usd=0.005, attempts=3, queue="maps")
async def geocode(ctx: Context, address: str) -> Any:
    reply = await ctx.http.get(URL, params={"q": address})
    return reply.json()


@app.job(budget=spend, cost_usd=0.01)
async def import_pages(ctx: Context, pages: int) -> str:
    for page in range(ctx.cursor or 0, pages):
        if ctx.cancelled:
            return "stopped"
        async with ctx.call(deadline=5) as call:
            call.settle(usd=0.004)
        await ctx.checkpoint(page + 1)
        ctx.progress(page + 1, pages, f"page {page}")
        ctx.submit(child.options(key=ctx.call_key(str(page))).bind(x=page))
    return "done"


@app.job(budget=spend, cost_usd=0.01)
def plain_pages(ctx: SyncContext, pages: int) -> str:
    for page in range(ctx.cursor or 0, pages):
        if ctx.cancelled:
            return "stopped"
        with ctx.call(deadline=5) as call:
            call.settle(usd=0.004)
            call.report(200, {})
        ctx.checkpoint(page + 1)
        ctx.progress(page + 1, pages, f"page {page}")
        ctx.submit(child.options(key=ctx.call_key(str(page))).bind(x=page))
    return "done"


@app.job(budget=spend, cost_usd=0.005)
def plain_geocode(ctx: SyncContext, address: str) -> Any:
    return ctx.http.get(URL, params={"q": address}).json()


# -- what it records --------------------------------------------------------------------------------------------------


async def test_a_job_can_be_called_with_it_and_inspected() -> None:
    """The point of it: no store, no worker, no network, and everything can be asserted."""
    ctx = FakeContext(import_pages, cursor=1, attempt=2)
    assert await import_pages(ctx, pages=3) == "done"
    check_pages(ctx)


def test_a_plain_function_can_be_called_with_it_and_inspected() -> None:
    """Plain functions have the same context without `await`."""
    ctx = FakeSyncContext(plain_pages, cursor=1, attempt=2)
    assert plain_pages(ctx, pages=3) == "done"
    check_pages(ctx)
    assert [call.status for call in ctx.calls] == [200, 200]


def check_pages(ctx: FakeContext | FakeSyncContext) -> None:
    assert ctx.checkpoints == [2, 3]
    assert ctx.cursor == 3
    assert ctx.reports == [(2, 3, "page 1"), (3, 3, "page 2")]
    assert ctx.children == [child.options(key=f"{ctx.id}:{page}").bind(x=page) for page in (1, 2)]
    assert [call.settled for call in ctx.calls] == [{"usd": 0.004}] * 2
    assert [call.deadline_seconds for call in ctx.calls] == [5, 5]
    assert ctx.cost == {"usd": 0.008}
    assert (ctx.attempt, ctx.attempts_max) == (2, 5)


async def test_it_has_the_kind_and_the_defaults_of_its_job() -> None:
    """A handler that reads them must see what it would see in a worker."""
    ctx = FakeContext(geocode, tenant="acme", shard_key="eu")
    assert (ctx.kind, ctx.queue, ctx.tenant, ctx.shard_key, ctx.attempts_max) == ("geocode", "maps", "acme", "eu", 3)


async def test_requests_and_their_cost_are_recorded() -> None:
    """A call that is not settled is charged in full."""
    ctx = FakeContext(geocode, replies=[HttpReply(200, json=OK)])
    assert await geocode(ctx, address="Bern") == OK
    (request,) = ctx.requests
    assert (request.method, str(request.url)) == ("GET", f"{URL}?q=Bern")
    assert ctx.calls[0].status == 200
    assert ctx.cost == {"usd": 0.005}


def test_requests_of_plain_functions_are_recorded() -> None:
    """The client of a plain function blocks; it records the same."""
    ctx = FakeSyncContext(plain_geocode, replies=[HttpReply(200, json=OK)])
    assert plain_geocode(ctx, address="Bern") == OK
    assert [request.params["q"] for request in ctx.requests] == ["Bern"]
    assert ctx.cost == {"usd": 0.005}


async def test_a_plain_function_can_be_tested_in_an_async_test() -> None:
    """It blocks the loop of the test for a moment, and must not need it."""
    ctx = FakeSyncContext(plain_geocode, replies=[HttpReply(200, json=OK)])
    assert plain_geocode(ctx, address="Bern") == OK


async def test_a_request_inside_a_call_belongs_to_that_call() -> None:
    """As in a worker: one permit, one hold, one settlement."""
    ctx = FakeContext(geocode, replies=[HttpReply(200), HttpReply(200)])
    async with ctx.call() as call:
        await ctx.http.get(URL)
        call.settle(usd=0.001)
        await ctx.http.get(URL)  # a second request is a call of its own
    assert [each.cost for each in ctx.calls] == [{"usd": 0.001}, {"usd": 0.005}]
    assert all(each.request is not None for each in ctx.calls)


# -- what it simulates ------------------------------------------------------------------------------------------------


async def test_a_short_throttling_is_retried_without_waiting() -> None:
    """The real client of a worker retries; the pause takes no time here."""
    ctx = FakeContext(geocode, replies=[HttpReply(429), HttpReply(503), HttpReply(200, json=OK)])
    assert await geocode(ctx, address="Bern") == OK
    assert [call.status for call in ctx.calls] == [429, 503, 200]
    assert ctx.cost == {"usd": 0.01}, "what the provider refuses costs nothing"


async def test_a_long_throttling_ends_the_attempt() -> None:
    """In a worker the job waits in its lane. A test sees the exception that does that."""
    ctx = FakeContext(geocode, replies=[HttpReply(429, headers={"Retry-After": "30"})])
    with pytest.raises(Throttled, match="asks for a wait of 30 s"):
        await geocode(ctx, address="Bern")


async def test_a_job_that_has_made_calls_waits_in_place() -> None:
    """A worker does not restart such a job because of a wait, so a test must not see an exception either."""
    replies = [HttpReply(200), HttpReply(429, headers={"Retry-After": "600"}), HttpReply(200)]
    ctx = FakeContext(geocode, replies=replies)
    await ctx.http.get(URL)
    assert (await ctx.http.get(URL)).status_code == 200
    throttled = FakeContext(geocode, replies=[HttpReply(200), *replies[1:]])
    await throttled.http.get(URL)
    await throttled.checkpoint(1)
    with pytest.raises(Throttled):
        await throttled.http.get(URL)


async def test_a_failed_connection_costs_nothing() -> None:
    """Nothing was sent, so nothing is charged."""
    refused = ConnectFailed("refused")
    ctx = FakeContext(geocode, replies=[refused, HttpReply(200, json=OK)])
    await geocode(ctx, address="Bern")
    assert [call.is_sent for call in ctx.calls] == [False, True]
    assert ctx.cost == {"usd": 0.005}


async def test_a_transport_answers_instead_of_replies() -> None:
    """A function of the request is easier than a list for a job with many requests."""
    ctx = FakeContext(geocode, transport=lambda r: HttpReply(200, json=r.params["q"]))
    assert await geocode(ctx, address="Bern") == "Bern"


async def test_a_missing_reply_is_an_error_that_names_the_request() -> None:
    """A job that sends more requests than expected must not send them anywhere."""
    with pytest.raises(UsageError, match=r"no reply is left for GET https://maps.example/geocode\?q=Bern"):
        await geocode(FakeContext(geocode), address="Bern")


async def test_cancellation_can_be_simulated() -> None:
    """Handlers check `ctx.cancelled` between pages."""
    ctx = FakeContext(import_pages)
    ctx.cancel()
    assert await import_pages(ctx, pages=3) == "stopped"
    assert ctx.calls == []


async def test_a_lost_lease_can_be_simulated() -> None:
    """Handlers may clean up when another worker has taken over."""
    ctx = FakeContext(import_pages)
    ctx.lose_lease()
    assert ctx.cancelled
    with pytest.raises(LeaseLost):
        await ctx.checkpoint(1)
    with pytest.raises(LeaseLost):
        await ctx.call().__aenter__()
    with pytest.raises(LeaseLost):
        await ctx.http.get(URL)
    assert ctx.checkpoints == ctx.calls == []


VERBS: dict[str, Callable[[Any], Any]] = {
    "call": lambda ctx: ctx.call(),
    "call_key": lambda ctx: ctx.call_key(),
    "checkpoint": lambda ctx: ctx.checkpoint(1),
    "http": lambda ctx: ctx.http,
    "progress": lambda ctx: ctx.progress(1),
    "submit": lambda ctx: ctx.submit(child.bind(x=1)),
}


async def use(verb: Callable[[Any], Any], ctx: Any) -> None:
    answer = verb(ctx)
    if inspect.isawaitable(answer):
        await answer


@pytest.mark.parametrize("kind", [FakeContext, FakeSyncContext])
@pytest.mark.parametrize("verb", VERBS)
async def test_the_end_of_an_attempt_can_be_simulated(kind: type[FakeContext], verb: str) -> None:
    """A background task that outlives its job is a mistake that a test should find."""
    ctx = kind(import_pages if kind is FakeContext else plain_pages)
    ctx.end()
    with pytest.raises(AttemptEnded, match=f"ctx.{verb} was used after"):
        await use(VERBS[verb], ctx)


# -- what it refuses, as the real one ---------------------------------------------------------------------------------


async def test_values_that_a_worker_would_refuse_are_refused() -> None:
    """A test that passes with them would hide a job that always fails."""
    ctx = FakeContext(import_pages)
    with pytest.raises(BadValue, match="cursor"):
        await ctx.checkpoint(object())
    async with ctx.call() as call:
        with pytest.raises(BadValue, match="eur: is not a unit of this job's budgets and limits; their units: usd"):
            call.settle(eur=1)
    with pytest.raises(BadValue, match="deadline"):
        ctx.call(deadline=0)


async def test_a_cost_that_depends_on_the_arguments_needs_them() -> None:
    """Otherwise the recorded cost would be made up."""

    @app.job(budget=Budget("tokens", tokens=1_000), cost=lambda text: len(text))
    async def complete(ctx: Context, text: str) -> None:
        async with ctx.call():
            pass

    with pytest.raises(UsageError, match=r"bind them: FakeContext\(job.bind"):
        await complete(FakeContext(complete), text="four")
    ctx = FakeContext(complete.bind(text="four"))
    await complete(ctx, text="four")
    assert ctx.cost == {"tokens": 4}


async def test_it_works_without_a_job() -> None:
    """A helper that takes a context can be tested alone; every unit is accepted then."""
    ctx = FakeContext()
    async with ctx.call() as call:
        call.settle(tokens=12)
    assert (ctx.kind, ctx.cost) == ("unnamed", {"tokens": 12})
    with pytest.raises(UsageError, match="give the context a job or a bound job"):
        FakeContext("geocode")  # type: ignore[arg-type]


# -- it stays like the real one ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("fake", "real"), [(FakeContext, Context), (FakeSyncContext, SyncContext)])
def test_everything_that_leaves_a_context_is_replaced(fake: type, real: type) -> None:
    """A verb that is added to the real context and not here would need a worker in a unit test."""
    replaced = {name for name in public(real) if owner(fake, name).__module__ != HandlerContext.__module__}
    assert replaced == {"call", "checkpoint", "http", "progress", "submit"}
    assert public(real) - replaced == {"call_key", "cancelled", "finish_calls", "prepare_calls", "saving_calls"}


def test_calls_have_the_methods_of_real_calls() -> None:
    """A new method of a call must be recorded, too."""
    methods = {name for name, value in vars(ProviderCall).items() if inspect.isfunction(value)}
    refusals = {"_required_grant", "__enter__", "__exit__", "__await__"}
    assert methods - refusals <= vars(FakeCall).keys()


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def owner(kind: type, name: str) -> type:
    return next(each for each in kind.__mro__ if name in vars(each))


def test_the_context_of_the_other_kind_of_function_is_refused() -> None:
    """A plain function would call async methods, which do nothing unless they are awaited, and the test would pass."""
    app = App("memory://")

    @app.job
    def plain(ctx: SyncContext) -> None: ...

    @app.job
    async def waits(ctx: Context) -> None: ...

    with pytest.raises(UsageError, match="job plain is a plain function; use FakeSyncContext"):
        FakeContext(plain)
    with pytest.raises(UsageError, match="job waits is async; use FakeContext"):
        FakeSyncContext(waits)
