"""Call a model for some time, 16 at once: `python -m benchmarks.tokens.callers WHO MODEL STORE RATE SECONDS`.

    stated      jobs that reserve 4,000 tokens per call, and settle what it used
    learnt      the same, with learn=True
    constant    jobs that reserve 4,000 tokens per call and settle nothing, as limiters with a constant weight do
    litellm     LiteLLM's router with usage-based-routing-v2 and a Redis, as in its documentation; no jobs

STORE is an SQLite file, or for LiteLLM a Redis.
"""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from benchmarks.tokens.provider import TOKENS_MAX
from leaseway import App, Context, HttpReply, Limit
from leaseway.telemetry.log import NoEvents

AT_ONCE = 16
MESSAGE = {"role": "user", "content": "What does this customer want?"}
ASKED: Mapping[str, Any] = {"model": "m", "max_tokens": TOKENS_MAX, "messages": [MESSAGE]}
PAUSE_SECONDS = 0.2
"""After a refusal of LiteLLM's router, which does not wait."""


def used(reply: HttpReply) -> Mapping[str, Any]:
    return {"tokens": reply.json()["usage"]["total_tokens"]}


def app_of(who: str, model: str, store: str, rate: str) -> App:
    app = App(store, events=NoEvents())
    tpm = Limit("tpm", rate, unit="tokens", cost_max=TOKENS_MAX, start="full")

    @app.job(name="ask", limits=[tpm.cost(TOKENS_MAX, learn=who == "learnt")], attempts=1)
    async def ask(ctx: Context) -> None:
        settle = None if who == "constant" else used
        await ctx.http.post(f"{model}/v1/chat/completions", json=ASKED, settle=settle)

    return app


async def submit(app: App, count: int) -> None:
    async with app:
        await app.submit_many([app.bind("ask", {}) for _ in range(count)])


async def by_jobs(who: str, model: str, store: str, rate: str, seconds: float) -> None:
    async with app_of(who, model, store, rate) as app:
        worker = app.worker(concurrency=AT_ONCE)
        async with asyncio.TaskGroup() as group:
            group.create_task(app.run_worker(worker))
            await asyncio.sleep(seconds)
            worker.drain()


async def by_litellm(who: str, model: str, store: str, rate: str, seconds: float) -> None:
    import litellm

    litellm.suppress_debug_info = True
    redis, per_minute = urlsplit(store), Limit("tpm", rate, unit="tokens").definition.rates[0]
    parameters = {
        "model": "openai/m", "api_base": f"{model}/v1", "api_key": "a key",
        "tpm": per_minute.count * 60_000_000 // per_minute.window_us,
    }  # fmt: skip
    router = litellm.Router(
        model_list=[{"model_name": "m", "litellm_params": parameters}],
        routing_strategy="usage-based-routing-v2",
        redis_host=redis.hostname,
        redis_port=redis.port,
        num_retries=0,
    )
    until = time.monotonic() + seconds

    async def caller() -> None:
        while time.monotonic() < until:
            try:
                await router.acompletion(**ASKED)
            except litellm.exceptions.RateLimitError:
                await asyncio.sleep(PAUSE_SECONDS)

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(caller())


CALLERS: Mapping[str, Callable[[str, str, str, str, float], Awaitable[None]]] = {
    "stated": by_jobs, "learnt": by_jobs, "constant": by_jobs, "litellm": by_litellm
}  # fmt: skip


async def main() -> None:
    who, model, store, rate, seconds = sys.argv[1:]
    await CALLERS[who](who, model, store, rate, float(seconds))


if __name__ == "__main__":
    asyncio.run(main())
