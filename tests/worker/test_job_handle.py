"""Handles of jobs: options apart from arguments, typed results, and mistakes that are found when a job is declared."""

import asyncio
import dataclasses
import inspect
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import BaseModel
from tests.worker.observe import codes, worked

from leaseway import (
    App,
    BadValue,
    Budget,
    Context,
    Fail,
    JobFailed,
    JobHandle,
    Limit,
    State,
    SyncContext,
    UsageError,
)

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


class Item(BaseModel):
    sku: str
    count: int = 1


@dataclasses.dataclass
class Receipt:
    items: list[Item]
    paid_at: datetime


# -- options ----------------------------------------------------------------------------------------------------------


async def test_options_do_not_collide_with_arguments(app: App) -> None:
    """A user's own argument may be called `key` or `tenant`."""

    @app.job
    async def store(ctx: Context, key: str, tenant: int, self: int, args: int, kwargs: int) -> list[Any]:
        return [key, tenant, ctx.tenant, self, args, kwargs]

    job = await store.options(key="once", tenant="acme").submit(key="mine", tenant=7, self=1, args=2, kwargs=3)
    assert (await worked(app, job)).result == ["mine", 7, "acme", 1, 2, 3]


async def test_options_are_added_and_replaced(app: App) -> None:
    """A module can give its jobs a tenant, and the caller a priority."""

    @app.job
    async def task() -> None: ...

    acme = task.options(tenant="acme", priority=1)
    bound = acme.options(priority=2, queue="bulk").bind()
    assert (bound.options.tenant, bound.options.priority, bound.options.queue) == ("acme", 2, "bulk")
    assert (acme.bind().options.priority, task.bind().options.tenant) == (1, None), "a handle never changes"


async def test_an_option_among_the_arguments_is_told_where_it_belongs(app: App) -> None:
    """It is the first mistake of everyone who knows other libraries."""

    @app.job
    async def pay(amount: int) -> None: ...

    with pytest.raises(BadValue, match=r"pay: key: is an option, not an argument; write pay.options\(key=…\)"):
        await pay.submit(amount=1, key="k")  # type: ignore[call-arg]


@pytest.mark.parametrize("way", ["submit", "submit_sync", "bind"])
async def test_positional_arguments_are_refused_with_the_way_out(app: App, way: str) -> None:
    """Arguments are stored by name."""

    @app.job
    async def pay(ctx: Context, amount: int, to: str) -> None: ...

    async def call() -> None:
        answer = getattr(pay, way)(1, "ada")
        if inspect.isawaitable(answer):
            await answer

    with pytest.raises(UsageError, match=r"job pay: give the arguments by name: submit\(amount=…, to=…\)"):
        await call()


# -- results ----------------------------------------------------------------------------------------------------------


async def test_models_and_dataclasses_go_in_and_come_out(app: App) -> None:
    """Handlers and callers work with types; the store has JSON."""

    @app.job
    async def buy(ctx: Context, items: list[Item], first: Item | None = None) -> Receipt:
        assert all(isinstance(item, Item) for item in items)
        assert isinstance(first, Item)
        return Receipt(items, NOON)

    job = await buy.submit(items=[Item(sku="a"), Item(sku="b", count=2)], first=Item(sku="c"))
    record = await worked(app, job)
    assert record.result == {
        "items": [{"sku": "a", "count": 1}, {"sku": "b", "count": 2}],
        "paid_at": "2030-01-01T12:00:00Z",
    }
    assert await buy.result(job) == Receipt([Item(sku="a"), Item(sku="b", count=2)], NOON)


async def test_a_result_of_a_plain_function(app: App) -> None:
    """Code that is not async must get the same value."""

    @app.job
    def price(ctx: SyncContext, item: Item) -> Item:
        return item.model_copy(update={"count": 9})

    job = await price.submit(item=Item(sku="a"))
    await worked(app, job)
    assert await asyncio.to_thread(price.result_sync, job, 5) == Item(sku="a", count=9)


async def test_a_result_of_another_version_names_the_field_and_the_way_out(app: App) -> None:
    """A new version added a field to the model after the job was done."""

    class NewItem(Item):
        note: str

    @app.job(name="price")
    async def price(item: Item) -> Item:
        return item

    job = await price.submit(item=Item(sku="a"))
    await worked(app, job)
    app.kinds.clear()

    @app.job(name="price")
    async def new_price(item: NewItem) -> NewItem:
        return item

    with pytest.raises(BadValue, match=r"price: the result: note: Field required; .*find\(\) has it as it is"):
        await new_price.result(job)


