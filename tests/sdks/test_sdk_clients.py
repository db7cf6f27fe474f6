"""The official SDKs of OpenAI and Anthropic, unchanged, under the limits and budgets of a job.

The provider on the loopback interface has true sliding windows of requests and of tokens, and answers 429 above them.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import httpx2
import pytest
from tests.sdks.clients import anthropic_client, async_anthropic, async_openai, openai_client
from tests.worker.observe import codes, stored, worked

from leaseway import App, BadValue, Budget, Context, HttpReply, Limit, State, SyncContext, Usage, leaseway_client
from leaseway.domain.limits.limit import PermitRequest
from leaseway.testing import FakeContext
from leaseway.testing.models import model_provider

SPEND = Budget("spend", usd=10)
MESSAGES: Any = [{"role": "user", "content": "name three rivers"}]
NOWHERE = "http://127.0.0.1:9/v1"


@pytest.fixture(params=["memory", "sqlite"])
async def app(request: pytest.FixtureRequest, tmp_path: Any) -> AsyncIterator[App]:
    async with App("memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/work.db") as app:
        yield app


def price(usage: Usage) -> float:
    return usage.total_tokens * 0.001


async def tokens_used(app: App, name: str) -> int:
    _, (level,) = await app._world.limiter.levels([PermitRequest(name, name)])
    return sum(use.amount for use in level.used)


async def spent_micros(app: App) -> int:
    (account,) = await app._world.ledger.reads.balances(["spend"])
    return account.balance.spent_micros


async def test_a_fleet_of_calls_stays_within_both_windows_without_a_429(app: App) -> None:
    """The reason for the project: an SDK knows nothing of the other calls, and backs off only after a 429."""
    rpm = Limit("rpm", "20 per 2 s", start="full")
    tpm = Limit("tpm", "600 per 2 s", unit="tokens", cost_max=120, start="full")

    @app.job(limits=[rpm, tpm.cost(104)], budget=SPEND, cost_usd=0.2)
    async def ask(ctx: Context, url: str) -> str:
        client = async_openai(base_url=f"{url}/v1", api_key="key", http_client=leaseway_client(ctx, cost=price))
        reply = await client.chat.completions.create(model="gpt", messages=MESSAGES, max_tokens=100)
        return str(reply.choices[0].message.content)

    async with model_provider("20 per 2 s", "600 per 2 s", seconds=0.05, output=40) as it:
        await ask.submit_many([{"url": it.url}] * 40)
        async with asyncio.timeout(120):
            await app.run_worker(until_empty=True, concurrency=20)
    assert (len(it.uses), it.refused) == (40, 0)
    assert it.most_in_any_window(2) <= 20
    assert it.most_tokens_in_any_window(2) <= 600
    assert await spent_micros(app) == it.tokens * 1_000


async def openai_chat(ctx: Context, url: str) -> str:
    client = async_openai(base_url=f"{url}/v1", api_key="key", http_client=leaseway_client(ctx, cost=price))
    reply = await client.chat.completions.create(model="gpt", messages=MESSAGES, max_tokens=100)
    return str(reply.choices[0].message.content)


async def openai_stream(ctx: Context, url: str) -> str:
    client = async_openai(base_url=f"{url}/v1", api_key="key", http_client=leaseway_client(ctx, cost=price))
    stream = await client.chat.completions.create(
        model="gpt", messages=MESSAGES, max_tokens=100, stream=True, stream_options={"include_usage": True}
    )
    return "".join([part.choices[0].delta.content or "" async for part in stream if part.choices])


async def anthropic_message(ctx: Context, url: str) -> str:
    client = async_anthropic(base_url=url, api_key="key", http_client=leaseway_client(ctx, cost=price))
    reply = await client.messages.create(model="claude", messages=MESSAGES, max_tokens=100)
    return "".join(part.text for part in reply.content if part.type == "text")


async def anthropic_stream(ctx: Context, url: str) -> str:
    client = async_anthropic(base_url=url, api_key="key", http_client=leaseway_client(ctx, cost=price))
    async with client.messages.stream(model="claude", messages=MESSAGES, max_tokens=100) as stream:
        return await stream.get_final_text()


def openai_sync(ctx: SyncContext, url: str) -> str:
    client = openai_client(base_url=f"{url}/v1", api_key="key", http_client=leaseway_client(ctx, cost=price))
    reply = client.chat.completions.create(model="gpt", messages=MESSAGES, max_tokens=100)
    return str(reply.choices[0].message.content)


def anthropic_sync(ctx: SyncContext, url: str) -> str:
    client = anthropic_client(base_url=url, api_key="key", http_client=leaseway_client(ctx, cost=price))
    reply = client.messages.create(model="claude", messages=MESSAGES, max_tokens=100)
    return "".join(part.text for part in reply.content if part.type == "text")


async def built_on_httpx(ctx: Context, url: str) -> str:
    client: httpx.AsyncClient = leaseway_client(ctx, cost=price, library="httpx")
    reply = await client.post(f"{url}/v1/chat/completions", json={"messages": MESSAGES})
    return str(reply.json()["choices"][0]["message"]["content"])


HANDLERS = [
    openai_chat, openai_stream, anthropic_message, anthropic_stream, openai_sync, anthropic_sync, built_on_httpx,
]  # fmt: skip


@pytest.mark.parametrize("handler", HANDLERS, ids=lambda each: each.__name__)
async def test_each_sdk_works_unchanged_and_its_usage_is_settled(app: App, handler: Any) -> None:
    """An SDK that gets a reply it cannot read is useless, and usage that is not read is charged at its maximum."""
    tpm = Limit("tpm", "10k/minute", unit="tokens", start="full")
    job = app.job(limits=[tpm.cost(1_000)], budget=SPEND, cost_usd=1)(handler)
    async with model_provider(output=7) as it:
        done = await worked(app, await job.submit(url=it.url))
    assert (done.state, done.result) == (State.DONE, " ".join(["word"] * 7))
    assert len(it.arrivals) == 1
    assert it.arrivals[0].headers["user-agent"] != "leaseway"
    assert await tokens_used(app, "tpm") == it.tokens == 11
    assert await spent_micros(app) == 11_000


async def test_input_and_output_tokens_are_settled_apart(app: App) -> None:
    """Anthropic limits them apart; a sum would be charged to both."""
    itpm = Limit("itpm", "10k/minute", unit="input_tokens", start="full")
    otpm = Limit("otpm", "10k/minute", unit="output_tokens", start="full")
    job = app.job(limits=[itpm.cost(100), otpm.cost(100)])(anthropic_message)
    async with model_provider(output=7) as it:
        await worked(app, await job.submit(url=it.url))
    assert (await tokens_used(app, "itpm"), await tokens_used(app, "otpm")) == (4, 7)


async def fan_out(ctx: Context, url: str) -> str:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(anthropic_message(ctx, url))
    return task.result()


CATCHING = [anthropic_message, anthropic_sync, fan_out, openai_chat]
"""The SDK of Anthropic, and older ones of OpenAI, catch every `Exception` of their client and repeat the request."""


@pytest.mark.parametrize("handler", CATCHING, ids=lambda each: each.__name__)
async def test_a_429_gives_the_job_back_although_the_sdk_catches_every_exception(app: App, handler: Any) -> None:
    """An SDK would wait and retry in the handler, and its error would use up the attempts of the job. In a plain
    function the error has to leave a thread, and in a task group a group."""
    job = app.job(limits=[Limit("rpm", "600/minute", start="full")], attempts=1)(handler)
    async with model_provider() as it:
        it.answer(429, {"retry-after-ms": "5500"})  # more than a handler waits
        done = await worked(app, order := await job.submit(url=it.url))
    assert (done.state, [each.status for each in it.arrivals]) == (State.DONE, [429, 200])
    assert (await stored(app, order)).fence == 2  # the second request belongs to another lease


async def test_the_retries_of_an_sdk_are_off(app: App) -> None:
    """They multiply those of leaseway and those of the job, and wait while they hold a slot."""
    job = app.job(attempts=1)(openai_chat)
    async with model_provider() as it:
        it.answer(500, times=9)
        failed = await worked(app, order := await job.submit(url=it.url))
    assert failed.state is State.FAILED
    assert [code for _, code in await codes(app, order)] == ["InternalServerError"]
    assert len(it.arrivals) == 1


async def test_a_request_whose_reply_is_lost_is_not_repeated_by_the_sdk(app: App) -> None:
    """The model may have answered it, and has been paid."""

    @app.job(attempts=1)
    async def ask(ctx: Context, url: str) -> str:
        from openai import APIConnectionError

        try:
            return await openai_chat(ctx, url)
        except APIConnectionError as error:
            return type(error.__cause__).__name__

    async with model_provider() as it:
        it.cut(after_reading=True, times=9)
        done = await worked(app, await ask.submit(url=it.url))
    assert (done.state, done.result) == (State.DONE, httpx2.ReadError.__name__)
    assert len(it.arrivals) == 1


async def test_a_budget_that_is_used_up_passes_the_sdk(app: App) -> None:
    """An SDK would report a connection that failed, and repeat it."""
    small = Budget("spend", usd=1, over="fail")

    @app.job(budget=small, cost_usd=0.95)
    async def ask(ctx: Context, url: str) -> None:
        await anthropic_message(ctx, url)
        await anthropic_message(ctx, url)

    async with model_provider(output=96) as it:
        failed = await worked(app, order := await ask.submit(url=it.url))
    assert (failed.state, [code for _, code in await codes(app, order)]) == (State.FAILED, ["over_budget"])
    assert len(it.arrivals) == 1


async def test_a_reply_without_usage_is_charged_in_full(app: App) -> None:
    """A stream without `include_usage` says nothing of it, and zero would let the job spend without limit."""
    tpm = Limit("tpm", "10k/minute", unit="tokens", start="full")

    @app.job(limits=[tpm.cost(1_000)], budget=SPEND, cost_usd=1)
    async def ask(ctx: Context, url: str) -> int:
        client = async_openai(base_url=f"{url}/v1", api_key="key", http_client=leaseway_client(ctx, cost=price))
        return len([part async for part in await client.chat.completions.create(
            model="gpt", messages=MESSAGES, stream=True
        )])  # fmt: skip

    async with model_provider() as it:
        assert (await worked(app, await ask.submit(url=it.url))).state is State.DONE
    assert (await tokens_used(app, "tpm"), await spent_micros(app)) == (1_000, 1_000_000)


async def test_unit_tests_answer_an_sdk_without_a_server() -> None:
    """A test of a job must not need a key or a network."""
    app = App("memory://")
    job = app.job(budget=SPEND, cost_usd=1)(openai_chat)
    body = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "Aare"}, "finish_reason": "stop"}]}
    usage = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
    ctx = FakeContext(
        job, replies=[HttpReply(200, json={"id": "1", "object": "chat.completion", **body, "usage": usage})]
    )
    assert await job(ctx, url=NOWHERE) == "Aare"
    assert ctx.cost == {"usd": 0.004}


def test_a_library_that_is_not_supported_is_refused() -> None:
    """An SDK would fail later with an error about its own client."""
    with pytest.raises(BadValue, match="library: must be one of httpx2, httpx"):
        leaseway_client(FakeContext(), library="requests")
