"""Mistakes in calls of the public API: an error at the place of the mistake, with the way out."""

import asyncio
import functools
import pathlib
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from tests.worker.observe import codes, worked

from leaseway import AesGcm, App, Backoff, BadValue, Budget, Context, HttpReply, Limit, Snooze, SyncContext, UsageError
from leaseway.domain.errors import StoreRefused
from leaseway.simulation import simulate
from leaseway.testing import FakeContext, virtual_time

SPEND = Budget("spend", usd=5)
TOKENS = Limit("tpm", "100k/minute", unit="tokens")


async def double(x: int = 1, words: int = 5) -> int:
    return x * words


class Callback:
    async def __call__(self, x: int) -> None: ...


async def with_context_by_name(*, ctx: Context, x: int) -> None: ...
async def with_another_ctx(ctx: int) -> None: ...
async def with_late_context(x: int, ctx: Context | None = None) -> None: ...


# -- declaring --------------------------------------------------------------------------------------------------------

NO_FUNCTIONS: dict[str, tuple[Any, str]] = {
    "text": ("double", r"the text 'double'; write @app.job\(name='double'\)"),
    "class": (Callback, "the class Callback; write a function"),
    "object": (Callback(), "an object of type Callback; write a function"),
    "partial": (functools.partial(double, 1), "an object of type partial; write a function"),
    "number": (5, "an object of type int"),
    "lambda": (lambda x: x, "a lambda has no name .* give it name="),
    "context by name": (with_context_by_name, "ctx is given by position"),
    "another ctx": (with_another_ctx, "an async function takes `ctx: Context`"),
    "late context": (with_late_context, "parameter 'ctx' is a context; make it the first one"),
}


@pytest.mark.parametrize("what", NO_FUNCTIONS)
def test_what_cannot_be_a_job_is_refused(what: str) -> None:
    """A message about its empty name, or an error of each attempt, does not lead to the mistake."""
    given, message = NO_FUNCTIONS[what]
    with pytest.raises(UsageError, match=message):
        App("memory://").job(given)


def test_a_coroutine_is_no_function() -> None:
    """`app.job(double())` is one pair of parentheses too many."""
    with pytest.raises(UsageError, match=r"a coroutine, double\(…\); pass the function itself"):
        App("memory://").job(double())  # type: ignore[call-overload]


def test_a_lambda_with_a_name_is_a_job() -> None:
    """The name is all that a worker needs."""
    assert App("memory://").job(name="echo")(lambda x: x).name == "echo"


WRONG_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"budget": "spend"}, r"job double: budget: must be a Budget or a list of them.*is 'spend'"),
    ({"budgets": [5]}, "job double: budgets: must be a Budget or a list of them"),
    ({"budget": SPEND, "budgets": [SPEND], "cost_usd": 1}, "job double: limits and budgets: name 'spend' twice"),
    ({"budget": SPEND, "cost": 1, "cost_usd": 1}, "cost: is given together with cost_usd"),
    ({"budget": SPEND, "cost": lambda y: 1}, r"job double: cost: the function must take .* \(x, words\): missing"),
    ({"budget": SPEND, "cost_usd": lambda x: 1}, r"job double: cost: .* unexpected keyword argument 'words'; \*\*_"),
    ({"limits": [TOKENS.cost(lambda y: 1)]}, "job double: limits: tpm.cost: the function must take"),
    ({"limits": [Limit("m:{y}", "1/second")]}, "job double: limit m:{y}: has the field y, .* its arguments: x, words"),
    ({"budget": Budget("b:{y}", usd=1), "cost_usd": 1}, "job double: budget b:{y}: has the field y"),
    ({"backoff": "3"}, "backoff: must be a Backoff, seconds or a timedelta"),
    ({"backoff": None}, "backoff: must be a Backoff, seconds or a timedelta"),
    ({"backoff": timedelta(seconds=-1)}, "backoff.first_seconds: must be between 0"),
    ({"aliases": "resize"}, r"aliases: must be a list of texts \(is one text\)"),
    ({"aliases": None}, r"aliases: must be a list of texts \(is a NoneType\)"),
    ({"aliases": [5]}, "aliases: must be a list of texts"),
    ({"name": ""}, "name: must be 1 to 200"),
]


