"""What a provider refuses with any client: the job goes back uncounted, and each limit hears about its own unit."""

import pytest
from tests.worker.observe import eventually, record, worked, working

from leaseway import App, Budget, Context, Limit, State, Submitted, Throttled
from leaseway.domain.ids import SECOND_US
from leaseway.domain.limits.limit import PermitRequest

RPM = Limit("rpm", "60000/minute", start="full")
TPM = Limit("tpm", "6M/minute", unit="tokens", cost_max=1_000, start="full")
SPEND = Budget("spend", usd=10)


async def levels(app: App) -> list[tuple[int, int]]:
    """Of the limits on requests and on tokens: until when each is closed, and its pace in percent."""
    now, found = await app._world.limiter.levels([PermitRequest("rpm", "rpm"), PermitRequest("tpm", "tpm")])
    return [(max(each.blocked_until - now, 0) // SECOND_US, each.percent) for each in found]


async def test_a_refusal_that_is_reported_gives_the_job_back_uncounted_and_costs_nothing(app: App) -> None:
    """The handler went on to settle and to return a result that the provider never gave."""
    begun: list[int] = []
    reached: list[str] = []

    @app.job(limits=[RPM], budget=SPEND, cost_usd=1, attempts=1)
    async def ask(ctx: Context) -> None:
        async with ctx.call() as call:
            begun.append(ctx.attempt)
            await call.report(429, {"retry-after": "600"})
            reached.append("the code after the refusal")

    job = await ask.submit()

    async with working(app):
        await eventually(lambda: is_back(app, job, begun))
    (account,) = await app._world.ledger.reads.balances(["spend"])
    assert (account.balance.spent_micros, account.balance.held_micros) == (0, 0)
    assert (begun, reached) == ([1], [])


async def is_back(app: App, job: Submitted, begun: list[int]) -> bool:
    found = await record(app, job)
    return bool(begun) and found.state is State.PENDING and found.attempts == 0


@pytest.mark.parametrize("error", [Throttled("busy", retry_after=600), Throttled()])
async def test_a_handler_may_say_itself_that_it_was_refused(app: App, error: Throttled) -> None:
    """An SDK reports a refusal as an exception of its own, often without headers."""

    begun: list[int] = []

    @app.job(attempts=1)
    async def ask(ctx: Context) -> None:
        begun.append(ctx.attempt)
        raise error

    job = await ask.submit()
    async with working(app):
        await eventually(lambda: is_back(app, job, begun))


async def call(app: App, status: int, headers: dict[str, str], body: str = "") -> list[tuple[int, int]]:
    @app.job(limits=[RPM, TPM.cost(500)])
    async def ask(ctx: Context) -> None:
        async with ctx.call() as call:
            try:
                await call.report(status, headers, body)
            except Throttled:
                return

    await worked(app, await ask.submit())
    return await levels(app)


async def test_remaining_requests_do_not_throttle_a_limit_on_tokens(app: App) -> None:
    """400 requests are left, and 6,000,000 tokens: the limit on tokens was taken for nearly used up."""
    before = PermitRequest("tpm", "tpm")
    await call(app, 200, {"x-ratelimit-remaining-requests": "4", "x-ratelimit-reset-requests": "20s"})
    now, (rpm, tpm) = await app._world.limiter.levels([PermitRequest("rpm", "rpm"), before])
    assert max(rpm.buckets[60 * SECOND_US].tat - now, 0) > 1 * SECOND_US
    assert sum(use.amount for use in tpm.used) == 500, "only what the call itself reserved"


@pytest.mark.parametrize(
    ("headers", "body", "closed"),
    [
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-remaining-tokens": "90000"}, "", (True, False)),
        ({"x-ratelimit-remaining-requests": "60", "x-ratelimit-remaining-tokens": "20"}, "", (False, True)),
        ({}, '{"error": {"type": "tokens"}}', (False, True)),
        ({}, "", (True, True)),
    ],
)
async def test_a_refusal_closes_the_limit_that_it_is_about(
    app: App, headers: dict[str, str], body: str, closed: tuple[bool, bool]
) -> None:
    """A limit that was not exceeded would be slowed to 70 % each time the other one was."""
    found = await call(app, 429, {**headers, "retry-after": "100"}, body)
    assert tuple(seconds > 90 for seconds, _ in found) == closed
    assert tuple(percent == 70 for _, percent in found) == closed
