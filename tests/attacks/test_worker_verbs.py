"""A worker key of one tenant against everything that another tenant has, through every verb of the worker protocol.

A tenant may run its own workers, so the holder of such a key is not trusted by other tenants. Whatever it sends,
including tokens and ids that it has learned, the jobs, limits and budgets of other tenants stay as they are.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, NamedTuple

import httpx2
import pytest
from msgspec import to_builtins
from tests.api.every_store import store_url as store_url
from tests.api.keys import key_for
from tests.api.live_clients import by_socket
from tests.api.running_service import Served, run_service

from leaseway import App, Budget, Context, Limit
from leaseway.api import metering, tenant_usage
from leaseway.api.worker_protocol import authorization
from leaseway.domain.budgets.budget import Charge, HoldGranted
from leaseway.domain.exchange import Exchange, ProgressReport, Wants
from leaseway.domain.history.rows import HistoryLevel
from leaseway.domain.identity import ROLE_SCOPES, Role, Scope
from leaseway.domain.ids import SECOND_US, Token, WorkerId
from leaseway.domain.job import Failure, State
from leaseway.domain.limits.limit import PermitRequest
from leaseway.domain.requirements import Needs, render_needs
from leaseway.domain.schedule import Schedule
from leaseway.domain.tenant import SHARED_US_MAX, Tenant
from leaseway.ports.store import require_history, require_workers
from leaseway.stores.http.protocol import BEAT, EXCHANGE, PREFIX, VERBS, Verb
from leaseway.system import SystemIds
from leaseway.testing.history_contract import history_row
from leaseway.testing.job_store_contract.fixtures import ContractWorker, failed, id_of, new_job
from leaseway.testing.workers_contract import heartbeat
from leaseway.worker.environment import Environment

MINUTE_US = 60 * SECOND_US
MONTH_US = 31 * 86_400 * SECOND_US
TOKEN = "7b1f8e1c5a4d4f0e9b3c2a1d0e9f8a7b"
HOLD = "globex-hold"
HOLDER = "globex-worker"
SECRET = "globex-secret"
TRACE = "feedc0de" * 4
PRIVATE = ("globex", "nightly", TRACE)
"""Texts that no reply to another tenant contains."""
MAIL = PermitRequest("mail:globex", "mail:{tenant}")
OVERRIDE = PermitRequest("mail:globex", "mail:globex")
DISGUISED = PermitRequest("mail:globex", "maps")
CAP = PermitRequest("tenant:globex", "tenant:globex")
API = PermitRequest("api:globex", "api:{tenant}")
API_AT_ONCE = PermitRequest("api-at-once:globex", "api-at-once:{tenant}")
LIMITS = (MAIL, CAP, API, API_AT_ONCE)
ASKS = (*LIMITS, OVERRIDE, DISGUISED, PermitRequest("mail:globex", "mail:{any}"), PermitRequest("api:globex", "maps"))
CHARGES = (
    Charge("spend:globex", "spend:{tenant}"), Charge("spend:globex", "spend:globex"), Charge("spend:globex", "pool"),
)  # fmt: skip

LEASE = {"id": id_of(1), "token": TOKEN}
NEW_ID = SystemIds().job()
NEW_JOB = {"id": NEW_ID, "kind": "add", "payload": "{}", "tenant": "globex"}
DEFINITION = {"name": "mail:globex", "concurrency": 1_000}
BUDGET = {"name": "spend:globex", "unit": "usd", "limit_micros": 10**15}
SCHEDULE = {"name": "nightly", "kind": "add", "cron": "* * * * *"}
JOBS = (1, 2, 3, 4, 5)
"""Leased, pending, cancelled, failed and scheduled."""
EVERY_JOB = {"which": {"ids": [id_of(n) for n in JOBS]}, "limit": 10}
EMPTY: Mapping[str, Any] = {}
FLEET = "globex/vm:1:a"
HISTORY_ROW = {"id": "w/1", "tenant": "globex", "queue": "mail", "kind": "send", "cell": {"counts": {"done": 9}}}
SPAN = {"level": 0, "since": 0, "until": 10**16}
"""The name of a worker in the list."""


def granted(ask: PermitRequest) -> dict[str, Any]:
    return {
        "asks": [to_builtins(ask)], "count": 10**6, "granted_at": 0, "since": 0, "lease_us": 10**6, "generations": [0],
    }  # fmt: skip


def settlement(state: str, **fields: Any) -> dict[str, Any]:
    return {"worker": HOLDER, "settlements": [{**LEASE, "state": state, **fields}]}


def notice(ask: PermitRequest, **fields: Any) -> dict[str, Any]:
    return {"notice": {"name": ask.name, "limit": ask.limit, "generation": 0, **fields}}


def for_each(make: Any, asks: Sequence[PermitRequest] = ASKS) -> list[Mapping[str, Any]]:
    return [make(ask) for ask in asks]


def hold(charge: Charge, id_: str = "mine") -> dict[str, Any]:
    return {"id": id_, "lines": [[to_builtins(charge), 1_000_000]], "ttl_us": MINUTE_US, "dispatch": True}


ATTACKS: dict[str, list[Mapping[str, Any]]] = {
    "/exchange": [
        settlement("done", result='"forged"'),
        settlement("failed", failure={"code": "forged", "message": "forged"}),
        settlement("pending", delay_us=10**12),
        settlement("done", children=[NEW_JOB]),
        {"worker": HOLDER, "wants": {"queues": ["default"], "count": 10, "token": TOKEN}, "repeat": True},
        {"worker": HOLDER, "wants": {"queues": ["default"], "count": 10, "token": "x", "tenant": "globex"}},
        {
            "worker": HOLDER,
            "wants": {
                "queues": ["default"],
                "count": 10,
                "token": "x",
                "closed": [{"gate": {"needs": "", "tenant": "globex"}, "wait_us": MONTH_US, "why": "forged"}],
            },
        },
        {"worker": HOLDER},
    ],
    "/renew": [{"leases": [{**LEASE, "lease_us": 1}]}, {"leases": [{**LEASE, "lease_us": 3600 * SECOND_US}]}],
    "/checkpoint": [{"job": id_of(1), "token": TOKEN, "cursor": '"forged"'}],
    "/report": [{"reports": [{**LEASE, "progress": '"forged"'}]}],
    "/traces": [{"leases": [{**LEASE, "lease_us": MINUTE_US}]}],
    "/wait-time": [{"queues": ["default"]}],
    "/lanes": [EMPTY, {"tenant": "globex"}, {"tenant": "*"}],
    "/lanes/open": [{"name": "maps", "limit": 9}, {"name": "maps", "limit": 9, "tenant": "globex"}],
    "/prune": [{"keep_us": 0, "limit": 1_000}],
    "/schedules/declare": [{"schedules": [SCHEDULE]}],
    "/schedules/list": [EMPTY],
    "/schedules/fire": [{"name": "nightly", "seen": 0, "upto": 10**15, "jobs": [NEW_JOB]}],
    "/schedules/pause": [{"name": "nightly", "paused": True}],
    "/tenants/list": [EMPTY],
    "/tenants/set": [{"tenant": {"name": "globex", "weight": 1, "concurrency": 1}}],
    "/tenants/forget": [{"name": "globex"}],
    "/workers/beat": [{"worker": FLEET, "used": 99}, {"worker": FLEET, "used": 99, "tenant": "globex"}],
    "/workers/leave": [{"worker": FLEET}],
    "/workers/list": [EMPTY, {"tenant": "globex"}],
    "/workers/drain": [{"worker": FLEET}],
    "/history/record": [{"rows": [{**HISTORY_ROW, "id": "globex/row"}, HISTORY_ROW]}],
    "/history/list": [SPAN, {**SPAN, "tenant": "globex"}],
    "/submit": [{"jobs": [NEW_JOB]}, {"jobs": [{**NEW_JOB, "id": id_of(2), "tenant": "acme"}]}],
    "/jobs/cancel": [{"job": id_of(n)} for n in JOBS],
    "/jobs/retry": [EVERY_JOB],
    "/jobs/run-now": [EVERY_JOB],
    "/jobs/discard": [EVERY_JOB],
    "/jobs/show": [{"job": id_of(n)} for n in JOBS],
    "/jobs/list": [EVERY_JOB, EMPTY],
    "/jobs/errors": [{"job": id_of(n)} for n in JOBS],
    "/now": [EMPTY],
    "/limits/declare": [{"definitions": [DEFINITION]}, {"definitions": [{**DEFINITION, "name": "api:{tenant}"}]}],
    "/limits/list": [EMPTY],
    "/limits/acquire": for_each(
        lambda ask: {"asks": [to_builtins(ask)], "most": 10**6, "holder": HOLDER, "in_flight_us": MONTH_US}
    ),
    "/limits/return": for_each(lambda ask: {"granted": granted(ask), "unused": 10**6}),
    "/limits/end-calls": for_each(lambda ask: {"asks": [to_builtins(ask)], "holder": HOLDER, "count": 10**6}),
    "/limits/renew-calls": for_each(
        lambda ask: {"asks": [to_builtins(ask)], "holder": HOLDER, "count": 10**6, "in_flight_us": MONTH_US}
    ),
    "/limits/observe": [
        *for_each(lambda ask: notice(ask, throttled=True, retry_after_us=MONTH_US)),
        *for_each(lambda ask: notice(ask, remaining=0, reset_us=MONTH_US)),
    ],
    "/limits/levels": for_each(lambda ask: {"asks": [to_builtins(ask)]}),
    "/limits/change": [{"definition": DEFINITION}],
    "/limits/forget": [{"name": "mail:{tenant}"}],
    "/budgets/declare": [{"definitions": [BUDGET]}],
    "/budgets/list": [EMPTY],
    "/budgets/hold": [
        *(hold(charge) for charge in CHARGES),
        *(hold(charge, HOLD) for charge in CHARGES),
        hold(Charge("pool", "pool"), HOLD),
    ],
    "/budgets/dispatch": [{"id": HOLD}],
    "/budgets/settle": [{"id": HOLD, "actuals": {"usd": 10**15}}, {"id": HOLD, "actuals": {}}],
    "/budgets/post": [
        {"holds": [hold(charge) for charge in CHARGES]},
        {"holds": [hold(charge, HOLD) for charge in (*CHARGES, Charge("pool", "pool"))]},
        {"settlements": [{"id": HOLD, "actuals": {"usd": 10**15}}, {"id": HOLD, "actuals": {}}]},
    ],
    "/budgets/correct": [{"id": HOLD, "actuals": {"usd": 0}, "evidence": {"by": "acme", "reason": "forged"}}],
    "/budgets/void": [{"id": HOLD}],
    "/budgets/expire": [{"limit": 1_000}],
    "/budgets/wait-time": [{"charges": [to_builtins(charge)]} for charge in CHARGES],
    "/budgets/prune": [{"keep_us": 0, "limit": 1_000}],
    "/budgets/change": [{"definition": BUDGET}],
    "/budgets/forget": [{"name": "spend:{tenant}"}],
    "/budgets/balances": [EMPTY],
    "/budgets/holds": [{"name": "spend:globex"}],
    "/budgets/booked": [{"budget": "spend:globex"}, {"budget": "spend:{tenant}"}],
    "/budgets/booked-for": [{"prefix": HOLD}, {"prefix": "globex"}],
    "/budgets/reserved": [{"prefix": HOLD}, {"prefix": "globex"}],
    "/budgets/journal": [{"name": "spend:globex"}],
    "/budgets/audit": [EMPTY],
}
"""What a hostile worker sends, by path: every value here is one that it has learned about another tenant."""


class Town(NamedTuple):
    served: Served
    world: Environment
    worker: httpx2.AsyncClient
    """With a worker key of the tenant acme."""
    client: httpx2.AsyncClient
    """With a tenant key of acme."""

    def sender(self, verb: Verb[Any, Any]) -> httpx2.AsyncClient:
        """With a credential that has the scope if a tenant can have it; otherwise the worker's."""
        return self.client if verb.scope in ROLE_SCOPES[Role.TENANT] else self.worker

    async def state(self) -> dict[str, Any]:
        """Everything that belongs to globex, and what all tenants share."""
        store, limiter, ledger = self.world.store, self.world.limiter, self.world.ledger
        names = [each for each in LIMITS if each.limit in set(await self.limits())]
        _, levels = await limiter.levels(names)
        return {
            "jobs": [await store.reads.job(id_) for id_ in (*map(id_of, JOBS), NEW_ID)],
            "errors": [await store.reads.errors(id_of(n)) for n in JOBS],
            "lanes": [lane for lane in await store.reads.lanes() if lane.tenant == "globex"],
            "levels": [level_state(level) for level in levels],
            "limits": await limiter.definitions.all(),
            "budgets": await ledger.definitions.all(),
            "balances": await ledger.reads.balances(["spend:globex"]),
            "journal": await ledger.reads.journal("spend:globex"),
            "holds": await ledger.reads.holds("spend:globex"),
            "tenants": await store.tenants.all(),
            "history": [
                (each.id, each.cell)
                for each in await require_history(store).rows(HistoryLevel.MINUTE, 0, 2**62, tenant="globex")
            ],
            "workers": [
                (each.name, each.beat.used, each.beat.tenant, each.drain_requested)
                for each in await require_workers(store).all()
                if not each.name.startswith("acme/")
            ],
            "schedules": [(each.schedule, each.paused) for each in await store.schedules.all()],
        }

    async def limits(self) -> list[str]:
        return [definition.name for definition, _ in await self.world.limiter.definitions.all()]


