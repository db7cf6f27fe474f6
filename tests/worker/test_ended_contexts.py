"""A context that outlives its handler: a background task that nobody awaited, or a context that was kept.

Nothing that it does can take effect any more. Children would be lost silently, requests would be sent without a lease.
"""

import asyncio
import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.worker.observe import SOON_SECONDS, worked

from leaseway import App, AttemptEnded, Context, Limit, State
from leaseway.testing.provider import provider
from leaseway.worker.calls.provider_call import ProviderCall, SyncProviderCall
from leaseway.worker.context import SyncContext, SyncHttp
from leaseway.worker.provider_http import Http

URL = "http://127.0.0.1:9/"

VERBS: dict[str, Callable[[Any, App], Any]] = {
    "call": lambda ctx, app: ctx.call(),
    "call_key": lambda ctx, app: ctx.call_key("step"),
    "checkpoint": lambda ctx, app: ctx.checkpoint(1),
    "http": lambda ctx, app: ctx.http.get(URL),
    "progress": lambda ctx, app: ctx.progress(1),
    "saving_calls": lambda ctx, app: ctx.saving_calls(),
    "submit": lambda ctx, app: ctx.submit(app.bind("child", {})),
}
"""Everything that a handler can do with its context. A new method must be added here, and refuse."""
FACTS = {"cancelled"}
"""Properties that only say something about the job."""
OF_THE_WORKER = {"finish_calls", "prepare_calls"}
HTTP_VERBS = ["delete", "get", "head", "options", "patch", "post", "put", "request"]


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


@pytest.mark.parametrize("kind", [Context, SyncContext])
def test_every_verb_is_known_here(kind: type) -> None:
    """A verb that is added later must not be forgotten by the tests below."""
    assert public(kind) == VERBS.keys() | FACTS | OF_THE_WORKER


@pytest.mark.parametrize("kind", [Http, SyncHttp])
def test_every_verb_of_the_client_is_known_here(kind: type) -> None:
    """As above, for `ctx.http`."""
    assert public(kind) == set(HTTP_VERBS)


@pytest.mark.parametrize("kind", [ProviderCall, SyncProviderCall])
def test_a_call_that_has_begun_can_still_be_settled(kind: type) -> None:
    """These verbs report what was sent before the attempt ended: that money is spent. Others must refuse."""
    given = {"grant", "key"}
    assert (public(kind) | {"settle"}) - given == {"report", "settle"}


class Kept:
    """What a handler leaves behind: its context, and a client and a call that it got from it in time."""

    def __init__(self, ctx: Any) -> None:
        self.ctx, self.http, self.call = ctx, ctx.http, ctx.call()


@pytest.fixture
def app(app: App) -> App:
    @app.job
    async def child() -> None: ...

    return app


@pytest.fixture(params=["async", "plain"])
async def kept(request: pytest.FixtureRequest, app: App) -> Kept:
    left: list[Kept] = []

    @app.job(name="parent")
    async def waits(ctx: Context) -> None:
        left.append(Kept(ctx))

    @app.job(name="plain parent")
    def blocks(ctx: SyncContext) -> None:
        left.append(Kept(ctx))

    job = await (waits if request.param == "async" else blocks).submit()
    assert (await worked(app, job)).state == State.DONE
    return left[0]


async def outcome(answer: Any) -> Any:
    return await answer if inspect.isawaitable(answer) else answer


@contextlib.contextmanager
def refused(verb: str) -> Iterator[None]:
    """The error says which verb of which job, and what to do."""
    with pytest.raises(AttemptEnded, match=rf"job \w+: ctx.{verb} was used after attempt 1 had ended; await every"):
        yield


@pytest.mark.parametrize("verb", VERBS)
async def test_every_verb_refuses_after_the_end(kept: Kept, app: App, verb: str) -> None:
    """A child that is submitted too late would be lost without a word."""
    with refused(verb):
        await outcome(VERBS[verb](kept.ctx, app))


async def test_a_client_that_is_first_used_after_the_end_is_refused_as_well(app: App) -> None:
    """The client is made at its first use, which may be too late."""
    left: list[Context] = []

    @app.job(name="keeps")
    async def keeps(ctx: Context) -> None:
        left.append(ctx)

    await worked(app, await keeps.submit())
    with refused("http"):
        await left[0].http.get(URL)