@pytest.mark.parametrize(("options", "message"), WRONG_OPTIONS, ids=[message for _, message in WRONG_OPTIONS])
def test_a_wrong_option_of_a_job_is_named(options: dict[str, Any], message: str) -> None:
    """It is known when the module is imported, long before the first job."""
    with pytest.raises(BadValue, match=message):
        App("memory://").job(**options)(double)


def test_a_brace_that_is_no_field_is_refused() -> None:
    """All accounts would share one limit with a strange name."""
    with pytest.raises(BadValue, match=r"limit m:\{Account\}: has a brace that is not part of a field"):
        Limit("m:{Account}", "1/second")


@pytest.mark.parametrize("seconds", [timedelta(seconds=3), 3, 3.0])
def test_a_backoff_is_a_duration_like_all_others(seconds: Any) -> None:
    """Durations are seconds or timedeltas everywhere."""
    assert App("memory://").job(backoff=seconds)(double).kind.defaults.backoff == Backoff(first_seconds=3)


def test_costs_and_names_see_the_defaults_of_arguments() -> None:
    """A submission need not give an argument that has a default, and a limit per account needs its value."""
    app = App("memory://")

    @app.job(
        limits=[Limit("m:{account}", "1/second"), TOKENS.cost(lambda account, words: words)],
        budget=SPEND,
        cost_usd=lambda account, words: words / 10,
    )
    async def send(ctx: Context, account: str = "main", words: int = 7) -> None: ...

    needs = send.bind().new(app.world.ids).needs
    assert '"m:main"' in needs
    assert '"m:other"' in send.bind(account="other").new(app.world.ids).needs
    with pytest.raises(BadValue, match="job send: cost: 10 usd is more than budget spend allows"):
        send.bind(words=100).new(app.world.ids)


async def test_a_call_sees_the_defaults_of_arguments(app: App) -> None:
    """The limits of a call are named by the same arguments as those of its job."""

    @app.job(attempts=1)
    async def send(ctx: Context, account: str = "main") -> None:
        async with ctx.call(limits=[Limit("m:{account}", "1000/second")], budget=SPEND, cost=lambda account: 0.5):
            pass

    await worked(app, await send.submit())
    (window,) = await app.world.ledger.reads.balances()
    assert window.balance.spent_micros == 500_000


def test_a_cost_that_fails_names_the_function() -> None:
    """A ZeroDivisionError out of `submit` looks like an error of leaseway."""
    app = App("memory://")
    job = app.job(budget=SPEND, cost_usd=lambda x, words: x / words)(double)
    with pytest.raises(BadValue, match="job double: cost: the function failed for these arguments: ZeroDivisionError"):
        job.bind(words=0).new(app.world.ids)


def test_a_schedule_for_a_job_of_another_app_is_refused() -> None:
    """No worker of this app would ever fire it."""
    job = App("memory://").job(double)
    with pytest.raises(UsageError, match="double is a job of another app; schedule it there"):
        App("memory://").cron("* * * * *")(job)
    with pytest.raises(BadValue, match="cron double: must be a text like"):
        App("memory://").cron(5)(double)  # type: ignore[arg-type]


WRONG_APPS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"url": pathlib.Path("work.db")}, BadValue, "url: must be a text"),
    ({"key": b"lw_x"}, BadValue, "key: must be a text"),
    ({"limits": "maps"}, StoreRefused, "'maps' keeps no limits"),
    ({"secrets": "corr3ct horse"}, BadValue, r"secrets: must be a list of texts \(is one text\)$"),
    ({"secrets": [5]}, BadValue, "secrets: must be a list of texts$"),
    ({"codec": AesGcm}, BadValue, "codec: must be an object with encrypt, decrypt, fingerprint"),
    ({"codec": "key"}, BadValue, "codec: must be an object with encrypt"),
    ({"events": print}, BadValue, "events: must be an object with emit"),
]