def level_state(level: Any) -> tuple[object, ...]:
    """The parts of a level that time alone does not change."""
    in_flight = {holder: calls.count for holder, calls in level.in_flight.items()}
    return level.blocked_until, level.percent, level.generation, in_flight


@pytest.fixture
async def town(served_with_keys: Served) -> AsyncIterator[Town]:
    served, world = served_with_keys, served_with_keys.service.world
    await world.limiter.definitions.declare(
        [
            Limit("maps", "100/second", concurrency=10).definition,
            *(Limit(name, concurrency=4).definition for name in ("mail:{tenant}", "mail:globex")),
        ]
    )
    await world.limiter.definitions.declare([Tenant(name="globex", concurrency=5).definition()])
    await world.ledger.definitions.declare(
        [Budget(name, usd=100, every="day").definition for name in ("spend:{tenant}", "spend:globex", "pool")]
    )
    await world.store.schedules.declare([Schedule(name="nightly", kind="add", cron="0 3 * * *")])
    trace = f"00-{TRACE}-{'b' * 16}-01"
    await world.store.jobs.submit([new_job(1, tenant="globex", payload=f'"{SECRET}"', trace=trace)])
    wants = Wants(("default",), 1, Token(TOKEN))
    (lease,) = (await world.store.jobs.exchange(Exchange(WorkerId(HOLDER), (), wants))).leases
    assert lease.token == TOKEN
    await world.store.jobs.submit([new_job(4, tenant="globex")])
    (broken,) = await ContractWorker(world.store).claim(1)
    await ContractWorker(world.store).settle(failed(broken, failure=Failure("globex", SECRET, "")))
    await world.store.tenants.set(Tenant(name="globex", weight=7, concurrency=5))
    await world.store.jobs.submit([new_job(n, tenant="globex", payload=f'"{SECRET}"') for n in (2, 3)])
    await world.store.jobs.submit([new_job(5, tenant="globex", delay_us=3_600 * SECOND_US)])
    await world.store.operations.cancel(id_of(3))
    await require_workers(world.store).beat(heartbeat(FLEET, tenant="globex"))
    await require_history(world.store).record([history_row(tenant="globex")])
    for ask in (MAIL, CAP):
        await world.limiter.renew_calls([ask], HOLDER, 2, 600 * SECOND_US)
    answer = await world.ledger.hold(HOLD, [(CHARGES[0], 5_000_000)], 600 * SECOND_US, owner="1", dispatch=False)
    assert isinstance(answer, HoldGranted)
    keys = [(await key_for(served, "acme", role)).text for role in (Role.WORKER, Role.TENANT)]
    async with served.with_key(keys[0]) as worker, served.with_key(keys[1]) as client:
        yield Town(served, world, worker, client)