async def test_a_job_without_a_result_says_why(app: App) -> None:
    """None would look like a result."""

    @app.job
    async def fail() -> int:
        raise Fail("no", code="refused")

    @app.job
    async def other() -> int:
        return 1

    job = await fail.submit()
    await worked(app, job)
    with pytest.raises(JobFailed, match=f"job {job.id} is failed with refused; see leaseway jobs show"):
        await fail.result(job)
    with pytest.raises(UsageError, match="is a 'fail', not a 'other'"):
        await other.result(job)


async def test_a_result_that_is_not_json_fails_the_job_with_the_way_out(app: App) -> None:
    """A retry would repeat the work, and fail in the same way."""

    @app.job
    async def fetch() -> Any:
        return {"reply": object()}

    job = await fetch.submit()
    await worked(app, job)
    assert await codes(app, job) == [(1, "bad_result")]
    (error,) = await (await app.store()).reads.errors(job.id)
    assert "result: cannot be written as JSON: values of type object have no JSON form; use numbers" in error.message


async def test_arguments_of_another_version_name_the_field(app: App) -> None:
    """A rolling deploy: the job was submitted by a version whose model had no `size`."""

    class NewItem(Item):
        size: int

    async def buy(item: Any) -> None: ...

    old = app.job(name="buy")(buy)
    job = await old.submit(item=Item(sku="a"))
    del app.kinds["buy"]
    buy.__annotations__["item"] = NewItem
    app.job(name="buy", attempts=1)(buy)
    await worked(app, job)
    (error,) = await (await app.store()).reads.errors(job.id)
    assert "buy: item: size: Field required" in error.message


# -- limits and budgets -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"limits": [Limit("maps", "5/minute")]}, "job second: limit maps is defined with other values in job first"),
        ({"budget": Budget("spend", usd=2), "cost_usd": 1}, "job second: budget spend is defined with other values"),
    ],
)
def test_two_definitions_with_one_name_are_refused(options: Any, message: str) -> None:
    """Which of them applied depended on the order of imports, and a provider or a bill would be the first to notice."""
    app, maps, spend = App("memory://"), Limit("maps", "2/minute"), Budget("spend", usd=1)

    @app.job(limits=[maps.cost(1)], budget=spend, cost_usd=1)
    async def first() -> None: ...

    async def second() -> None: ...

    with pytest.raises(UsageError, match=message):
        app.job(**options)(second)
    app.job(limits=[Limit("maps", "2/minute")], budget=spend, cost_usd=0.5)(second)
    assert list(app.kinds) == ["first", "second"]


async def test_a_worker_may_be_given_one_queue_by_its_name(app: App) -> None:
    """A text is a sequence of letters, and the worker would serve the queues m, a, i and l."""

    @app.job(queue="mail")
    async def send() -> None: ...

    job = await send.submit()
    await app.run_worker(queues="mail", until_empty=True)
    found = await app.find(job)
    assert found is not None
    assert found.state is State.DONE


# -- contexts ---------------------------------------------------------------------------------------------------------


def test_the_context_of_the_other_kind_of_function_is_refused() -> None:
    """`ctx.checkpoint(…)` without await would store nothing, and say nothing."""
    app = App("memory://")

    def plain(ctx: Context) -> None: ...
    async def waits(ctx: SyncContext) -> None: ...
    async def late(x: int, context: Context) -> None: ...
    async def second(x: int, ctx: Context) -> None: ...

    for function, message in (
        (plain, "job plain: a plain function takes `ctx: SyncContext`"),
        (waits, "job waits: an async function takes `ctx: Context`"),
        (late, "job late: parameter 'context' is a context; make it the first one and name it ctx"),
        (second, "job second: parameter 'ctx' is a context; make it the first one and name it ctx"),
    ):
        with pytest.raises(UsageError, match=message):
            app.job(function)
    assert app.kinds == {}


def test_a_context_may_be_of_any_other_type() -> None:
    """Helpers take both contexts, and tests take their own."""
    app = App("memory://")

    def both(ctx: Context | SyncContext) -> None: ...
    async def untyped(ctx, x: int) -> None: ...  # type: ignore[no-untyped-def]
    async def anything(ctx: object) -> None: ...

    for function in (both, untyped, anything):
        handle: JobHandle[Any] = app.job(function)
        assert handle.kind.takes_context


async def test_a_handle_is_still_the_function(app: App) -> None:
    """Unit tests call it directly."""

    @app.job
    async def double(x: int) -> int:
        """Twice as much."""
        return 2 * x

    @app.job
    def triple(ctx: SyncContext | None, x: int) -> int:
        return 3 * x

    assert (await double(x=2), await double(2), triple(None, 2)) == (4, 4, 6)
    assert (callable(double), double.__doc__) == (True, "Twice as much.")