@pytest.mark.parametrize(("options", "error", "message"), WRONG_APPS, ids=[message for *_, message in WRONG_APPS])
def test_a_wrong_option_of_an_app_is_named(options: dict[str, Any], error: type[Exception], message: str) -> None:
    """Secrets given as one text were not removed from any error, and a wrong codec was found by the first job."""
    with pytest.raises(error, match=message):
        App(**{"url": "memory://", **options})


# -- submitting -------------------------------------------------------------------------------------------------------


async def no_jobs() -> AsyncIterator[Any]:
    yield


NO_JOBS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "handle": (lambda job: job, r"double is a job without arguments; pass double.bind\(…\)"),
    "call": (lambda job: job.submit(x=1), r"is not awaited .* pass job.bind\(…\), not job.submit\(…\)"),
    "name": (lambda job: "double", "a bound job is needed, .* type str"),
    "arguments": (lambda job: {"x": 1}, "a bound job is needed, .* type dict"),
}


async def submit_in(app: App, job: Any) -> None:
    """Up to the point where the connection is used."""
    app._new([job])


async def submit_child(app: App, job: Any) -> None:
    FakeContext().submit(job)


async def simulate_one(app: App, job: Any) -> None:
    await asyncio.to_thread(simulate, app, [job])


async def submit_from_thread(app: App, job: Any) -> None:
    await asyncio.to_thread(app.submit_sync, job)


WAYS: dict[str, Callable[[App, Any], Awaitable[Any]]] = {
    "submit": lambda app, job: app.submit(job),
    "submit_many": lambda app, job: app.submit_many([job]),
    "submit_sync": submit_from_thread,
    "submit_in": submit_in,
    "child": submit_child,
    "simulate": simulate_one,
}


@pytest.mark.parametrize("what", NO_JOBS)
@pytest.mark.parametrize("way", WAYS)
async def test_what_is_no_bound_job_is_refused_with_the_way_out(app: App, what: str, way: str) -> None:
    """The first mistake of everyone who has seen `submit` and not `bind`."""
    make, message = NO_JOBS[what]
    job = app.job(double)
    with pytest.raises(UsageError, match=message):
        await WAYS[way](app, make(job))


@pytest.mark.parametrize("given", [None, 5, "double", no_jobs()])
async def test_what_is_no_list_of_jobs_is_refused(app: App, given: Any) -> None:
    """A Python error about iteration does not say what was expected."""
    job = app.job(double)
    with pytest.raises(UsageError, match="submit_many takes a list of bound jobs"):
        await app.submit_many(given)
    with pytest.raises(UsageError, match="submit_many takes a list of mappings, one with the arguments of each job"):
        await job.submit_many(given)
    with pytest.raises(UsageError, match="submit_many takes a list of bound jobs"):
        await app.submit_many(job.bind())  # type: ignore[arg-type]


async def test_an_item_that_is_no_mapping_is_named(app: App) -> None:
    """Bound jobs belong into `app.submit_many`."""
    job = app.job(double)
    for item in (job.bind(), 5, [1]):
        with pytest.raises(BadValue, match="item 1: double: the arguments must be a mapping by name"):
            await job.submit_many([{"x": 1}, item])  # type: ignore[list-item]
    with pytest.raises(UsageError, match="submit_many takes a list of mappings"):
        await job.submit_many({"x": 1})  # type: ignore[dict-item]


@pytest.mark.parametrize("given", [None, 5, [], double])
async def test_what_is_no_job_id_is_refused(app: App, given: Any) -> None:
    """`find` answered None, as for a job that was pruned."""
    job = app.job(double)
    for call in (app.find, app.wait, job.result):
        with pytest.raises(UsageError, match="an id is needed, or what submit has returned"):
            await call(given)


def test_a_simulated_job_belongs_to_the_app() -> None:
    """A KeyError with the name of the job says nothing."""
    with pytest.raises(UsageError, match="double is a job of another app; give that app to simulate"):
        simulate(App("memory://"), [App("memory://").job(double).bind()])