def test_every_verb_is_attacked() -> None:
    """A verb without an attack here would be the next hole."""
    assert set(ATTACKS) == {verb.path for verb in VERBS}


async def test_no_verb_touches_what_belongs_to_another_tenant(town: Town) -> None:
    """A worker key of one tenant closed the API of another one for a month, took its places under concurrency limits,
    spent its budget and settled its jobs.
    """
    before = await town.state()
    holes: list[tuple[object, ...]] = []
    for verb in VERBS:
        for body in ATTACKS[verb.path]:
            reply = await town.sender(verb).post(verb.url, json=body)
            if reply.status_code >= 500 or SECRET in reply.text:
                holes.append((verb.path, body, reply.status_code, reply.text[:200]))
            after = await town.state()
            if after != before:
                holes.append((verb.path, body, reply.status_code, [k for k in before if before[k] != after[k]]))
                before = after
    assert holes == []


async def test_what_a_tenant_was_doing_goes_on_after_the_attacks(town: Town) -> None:
    """The lease, the in-flight calls and the hold of the attacked tenant must still be its own."""
    for verb in VERBS:
        for body in ATTACKS[verb.path]:
            await town.sender(verb).post(verb.url, json=body)
    world = town.world
    assert await world.store.jobs.checkpoint(id_of(1), Token(TOKEN), '"mine"')
    assert await world.ledger.dispatch(HOLD)
    assert await world.ledger.settle(HOLD, {"usd": 1_000_000}) == ()
    (level,) = (await world.limiter.levels([MAIL]))[1]
    assert level.in_flight[HOLDER].count == 2
    async with town.served.with_key((await key_for(town.served, "globex")).text) as globex:
        assert (await globex.get("/v1/jobs")).status_code == 200


