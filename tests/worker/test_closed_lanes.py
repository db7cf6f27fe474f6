"""Many closed lanes of one tenant, and the jobs of the others."""

import asyncio
from collections import Counter
from typing import Any

import pytest
from tests.worker.observe import eventually, record, working

from leaseway import App, Budget, Context, Limit, State
from leaseway.domain.budgets.budget import MICRO, Charge
from leaseway.domain.exchange import LANES_MAX, Closing, Gate, Gated
from leaseway.domain.ids import SECOND_US, WorkerId
from leaseway.domain.limits.limit import PermitRequest
from leaseway.domain.requirements import Needs, render_needs
from leaseway.worker import admission
from leaseway.worker.definitions import (
    budget_definitions,
    declare_definitions,
    forget_budget,
    limit_definitions,
    rebook,
)
from leaseway.worker.limiter_client import LimiterClient

FOREVER = "1/hour"
"""No permit is granted within a test, because every bucket starts empty."""
LANES = 1_300
"""More lanes than a worker names in one call, and than the store reports in thirteen exchanges."""


def count_requests(app: App, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The permit requests from now on, by limit."""
    requests: Counter[str] = Counter()
    acquire = app.world.limiter.acquire

    async def counting(asks: Any, *given: Any, **named: Any) -> Any:
        requests.update(ask.limit for ask in asks if isinstance(ask, PermitRequest))
        return await acquire(asks, *given, **named)

    monkeypatch.setattr(app.world.limiter, "acquire", counting)
    return requests


async def test_closed_lanes_of_one_tenant_do_not_delay_the_jobs_of_another(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limit per account and five bulk submissions make a thousand closed lanes. If a worker tried those first, the
    limited jobs of all other tenants would wait for minutes.
    """

    tried: list[int] = []

    @app.job(limits=[Limit("mail:{account}", FOREVER)])
    async def send(account: int) -> None: ...

    @app.job(limits=[Limit("maps", concurrency=1)])
    async def fetch(before: int) -> None:
        tried.append(requests["mail:{account}"] - before)

    for first in range(0, LANES, LANES // 5):
        await send.options(tenant="acme").submit_many([{"account": n} for n in range(first, first + LANES // 5)])
    requests = count_requests(app, monkeypatch)
    async with working(app):
        for _ in range(5):
            job = await fetch.options(tenant="zeta").submit(before=requests["mail:{account}"])
            assert (await app.wait(job, 60)).state is State.DONE
    assert max(tried) <= 4 * LANES_MAX, f"the jobs of zeta waited for {tried} closed lanes of acme"


async def test_a_refusal_is_sent_although_its_gate_was_forgotten_meanwhile(app: App) -> None:
    """A reply that crosses the refusal does not list the gate, so the worker forgets it. The refusal holds, and a gate
    that is reported anew must not lose its time."""
    await app.store()
    gate = Gate(render_needs(Needs((PermitRequest("maps", "maps"),))), "default")
    admitting = admission.Admission(app.world, LimiterClient(app.world, WorkerId("w"), ()))
    admitting.learn([Gated(gate, 3)])
    admitting._close(admitting._gates[gate], 30.0, "limit maps: used up", is_shared=True)
    del admitting._gates[gate]
    admitting.learn([Gated(gate, 3)])
    (closing,) = admitting.take_closings()
    assert (closing.gate, closing.why) == (gate, "limit maps: used up")
    assert 0 < closing.wait_us <= 30 * SECOND_US
    assert admitting.take_closings() == ()


async def test_a_gate_opens_in_the_store_when_the_call_that_closed_it_ends(app: App) -> None:
    """With more gates than one reply contains, a refusal by a concurrency limit is stored, too. If it stayed until its
    time, a tenant with one short job at a time would get two of them per second because another has many lanes.
    """
    await app.store()
    maps = PermitRequest("maps", "maps")
    gate = Gate(render_needs(Needs((maps,))), "zeta")
    others = [Gate(render_needs(Needs((PermitRequest(f"mail:{n}", "mail"),))), "acme") for n in range(LANES_MAX - 1)]
    admitting = admission.Admission(app.world, LimiterClient(app.world, WorkerId("w"), ()))
    admitting.learn([Gated(each, 1) for each in (gate, *others)])
    state = admitting._gates[gate]
    state.waits_for = "maps"
    admitting._close(state, 0.5, "limit maps: its concurrency limit is reached", is_shared=True)
    (closing,) = admitting.take_closings()
    assert closing.gate == gate
    assert closing.wait_us > 0
    admitting._reopen((maps,))
    assert admitting.take_closings() == (Closing(gate, 0, ""),)
    assert admitting.take_closings() == ()


OPENS_SECONDS = 40.0
"""Much longer than a lane takes to open on any machine, and shorter than its closure, which lasts a minute."""


def one_per_day(app: App) -> Any:
    @app.job(budget=Budget("spend", usd=1, every="day"), cost_usd=1)
    async def spend(ctx: Context) -> None:
        async with ctx.call():
            pass

    return spend


async def is_closed(app: App) -> bool:
    return any(lane.closed_until is not None for lane in await app.world.store.reads.lanes())


async def raise_it(app: App) -> None:
    definitions = budget_definitions(app.world.ledger, app.world.store.operations)
    await definitions.change("spend", lambda _: Budget("spend", usd=2, every="day").definition)


async def resume_it(app: App) -> None:
    await raise_it(app)
    definitions = budget_definitions(app.world.ledger, app.world.store.operations)
    await definitions.pause("spend", True)
    await definitions.pause("spend", False)


async def rebook_it(app: App) -> None:
    await app.world.ledger.definitions.change(Budget("spend", usd=2, every="day").definition)
    await rebook(app.world.store, app.world.ledger, "spend")


@pytest.mark.parametrize("change", [raise_it, resume_it, rebook_it])
async def test_a_change_of_a_budget_opens_the_lanes_that_it_had_closed(app_anywhere: App, change: Any) -> None:
    """The worker had closed the lane for a minute, and after an operator had raised the budget the jobs waited for the
    rest of it."""
    app = app_anywhere
    spend = one_per_day(app)
    async with working(app, poll_seconds=60.0):
        await app.wait(await spend.submit(), 60)
        waiting = await spend.submit()
        await eventually(lambda: is_closed(app))
        async with asyncio.timeout(OPENS_SECONDS):
            await change(app)
            assert (await app.wait(waiting)).state is State.DONE


async def test_a_corrected_hold_opens_the_lanes_that_it_had_closed(app: App) -> None:
    """A call whose cost was unknown was charged in full. When the provider's bill shows that it was free, the jobs that
    wait for this money must not wait for the rest of a minute."""
    spend, ledger = one_per_day(app), app.world.ledger
    await app.store()
    await ledger.definitions.declare([Budget("spend", usd=1, every="day").definition])
    await ledger.hold("call", [(Charge("spend", "spend"), MICRO)], 1, dispatch=True)
    await eventually(lambda: captured(app))
    async with working(app, poll_seconds=60.0):
        waiting = await spend.submit()
        await eventually(lambda: is_closed(app))
        async with asyncio.timeout(OPENS_SECONDS):
            await app.settle_hold("call", usd=0, by="alice")
            assert (await app.wait(waiting)).state is State.DONE


async def captured(app: App) -> bool:
    return bool((await app.world.ledger.expire(10)).captured)


async def test_a_forgotten_budget_leaves_no_lane_closed(app: App) -> None:
    """A worker that starts later may declare another budget; what was spent under the old one does not count."""
    spend = one_per_day(app)
    async with working(app):
        await app.wait(await spend.submit(), 60)
        await spend.submit()
        await eventually(lambda: is_closed(app))
    await forget_budget(app.world.store, app.world.ledger, "spend")
    assert not await is_closed(app)


@pytest.mark.parametrize("lease", [None, 0.1])
async def test_a_change_of_a_limit_opens_the_lanes_that_it_had_closed(every_app: App, lease: float | None) -> None:
    """A limit of few calls per day closes its lanes as a budget does. If its permits are short, the worker estimates
    them by the definition, which it must read again."""
    app = every_app

    @app.job(limits=[Limit("maps", "1/day", start="empty", lease=lease)])
    async def fetch() -> None: ...

    definitions = limit_definitions(app.world.limiter, app.world.store.operations)
    async with working(app, poll_seconds=60.0):
        waiting = await fetch.submit()
        await eventually(lambda: is_closed(app))
        async with asyncio.timeout(OPENS_SECONDS):
            await definitions.change("maps", lambda _: Limit("maps", "1000/second", lease=lease).definition)
            assert (await app.wait(waiting)).state is State.DONE


async def test_a_tenant_without_its_caps_is_served_at_once(app: App) -> None:
    """Workers cache the caps of tenants. A lane that opens because they are gone must not be closed by the cached
    ones."""

    @app.job(limits=[Limit("maps", "1000/second")])
    async def fetch() -> None: ...

    await app.set_tenant("acme", starts="1/day")
    async with working(app, poll_seconds=60.0):
        submitted = [await fetch.options(tenant="acme").submit() for _ in range(3)]
        await eventually(lambda: is_closed(app))
        async with asyncio.timeout(OPENS_SECONDS):
            await app.set_tenant("acme")
            await eventually(lambda: all_done(app, submitted), OPENS_SECONDS)


async def all_done(app: App, jobs: list[Any]) -> bool:
    return all([(await record(app, job)).state is State.DONE for job in jobs])


async def test_new_code_that_declares_a_higher_budget_opens_its_lanes(every_app: App) -> None:
    """A deployment raises a budget as an operator does."""
    app = every_app
    spend = one_per_day(app)
    async with working(app):
        await app.wait(await spend.submit(), 60)
        waiting = await spend.submit()
        await eventually(lambda: is_closed(app))
    app.kinds.clear()

    @app.job(budget=Budget("spend", usd=2, every="day"), cost_usd=1, name=spend.name)
    async def spend_more(ctx: Context) -> None:
        async with ctx.call():
            pass

    async with asyncio.timeout(OPENS_SECONDS), working(app):
        assert (await app.wait(waiting)).state is State.DONE


async def test_a_restart_with_the_same_code_opens_nothing(app: App) -> None:
    """Every worker that starts declares its budgets. If that opened the lanes, a fleet that starts would ask for every
    closed lane again."""
    spend = one_per_day(app)
    async with working(app):
        await app.wait(await spend.submit(), 60)
        await spend.submit()
        await eventually(lambda: is_closed(app))
    definitions = app.world.ledger.definitions
    await declare_definitions(definitions, [Budget("spend", usd=1, every="day").definition], app.world.store.operations)
    assert await is_closed(app)