# -- working ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"concurrency": "5"}, "concurrency: must be a whole number"),
        ({"concurrency": 0}, "concurrency: must be between 1 and 10,000"),
        ({"queues": 5}, "queues: must be a list of texts"),
        ({"queues": [5]}, "queues: must be a list of texts"),
    ],
)
def test_a_wrong_setting_of_a_worker_is_named(options: dict[str, Any], message: str) -> None:
    """Settings come from environment variables, which are texts."""
    with pytest.raises(BadValue, match=message):
        App("memory://").worker(**options)


async def test_settings_beside_a_worker_are_refused(app: App) -> None:
    """They had no effect, and a number was taken for a worker."""
    for worker, settings in ((5, {}), (app.worker(), {"concurrency": 5})):
        with pytest.raises(UsageError, match=r"run_worker takes a worker of app\.worker"):
            await app.run_worker(worker, **settings)  # type: ignore[arg-type]


async def failure(app: App, function: Any) -> str:
    """The error of a job's only attempt."""
    job = await app.job(attempts=1)(function).submit()
    await worked(app, job)
    (error,) = await (await app.store()).reads.errors(job.id)
    return f"{error.code}: {error.message}"


async def test_a_call_that_is_not_entered_with_async_with_says_how(app: App) -> None:
    """Python's own error names the protocol of context managers."""

    async def with_only(ctx: Context) -> None:
        with ctx.call():  # type: ignore[attr-defined]
            pass

    async def awaited(ctx: Context) -> None:
        await ctx.call()  # type: ignore[misc]

    for function in (with_only, awaited):
        assert await failure(app, function) == (
            "UsageError: ctx.call: an async function writes `async with ctx.call() as call:`"
        )


async def test_a_report_outside_of_its_call_is_refused(app: App) -> None:
    """A report before the call would be lost, and one after it could not make the call free."""

    async def before(ctx: Context) -> None:
        await ctx.call().report(200, {})

    async def after(ctx: Context) -> None:
        async with ctx.call() as call:
            pass
        await call.report(429, {})

    def plainly_after(ctx: SyncContext) -> None:
        with ctx.call() as call:
            pass
        call.report(429, {})

    assert "UsageError: call.report: the call has not begun" in await failure(app, before)
    for function in (after, plainly_after):
        assert "UsageError: call.report: the call has ended" in await failure(app, function)
    for function in (before, after):
        with pytest.raises(UsageError, match=r"call.report: the call has not begun, or has ended"):
            await function(FakeContext())


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (("200", {}), "call.report: status: must be a whole number"),
        ((200, None), "call.report: headers: must be the headers of the reply, by name"),
        ((200, {}, b"{}"), "call.report: body: must be the text of the reply"),
    ],
)
async def test_a_report_of_the_wrong_types_is_named(app: App, reply: Any, message: str) -> None:
    """Every client has other types for status and headers."""

    async def report(ctx: Context) -> None:
        async with ctx.call() as call:
            await call.report(*reply)

    assert message in await failure(app, report)
    with pytest.raises(BadValue, match=message):
        await report(FakeContext())


@pytest.mark.parametrize(
    ("made", "way_out"),
    [
        (lambda: double(), "values of type coroutine have no JSON form; await it, in an async function"),
        (lambda: (n for n in (1, 2)), "values of type generator have no JSON form; make a list of it"),
        (lambda: no_jobs(), "values of type async_generator have no JSON form; make a list of it"),
        (lambda: Snooze(5), "values of type Snooze have no JSON form; raise it"),
    ],
)
@pytest.mark.filterwarnings("ignore:coroutine 'double' was never awaited")
async def test_a_result_that_was_not_finished_says_what_is_missing(
    app: App, made: Callable[[], Any], way_out: str
) -> None:
    """Its types are not the mistake."""

    async def handler() -> Any:
        return made()

    assert way_out in await failure(app, handler)


