"""Pools of keys: a call takes the first key with room, and a key that the provider refuses leaves the pool."""

from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from tests.worker.test_why import why

from leaseway import App, BadValue, Budget, Context, HttpReply, HttpRequest, KeyPool, Limit, State, UsageError
from leaseway.testing import FakeContext, VirtualTime, virtual_time
from leaseway.worker.calls.key_pool import DEAD_SECONDS

URL = "https://model.test/"
RPM = Limit("rpm:{key}", "10/minute", burst=0.5, start="full")
"""Five requests at once for each key, and ten within a minute."""
SECRETS = {"a": "secret-of-key-a", "b": "secret-of-key-b"}


class Provider:
    """Counts requests by key, refuses the keys that it does not know any more, and anyone beyond ten in a minute."""

    def __init__(self) -> None:
        self.valid = set(SECRETS.values())
        self.calls: list[tuple[timedelta, str]] = []
        self.time: VirtualTime | None = None

    def answer(self, request: HttpRequest) -> HttpReply:
        assert self.time is not None
        key, now = request.headers["authorization"].removeprefix("Bearer "), self.time.elapsed
        self.calls.append((now, key))
        if key not in self.valid:
            return HttpReply(401, content=b'{"error": {"code": "invalid_api_key"}}')
        recent = [at for at, each in self.calls if each == key and now - at < timedelta(minutes=1)]
        return HttpReply(429 if len(recent) > 10 else 200)

    @property
    def by_key(self) -> Counter[str]:
        return Counter(key for _, key in self.calls)


def ran(provider: Provider, jobs: int, **settings: Any) -> tuple[App, list[State], timedelta]:
    """The states of jobs that each make one call."""
    app, pool = App("memory://"), KeyPool("model", SECRETS, [RPM])

    @app.job(attempts=1)
    async def ask(ctx: Context, n: int) -> None:
        async with ctx.call(pool=pool) as call:
            (await ctx.http.get(URL, headers={"Authorization": f"Bearer {call.key}"})).raise_for_status()

    with virtual_time(app, transport=provider.answer, at_most=timedelta(days=1)) as provider.time:
        submitted = provider.time.run(ask.submit_many([{"n": n} for n in range(jobs)]))
        provider.time.run_until_empty(**settings)
        found = [provider.time.run(app.find(job.id)) for job in submitted]
        elapsed = provider.time.elapsed
    return app, [record.state for record in found if record is not None], elapsed


def test_a_call_takes_the_first_key_with_room() -> None:
    """The second key is spare capacity, and both together must stay within their own limits."""
    provider = Provider()
    _, states, _ = ran(provider, 7, concurrency=1)
    assert states == [State.DONE] * 7
    keys = [key for _, key in provider.calls]
    assert keys == sorted(keys), "the second key is used when the first has no room"
    assert provider.by_key["secret-of-key-a"] >= 4
    assert provider.by_key["secret-of-key-b"] >= 2


def test_both_keys_are_used_as_far_as_each_allows() -> None:
    """Two keys are worth twice the rate, and no key may exceed its own."""
    provider = Provider()
    _, states, elapsed = ran(provider, 30)
    assert set(states) == {State.DONE}
    assert len(provider.calls) == 30, "no request was refused"
    assert min(provider.by_key.values()) >= 10
    assert elapsed < timedelta(minutes=5)


def test_a_refused_key_leaves_the_pool_and_its_job_goes_on_with_another() -> None:
    """A key is revoked while a million jobs run: none of them may fail because of it, and it must not be tried by
    each."""
    provider = Provider()
    provider.valid.discard(SECRETS["a"])
    _, states, _ = ran(provider, 5)
    assert states == [State.DONE] * 5, "attempts=1: the refusal was not counted"
    assert provider.by_key["secret-of-key-b"] == 5
    assert provider.by_key["secret-of-key-a"] <= 5