async def test_no_reply_names_another_tenant(town: Town) -> None:
    """Queues, schedules, budgets and workers of a competitor are confidential, even where only names are shown."""
    holes = []
    for verb in VERBS:
        for body in [EMPTY, *ATTACKS[verb.path]]:
            reply = await town.sender(verb).post(verb.url, json=body)
            if reply.is_success and any(text in reply.text for text in PRIVATE):
                holes.append((verb.path, body, reply.text[:200]))
    assert holes == []


LEAVE_NO_TRACE = {
    "/wait-time", "/lanes/open", "/budgets/wait-time", "/budgets/expire", "/budgets/prune", "/limits/return",
    "/schedules/fire",
}  # fmt: skip
"""Without their rule these attacks succeed, but change nothing that `state` reads. Other tests cover them."""
COMPARED = [verb for verb in (*authorization.HANDLERS, *metering.METERED) if verb.scope is not Scope.OPERATE]
RULED = [verb for verb in COMPARED if verb.path not in LEAVE_NO_TRACE]


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("verb", RULED, ids=lambda verb: verb.path)
async def test_the_attacks_notice_a_missing_rule(
    town: Town, verb: Verb[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attack that fails for another reason than the rule proves nothing."""
    for name in ("HANDLERS", "METERED"):
        rules = {other: rule for other, rule in getattr(authorization, name).items() if other is not verb}
        monkeypatch.setattr(authorization, name, rules)
    if verb is EXCHANGE:  # its body is one parameter of the port
        monkeypatch.setitem(authorization.HANDLERS, verb, lambda world, _, call: world.store.jobs.exchange(call))
    if verb is BEAT:
        monkeypatch.setitem(authorization.HANDLERS, verb, lambda world, _, beat: world.store.workers.beat(beat))
    before, replies = await town.state(), []
    for body in ATTACKS[verb.path]:
        replies.append(await town.sender(verb).post(verb.url, json=body))
    shown = [reply for reply in replies if reply.is_success and any(text in reply.text for text in PRIVATE)]
    assert shown or await town.state() != before


# -- what all tenants share -----------------------------------------------------------------------------------------

MAPS = {"name": "maps", "limit": "maps"}


async def call(client: httpx2.AsyncClient, path: str, body: Mapping[str, Any]) -> httpx2.Response:
    return await client.post(f"{PREFIX}{path}", json=body)


async def test_a_notice_closes_a_shared_limit_for_minutes_only(town: Town) -> None:
    """A worker must be able to report a throttled call, and could close the limit of all tenants for a month."""
    body = {"notice": {**MAPS, "generation": 0, "throttled": True, "retry_after_us": MONTH_US}}
    assert (await call(town.worker, "/limits/observe", body)).is_success
    now, (level,) = await town.world.limiter.levels([PermitRequest("maps", "maps")])
    assert 0 < level.blocked_until - now <= SHARED_US_MAX


async def test_places_under_a_shared_limit_are_taken_for_minutes_only(town: Town) -> None:
    """One call could take all places of a provider's limit for a month."""
    for path, fields in (("acquire", {"most": 10}), ("renew-calls", {"count": 10})):
        body = {"asks": [MAPS], "holder": "w", "in_flight_us": MONTH_US, **fields}
        reply = await call(town.worker, f"/limits/{path}", body)
        assert (reply.status_code, "in_flight_us" in reply.text) == (422, True)


async def test_workers_of_two_tenants_may_have_the_same_name(town: Town) -> None:
    """A worker that names itself like another tenant's could end or inflate the calls of that one."""
    other = (await key_for(town.served, "globex", Role.WORKER)).text
    async with town.served.with_key(other) as globex:
        for client, count in ((globex, 3), (town.worker, 2)):
            body = {"asks": [MAPS], "holder": "worker-1", "count": count, "in_flight_us": MINUTE_US}
            assert (await call(client, "/limits/renew-calls", body)).is_success
        end = {"asks": [MAPS], "holder": "worker-1", "count": 10}
        assert (await call(town.worker, "/limits/end-calls", end)).is_success
        _, (level,) = await town.world.limiter.levels([PermitRequest("maps", "maps")])
        assert [calls.count for calls in level.in_flight.values()] == [3]
        shown = (await call(town.worker, "/limits/levels", {"asks": [MAPS]})).json()["levels"][0]["in_flight"]
        assert "globex" not in str(shown)
        assert [calls["count"] for calls in shown.values()] == [3]


async def test_only_granted_permits_can_be_returned(town: Town) -> None:
    """Invented permits would raise the rate of a limit that all tenants share above what the provider allows."""
    ask = PermitRequest("maps", "maps")
    while True:  # until the new limit has permits
        reply = (
            await call(town.worker, "/limits/acquire", {"asks": [MAPS], "holder": "w", "in_flight_us": 10**6})
        ).json()
        if "granted" in reply:
            break
        await asyncio.sleep(reply["wait"]["wait_us"] / SECOND_US)
    grant = reply["granted"]
    _, (before,) = await town.world.limiter.levels([ask])
    never = {**grant, "granted_at": grant["granted_at"] + 1}
    for returned in (never, {**grant, "count": 10**6}, grant):
        body = {"granted": returned, "unused": returned["count"]}
        assert (await call(town.worker, "/limits/return", body)).is_success
    _, (after,) = await town.world.limiter.levels([ask])
    (was,), (is_,) = before.buckets.values(), after.buckets.values()
    assert was.tat - was.permit_ns // 1_000 <= is_.tat <= was.tat, "more permits were returned than granted"


async def test_a_settlement_books_no_more_than_a_window_has(town: Town) -> None:
    """A settlement is booked even if it is higher than the hold. One number could use up a shared budget for years."""
    mine = await lease_own_job(town, 40)
    held = pool_hold(f"{mine}:1:1") | {"ttl_us": MONTH_US // 10, "dispatch": True}
    assert "held" in (await call(town.worker, "/budgets/hold", held)).json()
    for actuals in ({"usd": 10**15}, {"pool": 10**15}):
        reply = await call(town.worker, "/budgets/settle", {"id": held["id"], "actuals": actuals})
        assert (reply.status_code, "settle" in reply.text) == (422, True)
    assert (await call(town.worker, "/budgets/settle", {"id": held["id"], "actuals": {"usd": 2 * 10**6}})).is_success
    (window,) = await town.world.ledger.reads.balances(["pool"])
    assert window.balance.spent_micros == 2 * 10**6


async def test_a_hold_reserves_a_shared_budget_for_minutes_only(town: Town) -> None:
    """A hold of a week could reserve the whole budget of all tenants, again and again."""
    mine = await lease_own_job(town, 40)
    held = pool_hold(f"{mine}:1:1") | {"ttl_us": 7 * 86_400 * SECOND_US}
    reply = (await call(town.worker, "/budgets/hold", held)).json()
    now = await town.world.store.reads.now()
    assert reply["held"]["deadline"] - now <= SHARED_US_MAX


async def lease_own_job(town: Town, number: int) -> str:
    await town.world.store.jobs.submit([new_job(number, tenant="acme")])
    wants = {"queues": ["default"], "count": 1, "token": f"chosen-{number}"}
    (lease,) = (await call(town.worker, "/exchange", {"worker": "w", "wants": wants})).json()["leases"]
    assert (lease["id"], lease["fence"]) == (id_of(number), 1)
    return str(lease["id"])


def pool_hold(id_: str, micros: int = 10**6, owner: str = "1") -> dict[str, Any]:
    line = [{"name": "pool", "budget": "pool"}, micros]
    return {"id": id_, "lines": [line], "ttl_us": MINUTE_US, "owner": owner}


async def test_a_shared_budget_is_held_for_leased_jobs_only(town: Town) -> None:
    """Without a job, a tenant's worker has no call to pay for. It could reserve what other tenants need with small
    holds that no rate limit and no quota of jobs bounds."""
    mine = await lease_own_job(town, 40)
    await town.world.store.jobs.submit([new_job(41, tenant="acme")])
    strangers = [
        pool_hold("mine"), pool_hold("none:1:1"), pool_hold(f"{id_of(41)}:0:1", owner="0"),
        *(pool_hold(f"{id_of(number)}:1:1") for number in JOBS),
        pool_hold(f"{mine}:2:1", owner="2"), pool_hold(f"{mine}:1:1", owner=""), pool_hold(f"acme/{mine}", owner="7"),
    ]  # fmt: skip
    for body in strangers:
        reply = await call(town.worker, "/budgets/hold", body)
        assert (reply.status_code, reply.json()["code"]) == (409, "not_leased"), body
    assert "held" in (await call(town.worker, "/budgets/hold", pool_hold(f"{mine}:1:1"))).json()
    (window,) = await town.world.ledger.reads.balances(["pool"])
    assert window.balance.held_micros == 10**6
    settled = {"id": mine, "token": "chosen-40", "state": "done", "result": "1"}
    assert (await call(town.worker, "/exchange", {"worker": "w", "settlements": [settled]})).json()["lost"] == []
    town.served.service.metering._leases.invalidate(f"{mine}:1")
    reply = await call(town.worker, "/budgets/hold", pool_hold(f"{mine}:1:2"))
    assert (reply.status_code, reply.json()["code"]) == (409, "not_leased")


async def test_a_job_has_few_open_holds_on_a_shared_budget(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """One leased job must not reserve for a thousand calls. A call that is settled makes room for another one."""
    monkeypatch.setattr(tenant_usage, "HOLDS_MAX", 3)
    one, other = await lease_own_job(town, 40), await lease_own_job(town, 41)

    async def hold(id_: str) -> int:
        return (await call(town.worker, "/budgets/hold", pool_hold(id_, 1))).status_code

    assert [await hold(f"{one}:1:{n}") for n in (1, 2, 3, 4, 3, 4)] == [200, 200, 200, 429, 200, 429]
    assert await hold(f"{other}:1:1") == 200
    assert (await call(town.worker, "/budgets/settle", {"id": f"{one}:1:2", "actuals": {}})).is_success
    assert (await call(town.worker, "/budgets/void", {"id": f"{one}:1:3"})).json() == {"value": True}
    assert [await hold(f"{one}:1:{n}") for n in (4, 5, 6)] == [200, 200, 429]
    denied = await call(town.worker, "/budgets/hold", pool_hold(f"{other}:1:2", 10**12))
    assert "denied" in denied.json()
    assert [await hold(f"{other}:1:{n}") for n in (3, 4, 5)] == [200, 200, 429], "a denied hold is not open"


async def test_open_holds_of_one_tenant_leave_room_for_another(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of tenants often have a common part, "org:1" and "org:2". The holds of one must not count for the other."""
    monkeypatch.setattr(tenant_usage, "HOLDS_MAX", 3)
    for number, tenant in ((50, "org:1"), (51, "org:2")):
        await town.world.store.jobs.submit([new_job(number, tenant=tenant)])
        async with town.served.with_key((await key_for(town.served, tenant, Role.WORKER)).text) as worker:
            wants = {"queues": ["default"], "count": 1, "token": f"chosen-{number}"}
            (lease,) = (await call(worker, "/exchange", {"worker": "w", "wants": wants})).json()["leases"]
            held = [await call(worker, "/budgets/hold", pool_hold(f"{lease['id']}:1:{n}", 1)) for n in range(4)]
            assert [reply.status_code for reply in held] == [200, 200, 200, 429], tenant


async def test_a_tenants_worker_finds_its_own_reserved_holds(town: Town) -> None:
    """The ids of other tenants' holds name their jobs."""
    charge = Charge("spend:acme", "spend:{tenant}")
    await town.world.ledger.hold("acme/job-1:1:1", [(charge, 10**6)], MINUTE_US)
    for prefix, found in (("job-1:", ["job-1:1:1"]), ("acme/job-1:", ["acme/job-1:1:1"]), (HOLD, [])):
        assert (await call(town.worker, "/budgets/reserved", {"prefix": prefix})).json() == {"value": found}


async def test_the_limits_of_the_service_are_for_no_worker(town: Town) -> None:
    """They protect the service from its tenants. Even a worker of all tenants has no use for them."""
    async with town.served.with_key((await key_for(town.served, None, Role.WORKER)).text) as everybody:
        body = {"asks": [to_builtins(API_AT_ONCE)], "most": 10, "holder": "w", "in_flight_us": MINUTE_US}
        reply = await call(everybody, "/limits/acquire", body)
        assert (reply.status_code, reply.json()["code"]) == (403, "not_allowed")
        assert "api-at-once:globex" in reply.json()["detail"]


async def test_holders_and_names_are_bounded(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limiter reads all holders of a limit with every permit, and stores a row for each name. A worker that invents
    names could slow it for all.
    """
    await town.world.limiter.definitions.declare([Limit("sms:{account}", concurrency=1).definition])
    monkeypatch.setattr(town.served.service.metering, "_holders", tenant_usage.RecentNames(3))
    monkeypatch.setattr(town.served.service.metering, "_names", tenant_usage.RecentNames(3))
    by_holder, by_name = [], []
    for n in (1, 2, 3, 4, 1):
        body = {"asks": [MAPS], "holder": f"w{n}", "count": 1, "in_flight_us": MINUTE_US}
        by_holder.append((await call(town.worker, "/limits/renew-calls", body)).status_code)
        body = {"asks": [{"name": f"sms:{n}", "limit": "sms:{account}"}], "holder": "w1"}
        by_name.append((await call(town.worker, "/limits/acquire", body)).status_code)
    assert (by_holder, by_name) == ([200, 200, 200, 422, 200], [200, 200, 200, 429, 200])


async def test_a_job_needs_nothing_of_another_tenant(store_url: str) -> None:
    """The service does not know the kind, so the client says what the job needs; and workers of all tenants take it."""
    async with run_service(App(store_url), auth=True) as served:
        definitions = [Limit(name, concurrency=4).definition for name in ("mail:{tenant}", "mail:globex", "maps")]
        await served.service.world.limiter.definitions.declare(definitions)
        budgets = [Budget(name, usd=1).definition for name in ("spend:{tenant}", "spend:globex")]
        await served.service.world.ledger.definitions.declare(budgets)
        async with served.with_key((await key_for(served, "acme")).text) as client:
            for limits, charges, status in (
                ((OVERRIDE,), (), 422), ((), (CHARGES[1],), 422), ((MAIL,), (), 422), ((API,), (), 422),
                ((PermitRequest("maps", "maps"), PermitRequest("mail:acme", "mail:{tenant}")), (), 200),
            ):  # fmt: skip
                needs = render_needs(Needs(limits, charges))
                job = {"id": SystemIds().job(), "kind": "k", "payload": "{}", "tenant": "acme", "needs": needs}
                reply = await call(client, "/submit", {"jobs": [job]})
                assert reply.status_code == status, (needs, reply.text)


# -- what is one's own ----------------------------------------------------------------------------------------------


async def test_a_tenants_worker_uses_its_own_limits_and_budgets(town: Town) -> None:
    """The rules must not stop the work that the key is for: a job under `mail:{tenant}` and `spend:{tenant}`."""
    own = {"name": "mail:acme", "limit": "mail:{tenant}"}
    renewed = {"asks": [own, MAPS], "holder": "w", "count": 1, "in_flight_us": MINUTE_US}
    assert (await call(town.worker, "/limits/renew-calls", renewed)).is_success
    levels = (await call(town.worker, "/limits/levels", {"asks": [own]})).json()["levels"]
    assert levels[0]["in_flight"]["w"]["count"] == 1
    long = {"notice": {**own, "generation": 0, "throttled": True, "retry_after_us": MONTH_US}}
    assert (await call(town.worker, "/limits/observe", long)).is_success
    now, (level,) = await town.world.limiter.levels([PermitRequest("mail:acme", "mail:{tenant}")])
    assert level.blocked_until - now > SHARED_US_MAX
    line = [[{"name": "spend:acme", "budget": "spend:{tenant}"}, 10**6]]
    for id_ in ("one", "two"):
        assert (
            "held" in (await call(town.worker, "/budgets/hold", {"id": id_, "lines": line, "ttl_us": MINUTE_US})).json()
        )
    assert (await call(town.worker, "/budgets/dispatch", {"id": "one"})).json() == {"value": True}
    assert (await call(town.worker, "/budgets/settle", {"id": "one", "actuals": {"usd": 10**6}})).is_success
    assert (await call(town.worker, "/budgets/void", {"id": "two"})).json() == {"value": True}
    assert next(entry.hold for entry in await town.world.ledger.reads.journal("spend:acme")) == "acme/two"


async def test_a_tenants_worker_keeps_its_own_leases(town: Town) -> None:
    """Every verb of a lease must work under the token that the worker chose, also after a lost reply."""
    await town.world.store.jobs.submit([new_job(50, tenant="acme", trace=f"00-{'a' * 32}-{'b' * 16}-01")])
    wants = {"queues": ["default"], "count": 1, "token": "chosen"}
    for body in ({"worker": "w", "wants": wants}, {"worker": "w", "wants": wants, "repeat": True}):
        (lease,) = (await call(town.worker, "/exchange", body)).json()["leases"]
        assert lease["token"] == "chosen"
    mine = {"id": id_of(50), "token": "chosen"}
    renewed = (await call(town.worker, "/renew", {"leases": [{**mine, "lease_us": MINUTE_US}]})).json()
    assert renewed == {"lost": [], "cancelled": []}
    assert (await call(town.worker, "/traces", {"leases": [{**mine, "lease_us": MINUTE_US}]})).json()["value"]
    point = {"job": id_of(50), "token": "chosen", "cursor": "7"}
    assert (await call(town.worker, "/checkpoint", point)).json() == {"value": True}
    assert (await call(town.worker, "/report", {"reports": [{**mine, "progress": "1"}]})).is_success
    await town.world.store.operations.cancel(id_of(50))
    assert (await call(town.worker, "/exchange", {"worker": "w"})).json()["cancelled"] == [id_of(50)]
    settled = {"worker": "w", "settlements": [{**mine, "state": "done", "result": "80"}]}
    assert (await call(town.worker, "/exchange", settled)).json()["lost"] == []
    job = await town.world.store.reads.job(id_of(50))
    assert job is not None
    assert (job.state, job.result, job.cursor, job.progress) == (State.DONE, "80", "7", "1")


async def test_a_whole_worker_runs_with_a_key_of_its_tenant(store_url: str) -> None:
    """Admission, permits, holds and settlements must work through the service as they do beside the store."""
    mail, maps = Limit("mail:{tenant}", concurrency=4), Limit("maps", "1000/second")
    spend, pool = Budget("spend:{tenant}", usd=100, every="day"), Budget("pool", usd=100, every="day")

    def with_jobs(app: App) -> App:
        @app.job(limits=[mail, maps], budgets=[spend, pool], cost=1)
        async def send(ctx: Context, n: int) -> int:
            async with ctx.call() as one:
                one.settle(usd="0.5")
            return n

        return app

    async with run_service(with_jobs(App(store_url)), auth=True) as served:
        world = served.service.world
        await world.limiter.definitions.declare([mail.definition, maps.definition])
        await world.ledger.definitions.declare([spend.definition, pool.definition])
        await world.store.tenants.set(Tenant(name="acme", concurrency=3))
        await world.limiter.definitions.declare([Tenant(name="acme", concurrency=3).definition()])
        for n in range(5):
            await served.app.submit(served.app.bind("send", {"n": n}, tenant="acme"))
        key = (await key_for(served, "acme", Role.WORKER)).text
        async with with_jobs(App(served.url, key=key)) as app:
            worked = await app.run_worker(until_empty=True)
        assert (worked.settled, worked.lost, worked.is_clean) == (5, 0, True)
        windows = await world.ledger.reads.balances(["spend:acme", "pool"])
        assert [each.balance.spent_micros for each in windows] == [2_500_000, 2_500_000]
        assert (await world.ledger.reads.audit()).wrong() == []


# -- values that a reader cannot show -------------------------------------------------------------------------------

UNREADABLE = ['"\\ud800"', "[" * 1_000, "[" * 1_000 + "]" * 1_000, "no json", "NaN", "1e999", '"\\u0000"', '"\0"', ""]


@pytest.mark.parametrize("text", UNREADABLE)
async def test_what_a_reader_cannot_show_is_not_stored(town: Town, text: str) -> None:
    """Dashboards, other workers and the live stream read what a worker stores."""
    await town.world.store.jobs.submit([new_job(60, tenant="acme")])
    wants = {"queues": ["default"], "count": 1, "token": "chosen"}
    assert len((await call(town.worker, "/exchange", {"worker": "w", "wants": wants})).json()["leases"]) == 1
    mine = {"id": id_of(60), "token": "chosen"}
    calls: list[tuple[str, Any]] = [
        ("/checkpoint", {"job": id_of(60), "token": "chosen", "cursor": text}),
        ("/report", {"reports": [{**mine, "progress": text}]}),
        ("/exchange", {"worker": "w", "settlements": [{**mine, "state": "done", "result": text}]}),
        ("/exchange", {"worker": "w", "settlements": [{**mine, "state": "done", "progress": text}]}),
        ("/exchange", {"worker": "w", "settlements": [{**mine, "state": "failed", "result": "1", "failure": {
            "code": "x" * 201, "message": "x"}}]}),
    ]  # fmt: skip
    for path, body in calls:
        reply = await call(town.worker, path, body)
        assert reply.status_code in (400, 422), (path, reply.text)


@pytest.mark.parametrize("text", UNREADABLE[:-2])
async def test_the_live_stream_survives_whatever_is_stored(served: Served, text: str) -> None:
    """Older rows and other writers of the table are not checked by the service. One value that the stream could not
    encode ended it for every subscriber of every tenant.
    """
    world = served.service.world
    await world.store.jobs.submit([new_job(1, payload=text)])
    (lease,) = await ContractWorker(world.store).claim(1)
    await world.store.jobs.report([ProgressReport(lease.id, lease.token, text)])
    await world.store.jobs.checkpoint(lease.id, lease.token, text)
    async with by_socket(served.url) as live:
        await live.until(lambda live: id_of(1) in live.jobs)
        await world.store.jobs.submit([new_job(2)])
        await live.until(lambda live: id_of(2) in live.jobs)
    for path in ("", f"/{id_of(1)}"):
        assert (await served.client.get(f"/v1/jobs{path}")).status_code == 200