async def test_a_result_of_another_type_than_declared_does_not_blame_another_version(app: App) -> None:
    """The function itself may be wrong, and the message must not lead away from it."""

    @app.job
    async def count() -> int:
        return "seven"  # type: ignore[return-value]

    job = await count.submit()
    await worked(app, job)
    assert await codes(app, job) == []
    with pytest.raises(BadValue, match="or the function returns something else than it declares"):
        await count.result(job)


async def test_progress_that_is_no_number_is_refused(app: App) -> None:
    """Screens show a share of the total."""

    async def half(ctx: Context) -> None:
        ctx.progress("half")  # type: ignore[arg-type]

    async def message(ctx: Context) -> None:
        ctx.progress(1, 2, 3)  # type: ignore[arg-type]

    assert await failure(app, half) == "BadValue: progress: done: must be a number (is 'half')"
    assert await failure(app, message) == "BadValue: progress: message: must be a text (is 3)"


# -- requests ---------------------------------------------------------------------------------------------------------

WRONG_REQUESTS: list[tuple[dict[str, Any], str]] = [
    ({"params": 5}, "params: must be a mapping or pairs"),
    ({"params": "a=1"}, "params: must be a mapping or pairs; a text is content="),
    ({"params": [(1, 2, 3)]}, "params: must be a mapping or pairs"),
    ({"data": "text"}, "data: must be a mapping or pairs; a text is content="),
    ({"json": object()}, "json: cannot be written as JSON: Object of type object"),
    ({"json": float("nan")}, "json: cannot be written as JSON"),
    ({"headers": [("a", "b")]}, "headers: must be a mapping of texts"),
    ({"settle": 5}, "settle: must be a function of the reply"),
]


@pytest.mark.parametrize(("options", "message"), WRONG_REQUESTS, ids=[message for _, message in WRONG_REQUESTS])
async def test_a_wrong_argument_of_a_request_is_named_before_it_is_sent(options: dict[str, Any], message: str) -> None:
    """A request that was sent costs money, whatever happens afterwards."""
    ctx = FakeContext(replies=[HttpReply(200)])
    with pytest.raises(BadValue, match=message):
        await ctx.http.post("https://maps.example/", **options)
    assert ctx.calls == []


# -- testing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"replies": HttpReply(200)}, "replies= takes a list of HttpReply objects"),
        ({"transport": HttpReply(200)}, "transport= a function that returns one"),
        ({"attempt": "1"}, "attempt: must be a whole number"),
        ({"attempt": 0}, "attempt: must be between 1 and 1,000"),
        ({"replies": [200]}, r"a reply is an HttpReply\(200, json=…\), or an exception \(is int\)"),
        ({"transport": lambda request: {"a": 1}}, r"a reply is an HttpReply\(200, json=…\), .* \(is dict\)"),
    ],
)
async def test_a_wrong_option_of_a_fake_context_is_named(options: dict[str, Any], message: str) -> None:
    """A test that fails with an AttributeError inside of leaseway is not easy to mend."""
    with pytest.raises(UsageError, match=message):
        await FakeContext(**options).http.get("https://maps.example/")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"app": "jobs"}, "virtual_time takes an app"),
        ({"start": "2025-01-01"}, "start: must be a datetime"),
        ({"start": datetime(2025, 1, 1)}, "start: needs a time zone"),  # noqa: DTZ001 - that is the mistake
        ({"transport": HttpReply(200)}, "transport: must be a function of an HttpRequest"),
    ],
)
def test_a_wrong_option_of_virtual_time_is_named(options: dict[str, Any], message: str) -> None:
    """As above."""
    given = {"app": App("memory://"), **options}
    with pytest.raises(UsageError, match=message), virtual_time(given.pop("app"), **given):
        pass


def test_keys_of_a_codec_are_given_by_id() -> None:
    """One key alone has no id that values could name."""
    with pytest.raises(BadValue, match="keys: must contain at least one key by its id"):
        AesGcm(AesGcm.new_key())  # type: ignore[arg-type]
