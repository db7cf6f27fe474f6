"""`tpm.cost(…, learn=True)`: calls reserve what calls of their kind really use."""

from leaseway import App, Budget, Context, Limit
from leaseway.domain.limits.learnt_use import CALLS_MIN, SCALE, LearntEstimate
from leaseway.domain.limits.limit import PermitRequest
from leaseway.testing import virtual_time

TPM = Limit("tpm", "1M/minute", unit="tokens", cost_max=4_000, start="full")


async def reserved(app: App) -> int:
    _, (level,) = await app._world.limiter.levels([PermitRequest("tpm", "tpm")])
    return sum(calls.count for calls in level.in_flight.values())


def reservations(learn: bool, *, settles: bool = True, per_call: bool = False) -> list[int]:
    """What each of 30 calls reserves that use 1,000 of 4,000 tokens, one after the other."""
    app, seen = App("memory://"), list[int]()
    use = TPM.cost(lambda: 4_000, learn=learn)

    @app.job(limits=[] if per_call else [use], budget=Budget("spend", usd=99), cost_usd=1)
    async def ask(ctx: Context) -> None:
        async with ctx.call(limits=[use] if per_call else None) as call:
            seen.append(await reserved(app))
            if settles:
                call.settle(usd=0, tokens=1_000)

    with virtual_time(app) as time:
        time.run(ask.submit_many([{}] * 30))
        time.run_until_empty(concurrency=1)
    return seen


def test_calls_reserve_what_calls_of_their_kind_use() -> None:
    """Three quarters of the limit stayed unused for the time of every call."""
    assert reservations(True) == [4_000] * CALLS_MIN + [1_000] * (30 - CALLS_MIN)


def test_it_is_learnt_only_if_the_job_says_so() -> None:
    """The maximum is what no window exceeds; a lower estimate is a choice."""
    assert set(reservations(False)) == {4_000}


def test_calls_with_limits_of_their_own_learn_as_well() -> None:
    """A job that calls two providers names its limits per call."""
    assert reservations(True, per_call=True)[-1] == 1_000


def test_a_call_that_does_not_say_what_it_used_teaches_nothing() -> None:
    """It is charged in full, which says nothing about what it used."""
    assert set(reservations(True, settles=False)) == {4_000}


def test_use_beyond_what_is_learnt_is_logged_in_full_and_reported() -> None:
    """It is debt that the next calls wait for, or the limit would be exceeded unnoticed; and an operator must see the
    estimate while the worker runs."""
    app = App("memory://")
    uses = iter([1_000] * CALLS_MIN + [3_900])

    @app.job(limits=[TPM.cost(4_000, learn=True)])
    async def ask(ctx: Context) -> None:
        async with ctx.call() as call:
            call.settle(tokens=next(uses))

    async def report() -> tuple[list[int], tuple[LearntEstimate, ...]]:
        worker = app.worker(concurrency=1)
        await app.run_worker(worker)
        _, (level,) = await app._world.limiter.levels([PermitRequest("tpm", "tpm")])
        return [use.amount for use in level.used], worker._describe(1.0).estimates

    with virtual_time(app) as time:
        time.run(ask.submit_many([{}] * (CALLS_MIN + 1)))
        app.worker = lambda **settings: type(app).worker(app, until_empty=True, **settings)  # type: ignore[method-assign]
        amounts, estimates = time.run(report())
    assert sum(amounts) == CALLS_MIN * 1_000 + 3_900
    assert estimates == (LearntEstimate("ask", "tpm", SCALE // 4, CALLS_MIN + 1),)