@pytest.mark.parametrize("verb", HTTP_VERBS)
async def test_a_client_that_was_kept_sends_nothing(kept: Kept, verb: str) -> None:
    """The request would be paid for by a job that is over."""
    arguments = ("GET", URL) if verb == "request" else (URL,)
    with refused("http"):
        await outcome(getattr(kept.http, verb)(*arguments))


async def test_a_call_that_was_kept_does_not_begin(kept: Kept) -> None:
    """It would take a permit that another job waits for."""
    with refused("call"):
        if isinstance(kept.call, SyncProviderCall):
            kept.call.__enter__()
        else:
            await kept.call.__aenter__()


async def test_the_facts_of_a_job_can_still_be_read(kept: Kept) -> None:
    """A late log line names its job, and a loop that checks `cancelled` ends."""
    assert kept.ctx.attempt == 1
    assert kept.ctx.cancelled is True


async def test_a_plain_context_does_not_wait_for_a_loop_that_is_gone() -> None:
    """A thread that waits for a closed loop would hang for ever."""
    left: list[Any] = []
    app = App("memory://")

    @app.job
    def blocks(ctx: SyncContext) -> None:
        left.append(ctx)

    def one_run() -> None:
        async def run() -> None:
            await blocks.submit()
            await app.run_worker(until_empty=True)

        asyncio.run(run())

    await asyncio.to_thread(one_run)
    with refused("checkpoint"):
        await asyncio.wait_for(asyncio.to_thread(left[0].checkpoint, 1), SOON_SECONDS)


async def test_a_task_that_outlives_its_handler_fails_and_its_child_is_not_half_there(app: App) -> None:
    """The task gets the error where the mistake is, and the parent's result stands."""
    tasks: list[asyncio.Task[Any]] = []
    may_go_on = asyncio.Event()

    @app.job(name="forgetful")
    async def parent(ctx: Context) -> str:
        async def later() -> None:
            await may_go_on.wait()
            ctx.submit(app.bind("child", {}))

        tasks.append(asyncio.get_running_loop().create_task(later()))
        return "done"

    job = await worked(app, await parent.submit())
    may_go_on.set()
    with refused("submit"):
        await tasks[0]
    assert job.result == "done"


async def test_a_request_that_waits_for_a_permit_when_the_handler_returns_is_not_sent() -> None:
    """The wait may take a minute; by then the job has its result, and another attempt may be running."""
    app = App("memory://")
    tasks: list[asyncio.Task[Any]] = []
    limit = Limit("api", "1/second", concurrency=1)

    async with provider(limits=["100/second"]) as it:

        @app.job(limits=[limit])
        async def parent(ctx: Context) -> None:
            async with ctx.call():  # takes the only place
                await ctx.http.get(it.url)
                tasks.append(asyncio.get_running_loop().create_task(ctx.http.get(it.url)))
                await asyncio.sleep(0.01)

        await parent.submit()
        await app.run_worker(until_empty=True)
        with refused("call"):
            await asyncio.wait_for(tasks[0], SOON_SECONDS)
        assert len(it.arrivals) == 1


async def test_a_job_that_uses_the_context_of_another_job_fails(app: App) -> None:
    """The misuse must not look like a lost lease, which would end the second job without an error."""
    left: list[Context] = []

    @app.job(name="first")
    async def first(ctx: Context) -> None:
        left.append(ctx)

    @app.job(name="second", attempts=1)
    async def second() -> None:
        await left[0].checkpoint(1)

    await worked(app, await first.submit())
    job = await worked(app, await second.submit())
    assert (job.state, job.last_error_code) == (State.FAILED, "AttemptEnded")


async def test_a_thread_that_outlives_its_timeout_is_told() -> None:
    """A plain function cannot be stopped. What it does after its timeout must not count."""
    app = App("memory://")
    errors: list[BaseException] = []
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()

    @app.job(timeout=0.05, attempts=1)
    def slow(ctx: SyncContext) -> None:
        while not ctx.cancelled:
            pass
        try:
            ctx.submit(app.bind("slow", {}))
        except AttemptEnded as error:
            errors.append(error)
        loop.call_soon_threadsafe(stopped.set)

    job = await worked(app, await slow.submit())
    await asyncio.wait_for(stopped.wait(), SOON_SECONDS)
    assert (job.last_error_code, len(errors)) == ("timeout", 1)
