"""Deliberate mistakes, one in each line with a comment. A type checker must find every one, and nothing else."""

from datetime import UTC, datetime

from jobs import Order, Receipt, app, nightly, receipt, sell, ship, weigh

import leaseway
from leaseway import Context, SyncContext
from leaseway.testing import FakeSyncContext

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
ORDER = Order(number=7, items=["tea"])


async def submit() -> None:
    await ship.submit(order="7")  # wrong: the type
    await ship.submit(order=7, expres=True)  # wrong: the name
    await ship.submit(express=True)  # wrong: an argument is missing
    await ship.submit(ctx=None, order=7)  # wrong: the worker passes the context
    await ship.submit(order=7, key="ship:7")  # wrong: an option is not an argument
    await sell.submit(order={"number": 7}, at=NOON)  # wrong: not the model
    await sell.submit(order=ORDER, at="2030-01-01")  # wrong: text is not a datetime
    await nightly.submit(limit="10")  # wrong: the type, below a schedule
    await ship.options(kei="ship:7").submit(order=7)  # wrong: the name of an option
    await ship.options(priority="high").submit(order=7)  # wrong: the type of an option
    await ship.options(key="ship:7").submit(order="7")  # wrong: the type, after options
    count: int = await sell.result("id")  # wrong: the type of the result
    print(count)


def submit_sync() -> None:
    receipt.submit_sync(number=7)  # wrong: an argument is missing
    receipt.submit_sync(number=7, to=b"ada@example.org")  # wrong: the type


async def bind() -> None:
    await app.submit(ship.bind())  # wrong: an argument is missing
    await app.submit_many(ship.bind(order=None) for _ in range(10))  # wrong: None is not an int
    await app.submit_many([weigh.bind(points=[1.0], address={"street": "a", "city": "b"}, ids={})])  # wrong: not points
    await app.submit_many([ship])  # wrong: a handle is not a bound job
    await app.submit(app.bind("ship", {"order": 7}, ky="7"))  # wrong: the name of an option


@app.job
async def waits(ctx: Context, order: int) -> None:
    ctx.checkpoint(order)  # wrong: await is missing
    print(ctx.http.get("https://example.org").status_code)  # wrong: await is missing
    with ctx.call():  # wrong: async is missing
        pass
    ctx.progress("half")  # wrong: the type
    ctx.submit(ship.submit(order=order))  # wrong: not a bound job
    print(ctx.attempts)  # wrong: the name


@app.job
async def waits_for_a_plain_context(ctx: SyncContext) -> None:
    await ctx.checkpoint(1)  # wrong: the methods of a plain context are not awaited


@app.job
def plain(ctx: Context, order: int) -> None: ...


print(leaseway.Contxt)  # wrong: the name
plain.submit_sync(order=7)  # wrong: a plain function takes a SyncContext


async def call_directly(ctx: Context) -> Receipt:
    await ship(ctx, order="7")  # wrong: the type
    await ship(FakeSyncContext(ship), order=7)  # wrong: the context of the other kind of function
    return await sell(order=ORDER)  # wrong: an argument is missing
