"""Correct calls. A type checker must accept every line."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from jobs import (
    Address,
    Color,
    Order,
    Point,
    Receipt,
    anything,
    app,
    named_like_options,
    nightly,
    receipt,
    remember,
    sell,
    ship,
    weigh,
)

from leaseway import Bound, Context, JobHandle, JobRecord, Submitted, SyncContext
from leaseway.testing import FakeContext, FakeSyncContext

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
ORDER = Order(number=7, items=["tea"])


async def submit() -> None:
    one: Submitted = await ship.submit(order=7)
    await ship.submit(order=7, express=True)
    await sell.submit(order=ORDER, at=NOON, note="gift")
    await sell.submit(order=ORDER, at=NOON, color=Color.RED, note=None)
    await weigh.submit(points=[Point(1, 2)], address=Address(street="a", city="b"), ids={"a": UUID(int=1)})
    await anything.submit(value=object())
    await anything.submit(value=7, other="x")
    await named_like_options.options(key="once", tenant="acme").submit(key="mine", tenant=7, queue=["a"])
    await nightly.submit()
    await nightly.submit(limit=5)
    await ship.options(key="ship:7", tenant="acme", priority=5, delay=timedelta(minutes=5)).submit(order=7)
    acme = ship.options(tenant="acme", queue="bulk", attempts=3, timeout=2.5, cursor={"page": 1}, shard_key="a")
    await acme.options(run_at=NOON).submit(order=8, express=False)
    await acme.submit_many([{"order": n} for n in range(10)])
    await app.submit_many(ship.bind(order=n) for n in range(10))
    await app.submit_many([ship.bind(order=7), receipt.bind(number=1, to="a"), app.bind("ship", {"order": 1}, key="k")])
    text: str = await ship.result(one, timeout=10)
    sold: Receipt = await sell.result(await sell.submit(order=ORDER, at=NOON))
    print(text, sold.order.items, (await weigh.result("id"))["points"])
    record: JobRecord = await app.wait(one)
    print(record.result["a"], record.payload["order"])


def submit_sync() -> None:
    receipt.submit_sync(number=7, to="ada@example.org")
    bound: Bound = receipt.options(key="7").bind(number=7, to="ada@example.org")
    app.submit_sync(bound)
    receipt.submit_many_sync([{"number": 7, "to": "ada@example.org"}])
    text: str = ship.result_sync("id")
    nothing = receipt.result_sync("id")
    print(text, nothing)


async def call_directly(ctx: Context, plain: SyncContext) -> None:
    text: str = await ship(ctx, order=7)
    sold: Receipt = await sell(order=ORDER, at=NOON)
    receipt(plain, number=7, to="ada@example.org")
    print(text, sold, remember(ctx), remember(plain))
    fake = FakeContext(ship, cursor=1)
    await ship(fake, order=7)
    receipt(FakeSyncContext(receipt.bind(number=7, to="a")), number=7, to="ada@example.org")
    print(fake.cost, fake.checkpoints)


def names(handles: list[JobHandle[Any]]) -> list[str]:
    return [handle.name for handle in handles]


print(names([ship, receipt, sell]))
