"""A web application of three tenants whose jobs call a metered provider. README.md says how to run it."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, FastAPI, Header, HTTPException

from leaseway import App, Budget, Context, Limit

PROVIDER_URL = os.environ["PROVIDER_URL"]
TENANTS = {"key-of-acme": "acme", "key-of-bolt": "bolt", "key-of-coda": "coda"}

app = App("sqlite:///metered_app.db")
provider = Limit("provider", "10 per 2 s", concurrency=3)  # as the provider documents it, for all tenants together
spend = Budget("spend:{tenant}", usd=0.5, every="day")  # one for each tenant


@app.job(limits=[provider], budget=spend, cost_usd=0.002, lease=5)  # the price of one call
async def summarize(ctx: Context, text: str) -> dict[str, str]:
    language = ctx.cursor or await ask(ctx, "language", text)
    await ctx.checkpoint(language)  # another attempt does not pay for this call again
    return {"language": language, "summary": await ask(ctx, "summary", text)}


async def ask(ctx: Context, what: str, text: str) -> str:
    """One call: it waits for the limit, and its money is held until it ends. `step` becomes its idempotency key."""
    reply = await ctx.http.post(f"{PROVIDER_URL}/{what}", json={"text": text}, step=what, timeout=5)
    reply.raise_for_status()
    return reply.text


@asynccontextmanager
async def lifespan(web: FastAPI) -> AsyncIterator[None]:
    async with app:  # workers are processes of their own: leaseway work metered_app:app
        yield


async def authenticate(x_api_key: Annotated[str, Header()]) -> str:
    if x_api_key not in TENANTS:
        raise HTTPException(401, "unknown API key")
    return TENANTS[x_api_key]


web, Tenant = FastAPI(lifespan=lifespan), Annotated[str, Depends(authenticate)]


@web.post("/summaries", status_code=202)
async def submit(text: str, tenant: Tenant) -> dict[str, str]:
    return {"id": (await summarize.options(tenant=tenant).submit(text=text)).id}


@web.get("/summaries/{id}")
async def show(id: str, tenant: Tenant) -> dict[str, object]:
    job = await app.find(id)
    if job is None or job.tenant != tenant:
        raise HTTPException(404, "there is no such summary")
    return {"state": job.state, "result": job.result}