def test_other_workers_do_not_try_a_refused_key() -> None:
    """Its limits are closed for the whole fleet, and the log names the key without its secret."""
    provider = Provider()
    provider.valid.discard(SECRETS["a"])
    told = list[tuple[str, str]]()

    class Heard:
        def emit(self, name: str, /, **fields: object) -> None:
            told.append((name, str(fields)))

    app, dead = App("memory://", events=Heard()), list[str]()

    def ask_with(name: str) -> Any:
        pool = KeyPool("model", SECRETS, [RPM])  # another worker has another object

        @app.job(name=name, attempts=1)
        async def ask(ctx: Context) -> None:
            async with ctx.call(pool=pool) as call:
                reply = await ctx.http.get(URL, headers={"Authorization": f"Bearer {call.key}"})
                if reply.status_code == 401:
                    dead.append(name)
                reply.raise_for_status()

        return ask

    asks = [ask_with(name) for name in ("first", "second")]
    with virtual_time(app, transport=provider.answer) as provider.time:
        for ask in asks:
            provider.time.run(ask.submit())
            provider.time.run_until_empty()
    assert dead == ["first"]
    assert [fields for name, fields in told if name == "key_left_pool"] == [
        str({"pool": "model", "key": "a", "seconds": DEAD_SECONDS})
    ]
    assert "secret-of-key" not in str(told)


def test_without_a_valid_key_jobs_wait_uncounted_and_go_on_with_a_new_one() -> None:
    """All keys of an account expire in one night. No job may fail, and the operator must see why nothing happens."""
    provider, app = Provider(), App("memory://")
    provider.valid.clear()
    pool = KeyPool("model", SECRETS, [RPM])

    @app.job(attempts=1)
    async def ask(ctx: Context) -> None:
        async with ctx.call(pool=pool) as call:
            (await ctx.http.get(URL, headers={"Authorization": f"Bearer {call.key}"})).raise_for_status()

    with virtual_time(app, transport=provider.answer) as provider.time:
        time = provider.time
        job = time.run(ask.submit())
        time.run_for(30)
        record = time.run(app.find(job.id))
        assert record is not None
        assert (record.state, record.attempts, len(provider.calls)) == (State.PENDING, 0, 2)
        assert time.run(why(app, job)) is not None
        provider.valid.update(SECRETS.values())
        time.run_until_empty()
        record = time.run(app.find(job.id))
        assert record is not None
        assert record.state is State.DONE
        assert timedelta(seconds=DEAD_SECONDS - 60) < time.elapsed < timedelta(seconds=DEAD_SECONDS + 180)


@pytest.mark.parametrize("by", ["report", "http"])
def test_a_refusal_is_seen_with_any_client(by: str) -> None:
    """An SDK raises its own error for 401; the job goes back all the same."""
    provider, app = Provider(), App("memory://")
    provider.valid.discard(SECRETS["a"])
    pool, used = KeyPool("model", SECRETS, [RPM]), list[str]()

    @app.job(attempts=1)
    async def ask(ctx: Context) -> None:
        async with ctx.call(pool=pool) as call:
            used.append(call.key)
            if by == "http":
                reply = await ctx.http.get(URL, headers={"Authorization": f"Bearer {call.key}"})
                assert reply.status_code == 200, "an error of the handler's own"
            else:
                await call.report(200 if call.key in provider.valid else 401, {})

    with virtual_time(app, transport=provider.answer) as provider.time:
        job = provider.time.run(ask.submit())
        provider.time.run_until_empty()
        record = provider.time.run(app.find(job.id))
    assert used == [SECRETS["a"], SECRETS["b"]]
    assert record is not None
    assert record.state is State.DONE


def test_a_refusal_without_a_pool_is_an_error_like_any_other() -> None:
    """A job with one key would wait for ever instead of saying that its key is wrong."""
    app = App("memory://")

    @app.job(limits=[Limit("rpm", "10/minute")], attempts=1)
    async def ask(ctx: Context) -> None:
        (await ctx.http.get(URL)).raise_for_status()

    with virtual_time(app, transport=lambda _: HttpReply(401)) as time:
        job = time.run(ask.submit())
        time.run_until_empty()
        record = time.run(app.find(job.id))
    assert record is not None
    assert record.state is State.FAILED


