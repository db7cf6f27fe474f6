"""A user's jobs: async and plain, with and without a context, with models, options and a schedule."""

import enum
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, TypedDict
from uuid import UUID

import msgspec
from pydantic import BaseModel

from leaseway import App, Backoff, Budget, Context, Limit, SyncContext

app = App("memory://")
maps = Limit("maps", "50/second")
spend = Budget("spend", usd=25, every="day")


class Color(enum.Enum):
    RED = "red"


class Order(BaseModel):
    number: int
    items: list[str]


@dataclass
class Receipt:
    order: Order
    paid: Decimal


class Point(msgspec.Struct):
    x: float
    y: float


class Address(TypedDict):
    street: str
    city: str


@app.job
async def ship(ctx: Context, order: int, express: bool = False) -> str:
    await ctx.checkpoint({"order": order})
    reply = await ctx.http.get("https://example.org", params={"order": str(order)})
    async with ctx.call(deadline=5) as call:
        call.settle(usd=0.004)
    ctx.progress(1, 2, "half")
    ctx.submit(receipt.bind(number=order, to="ada@example.org"))
    ctx.submit(receipt.options(queue="mail").bind(number=order, to="ada@example.org"))
    return f"{reply.status_code} {express} {ctx.attempt}"


@app.job(queue="mail", attempts=3, timeout=60, backoff=Backoff(first_seconds=2))
def receipt(ctx: SyncContext, number: int, to: str) -> None:
    ctx.checkpoint([number, to])
    reply = ctx.http.get("https://example.org")
    with ctx.call() as call:
        call.settle(usd=reply.status_code)


@app.job(limits=[maps], budget=spend, cost_usd=0.005)
async def sell(order: Order, at: datetime, color: Color = Color.RED, *, note: str | None = None) -> Receipt:
    return Receipt(order, Decimal(len(note or "") + at.year))


@app.job
def weigh(points: list[Point], address: Address, ids: dict[str, UUID]) -> dict[str, Any]:
    return {"points": len(points), "city": address["city"], "ids": len(ids)}


@app.job
async def anything(value: Any, other: object = None) -> Any:
    return value


@app.job
async def named_like_options(key: str, tenant: int, queue: list[str]) -> int:
    return len(key) + tenant + len(queue)


@app.cron("0 3 * * *")
@app.job
async def nightly(ctx: Context, limit: int = 10) -> int:
    return limit


def remember(ctx: Context | SyncContext) -> str:
    return ctx.call_key("step")