def test_budgets_and_tenants_hold_for_calls_of_a_pool() -> None:
    """A pool changes the limits of a call, and nothing else."""
    app, spend = App("memory://"), Budget("spend", usd=10)
    pool = KeyPool("model", SECRETS, [Limit("rpm:{tenant}:{key}", "10/minute"), RPM])

    @app.job(budget=spend, cost_usd=1)
    async def ask(ctx: Context) -> None:
        async with ctx.call(pool=pool) as call:
            call.settle(usd=0.25)

    with virtual_time(app) as time:
        time.run(ask.options(tenant="acme").submit())
        time.run_until_empty()
        (account,) = time.run(app._world.ledger.reads.balances(["spend"]))
        definitions = time.run(app._world.limiter.definitions.all())
    assert account.balance.spent_micros == 250_000
    assert {definition.name for definition, _ in definitions} == {"rpm:{tenant}:{key}", "rpm:{key}"}


def test_weights_and_costs_get_the_arguments_of_the_job_and_no_more() -> None:
    """The label of the key is a field of names. A function of the arguments would fail on one that it does not know,
    and an argument of the same name must stay what it is."""
    app, spend, seen = App("memory://"), Budget("spend", usd=10), list[tuple[str, int]]()
    tpm = Limit("tpm:{key}", "1000/minute", unit="tokens", start="full")
    pool = KeyPool("model", SECRETS, [RPM, tpm.cost(lambda key: len(key), learn=True)])

    @app.job(budget=spend, cost_usd=1)
    async def ask(ctx: Context, key: str) -> None:
        async with ctx.call(pool=pool, budget=spend, cost=lambda key: len(key) / 10) as call:
            seen.append((call.key, call.grant.needs.limits[1].cost if call.grant else 0))

    with virtual_time(app) as time:
        time.run(ask.submit(key="seven"))
        time.run_until_empty()
        (account,) = time.run(app._world.ledger.reads.balances(["spend"]))
    assert seen == [(SECRETS["a"], 5)]
    assert account.balance.spent_micros == 500_000


# -- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "limits", "expected"),
    [
        ({}, [RPM], "needs 1 to 100 keys by label"),
        (["secret"], [RPM], "needs 1 to 100 keys by label"),
        ({str(n): "secret" for n in range(101)}, [RPM], "needs 1 to 100 keys by label"),
        ({"a": ""}, [RPM], "keys: a: must be the secret"),
        ({"a": None}, [RPM], "keys: a: must be the secret"),
        ({"": "secret"}, [RPM], "keys"),
        (SECRETS, [], "needs a limit for each key"),
        (SECRETS, [Limit("rpm", "10/minute")], "rpm would be one limit for all keys; name it rpm:{key}"),
        (SECRETS, "rpm", "must be a list of limits"),
    ],
)
def test_a_pool_that_makes_no_sense_is_refused(keys: Any, limits: Any, expected: str) -> None:
    """It would have to fail at its first call in a worker, at night."""
    with pytest.raises(BadValue) as refused:
        KeyPool("model", keys, limits)
    assert expected in str(refused.value)
    assert "key pool model" in str(refused.value)


def test_secrets_are_not_shown() -> None:
    """Objects end up in logs and tracebacks."""
    assert repr(KeyPool("model", SECRETS, [RPM])) == "KeyPool('model', keys a, b)"


async def test_the_options_of_a_call_with_a_pool() -> None:
    """In a unit test, too."""
    pool = KeyPool("model", SECRETS, [RPM])

    async def ask(ctx: Context) -> str:
        async with ctx.call(pool=pool) as call:
            return call.key

    assert await ask(FakeContext()) == SECRETS["a"]
    with pytest.raises(UsageError, match=r"call.key: the call has no pool of keys; write ctx.call\(pool=…\)"):
        _ = FakeContext().call().key
    app = App("memory://")

    @app.job
    async def wrong(ctx: Context) -> None:
        with pytest.raises(BadValue, match="limits: is given together with pool="):
            ctx.call(pool=pool, limits=[])

    async with app:
        job = await wrong.submit()
        await app.run_worker(until_empty=True)
        record = await app.find(job.id)
    assert record is not None
    assert record.state is State.DONE
