"""Every call that finds what its first try has written waits for the synchronous standby, like the first try.

The calls are listed by the verb of the statement that they send. A new verb is either in the list, or in
`WITHOUT_PROMISE` with the reason why a failover may lose its answer.
"""

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest
from tests.stores.postgres_support import closing, connected, new_name, seen_now, until, waiting_for_a_lock

from leaseway.domain.budgets.balances import Evidence
from leaseway.domain.budgets.budget import MICRO, Budget, Charge
from leaseway.domain.exchange import Exchange
from leaseway.domain.identity import Session
from leaseway.domain.ids import SECOND_US
from leaseway.domain.inspection import JobFilter
from leaseway.domain.job import State
from leaseway.domain.limits.limit import Limit
from leaseway.domain.schedule import Schedule
from leaseway.domain.tenant import Tenant
from leaseway.imports.domain.run_state import RunState
from leaseway.imports.sinks.postgres.sink import PostgresSink
from leaseway.imports.sinks.sql_tables import SqlQuarantine, SqlRuns, SqlShards, SqlSweeps
from leaseway.ports.ledger import SettleHoldRequest
from leaseway.ports.store import require_pauses
from leaseway.stores.postgres.budgets import PostgresLedger
from leaseway.stores.postgres.limits import PostgresLimiter
from leaseway.stores.postgres.statements import FUNCTIONS
from leaseway.stores.postgres.store import PostgresStore
from leaseway.testing.clock import FakeClock
from leaseway.testing.job_store_contract.fixtures import (
    MINUTE_US,
    ContractWorker,
    done,
    failed,
    id_of,
    keyed_job,
    new_job,
)
from leaseway.testing.key_store_contract import new_key
from leaseway.testing.postgres import PostgresServer, postgres_server
from leaseway.testing.sink_contract.fixtures import HIGH, LOW, RUN, bad, page, row, rows, started, written

WAITING = "SELECT query FROM pg_stat_activity WHERE wait_event = 'SyncRep'"


async def statement_that_waits(server: PostgresServer, answer: Awaitable[object]) -> str | None:
    """The statement that waits for a standby; None if the call is answered. The call is cancelled."""
    call = asyncio.ensure_future(answer)
    async with connected(server) as connection:
        waiting = asyncio.ensure_future(until(lambda: seen_now(connection, WAITING)))
        await asyncio.wait({call, waiting}, return_when=asyncio.FIRST_COMPLETED)
        is_answered = call.done()
        for task in (call, waiting):
            task.cancel()
        results = await asyncio.gather(call, waiting, return_exceptions=True)
        await seen_now(connection, WAITING.replace("query", "pg_cancel_backend(pid)"))
    if is_answered:
        assert not isinstance(results[0], BaseException), results[0]
        return None
    return str(results[1][0][0])


class Client(NamedTuple):
    store: PostgresStore
    ledger: PostgresLedger
    limiter: PostgresLimiter
    sink: PostgresSink

    @property
    def worker(self) -> ContractWorker:
        return ContractWorker(self.store)


@asynccontextmanager
async def client(server: PostgresServer, schema: str, **options: str) -> AsyncIterator[Client]:
    more = "".join(f"&{name}={text}" for name, text in options.items())
    url = f"{server.url}?schema={schema}{more}"
    made = Client(PostgresStore(url), PostgresLedger(url), PostgresLimiter(url), PostgresSink(url, "places"))
    async with closing(made.store):
        yield made
        await made.ledger.close()
        await made.limiter.close()
        await made.sink.close()


@pytest.fixture(scope="module")
def lonely() -> Iterator[PostgresServer]:
    """A primary whose synchronous standby never answers. Only sessions that ask for it wait for the standby."""
    with postgres_server(synchronous_standby_names="absent", synchronous_commit="local") as server:
        yield server


CLOCK = FakeClock()
SPEND = Charge("spend", "spend")
Prepare = Callable[[Client], Awaitable[Callable[[Client], Awaitable[object]]]]
"""Makes the first try, and returns its repetition."""


async def repeat_one(first: Client) -> Any:
    await first.store.jobs.submit([new_job(1)])
    return lambda again: again.store.jobs.submit([new_job(1)])


async def repeat_one_that_notifies_later(first: Client) -> Any:
    job = new_job(1)
    await first.store.jobs.submit([job])

    async def repeat(again: Any) -> None:
        again.store.jobs._database.notifier.notify()  # a notification is on its way, so the call sends none
        await again.store.jobs._write([job])

    return repeat


async def repeat_uniform(first: Client) -> Any:
    jobs = [new_job(number) for number in range(3)]
    await first.store.jobs.submit(jobs)
    return lambda again: again.store.jobs.submit(jobs)


async def repeat_mixed(first: Client) -> Any:
    jobs = [new_job(1), new_job(2, priority=5)]
    await first.store.jobs.submit(jobs)
    return lambda again: again.store.jobs.submit(jobs)


async def repeat_finished(first: Client) -> Any:
    await first.store.jobs.submit([new_job(1)])
    await first.worker.settle(done(await first.worker.claim_one()))
    return lambda again: again.store.jobs.submit([new_job(1)])


async def repeat_id_of_keyed(first: Client) -> Any:
    await first.store.jobs.submit([keyed_job(1)])
    return lambda again: again.store.jobs.submit([keyed_job(1)])


async def repeat_key(first: Client) -> Any:
    await first.store.jobs.submit([keyed_job(1)])
    return lambda again: again.store.jobs.submit([keyed_job(2)])


async def repeat_settlement(first: Client) -> Any:
    await first.store.jobs.submit([new_job(1)])
    settlement = done(await first.worker.claim_one())
    await first.worker.settle(settlement)
    return lambda again: again.worker.settle(settlement)


async def repeat_settlement_twice(first: Client) -> Any:
    await first.store.jobs.submit([new_job(1)])
    settlement = done(await first.worker.claim_one())
    await first.worker.settle(settlement)
    return lambda again: again.worker.settle(settlement, settlement)


async def repeat_failure(first: Client) -> Any:
    await first.store.jobs.submit([new_job(1)])
    settlement = failed(await first.worker.claim_one())
    await first.worker.settle(settlement)
    return lambda again: again.worker.settle(settlement)


async def repeat_claim(first: Client) -> Any:
    await first.store.jobs.submit([new_job(1)])
    wants = first.worker.wants()
    await first.worker.exchange(wants=wants)
    return lambda again: again.store.jobs.exchange(Exchange(first.worker.id, (), wants, True))


async def repeat_cancel(first: Client) -> Any:
    await first.store.jobs.submit([new_job(1)])
    await first.store.operations.cancel(id_of(1))
    return lambda again: again.store.operations.cancel(id_of(1))


async def repeat_retry(first: Client) -> Any:
    await first.store.jobs.submit([new_job(1)])
    await first.store.operations.cancel(id_of(1))
    which = JobFilter(states=(State.CANCELLED,))
    await first.store.operations.retry(which, 10)
    return lambda again: again.store.operations.retry(which, 10)


async def repeat_run_now(first: Client) -> Any:
    await first.store.jobs.submit([new_job(1, delay_us=MINUTE_US)])
    await first.store.operations.run_now(JobFilter(), 10)
    return lambda again: again.store.operations.run_now(JobFilter(), 10)


async def repeat_open_lanes(first: Client) -> Any:
    await first.store.operations.open_lanes("maps", 10)
    return lambda again: again.store.operations.open_lanes("maps", 10)


async def repeat_discard(first: Client) -> Any:
    await repeat_cancel(first)
    await first.store.operations.discard(JobFilter(), 10)
    return lambda again: again.store.operations.discard(JobFilter(), 10)


async def repeat_pause(first: Client) -> Any:
    await require_pauses(first.store).pause("default")
    return lambda again: require_pauses(again.store).pause("default")


async def repeat_resume(first: Client) -> Any:
    await repeat_pause(first)
    await require_pauses(first.store).resume("default")
    return lambda again: require_pauses(again.store).resume("default")


async def repeat_forget_tenant(first: Client) -> Any:
    await first.store.tenants.set(Tenant(name="acme", concurrency=1))
    await first.store.tenants.forget("acme")
    return lambda again: again.store.tenants.forget("acme")


async def repeat_key_added(first: Client) -> Any:
    await first.store.keys.add(new_key(1, CLOCK))
    return lambda again: again.store.keys.add(new_key(1, CLOCK))


async def repeat_key_revoked(first: Client) -> Any:
    await repeat_key_added(first)
    await first.store.keys.revoke(new_key(1, CLOCK).id)
    return lambda again: again.store.keys.revoke(new_key(1, CLOCK).id)


async def repeat_session(first: Client) -> Any:
    session = Session(hash="hash", key="key", created_at=1, expires_at=CLOCK.now_us() * 2)
    await first.store.sessions.add(session)
    return lambda again: again.store.sessions.add(session)


async def repeat_session_ended(first: Client) -> Any:
    await repeat_session(first)
    await first.store.sessions.end("hash")
    return lambda again: again.store.sessions.end("hash")


async def repeat_limit_forgotten(first: Client) -> Any:
    await first.limiter.definitions.declare([Limit("maps", "10/minute").definition])
    await first.limiter.definitions.forget("maps")
    return lambda again: again.limiter.definitions.forget("maps")


async def held_first(first: Client) -> Any:
    await first.ledger.definitions.declare([Budget("spend", usd=10, every="day").definition])
    await first.ledger.hold("call", ((SPEND, MICRO),), 600 * SECOND_US)


async def repeat_budget_forgotten(first: Client) -> Any:
    await first.ledger.definitions.declare([Budget("spend", usd=10, every="day").definition])
    await first.ledger.definitions.forget("spend")
    return lambda again: again.ledger.definitions.forget("spend")


async def repeat_hold(first: Client) -> Any:
    await held_first(first)
    return lambda again: again.ledger.hold("call", ((SPEND, MICRO),), 600 * SECOND_US)


async def repeat_dispatch(first: Client) -> Any:
    await held_first(first)
    await first.ledger.dispatch("call")
    return lambda again: again.ledger.dispatch("call")


async def repeat_hold_settled(first: Client) -> Any:
    await held_first(first)
    await first.ledger.settle("call", {})
    return lambda again: again.ledger.settle("call", {})


async def repeat_post(first: Client) -> Any:
    await held_first(first)
    await first.ledger.settle("call", {})
    return lambda again: again.ledger.post([], [SettleHoldRequest("call", {})])


async def repeat_void(first: Client) -> Any:
    await held_first(first)
    await first.ledger.void("call")
    return lambda again: again.ledger.void("call")


async def repeat_checkpoint(first: Client) -> Any:
    await first.store.jobs.submit([new_job(1)])
    lease = await first.worker.claim_one()
    await first.store.jobs.checkpoint(lease.id, lease.token, "{}")
    return lambda again: again.store.jobs.checkpoint(lease.id, lease.token, "{}")


async def repeat_tenant(first: Client) -> Any:
    await first.store.tenants.set(Tenant(name="acme", concurrency=1))
    return lambda again: again.store.tenants.set(Tenant(name="acme", concurrency=1))


HOURLY = Schedule(name="hourly", kind="report", cron="0 * * * *")


async def repeat_schedule(first: Client) -> Any:
    await first.store.schedules.declare([HOURLY])
    return lambda again: again.store.schedules.declare([HOURLY])


async def repeat_schedule_paused(first: Client) -> Any:
    await repeat_schedule(first)
    await first.store.schedules.pause("hourly", True)
    return lambda again: again.store.schedules.pause("hourly", True)


async def repeat_fire(first: Client) -> Any:
    await repeat_schedule(first)
    (stored,) = await first.store.schedules.all()
    fire = ("hourly", stored.seen, stored.seen + 1, [keyed_job(1)])
    assert await first.store.schedules.fire(*fire)
    return lambda again: again.store.schedules.fire(*fire)


async def repeat_limit(first: Client) -> Any:
    await first.limiter.definitions.declare([Limit("maps", "10/minute").definition])
    return lambda again: again.limiter.definitions.declare([Limit("maps", "10/minute").definition])


async def repeat_limit_changed(first: Client) -> Any:
    await first.limiter.definitions.change(Limit("maps", "10/minute").definition)
    return lambda again: again.limiter.definitions.change(Limit("maps", "10/minute").definition)


async def repeat_budget(first: Client) -> Any:
    await held_first(first)
    return lambda again: again.ledger.definitions.declare([Budget("spend", usd=10, every="day").definition])


async def repeat_budget_changed(first: Client) -> Any:
    await first.ledger.definitions.change(Budget("spend", usd=9, every="day").definition)
    return lambda again: again.ledger.definitions.change(Budget("spend", usd=9, every="day").definition)


async def repeat_correction(first: Client) -> Any:
    await held_first(first)
    await first.ledger.dispatch("call")
    async with first.ledger.connections.borrow() as connection:
        await connection.execute(f"UPDATE {first.ledger.address.schema}.holds SET deadline = 1")
    correction = ("call", {"spend": 1}, Evidence("ann", "invoice"))
    await first.ledger.correct(*correction)
    return lambda again: again.ledger.correct(*correction)


async def repeat_key_expired(first: Client) -> Any:
    await repeat_key_added(first)
    key = new_key(1, CLOCK)
    await first.store.keys.expire(key.id, CLOCK.now_us())
    return lambda again: again.store.keys.expire(key.id, CLOCK.now_us())


REPETITIONS: dict[str, tuple[Prepare, ...]] = {
    "submit": (repeat_mixed, repeat_id_of_keyed, repeat_key),
    "submit_one": (repeat_one_that_notifies_later,),
    "submit_one_and_notify": (repeat_one, repeat_finished),
    "submit_uniform": (repeat_uniform,),
    "exchange": (repeat_settlement, repeat_failure, repeat_claim),
    "settle_alone": (repeat_settlement_twice,),
    "checkpoint": (repeat_checkpoint,),
    "cancel": (repeat_cancel,),
    "retry": (repeat_retry,),
    "run_now": (repeat_run_now,),
    "open_lanes": (repeat_open_lanes,),
    "discard": (repeat_discard,),
    "pause_lanes": (repeat_pause,),
    "resume_lanes": (repeat_resume,),
    "set_tenant": (repeat_tenant,),
    "forget_tenant": (repeat_forget_tenant,),
    "declare_schedules": (repeat_schedule,),
    "fire_schedule": (repeat_fire,),
    "pause_schedule": (repeat_schedule_paused,),
    "declare_limits": (repeat_limit,),
    "change_limit": (repeat_limit_changed,),
    "forget_limit": (repeat_limit_forgotten,),
    "declare_budgets": (repeat_budget,),
    "change_budget": (repeat_budget_changed,),
    "forget_budget": (repeat_budget_forgotten,),
    "hold_budgets": (repeat_hold,),
    "post_budgets": (repeat_post,),
    "dispatch_hold": (repeat_dispatch,),
    "settle_hold": (repeat_hold_settled,),
    "correct_hold": (repeat_correction,),
    "void_hold": (repeat_void,),
    "add_api_key": (repeat_key_added,),
    "revoke_api_key": (repeat_key_revoked,),
    "expire_api_key": (repeat_key_expired,),
    "add_api_session": (repeat_session,),
    "end_api_session": (repeat_session_ended,),
}

WITHOUT_PROMISE = {
    "only reads": {"wait_us", "now", "read_levels", "find_api_key", "list_api_keys", "find_api_session"},
    "writes in every call that succeeds": {"renew"},
    "a failover counts limits as used up": {
        *("take_permits", "return_permits", "renew_calls", "end_calls", "apply_notice"),
    },
    "housekeeping that is done again if it is lost": {
        *("prune", "prune_budgets", "prune_work_history", "expire_holds", "watch_clock"),
    },
    "every heartbeat restores the list of workers": {"beat_worker", "remove_worker", "drain_worker"},
    "a decision that was lost is taken again": {"write_pool"},
    "figures of the last seconds may be lost": {"replace_work_history"},
    "the caller's commit waits": {"submit_and_notify"},
    "informs, and may be lost": {"notify_workers", "report_progress", "touch_api_keys"},
}


def test_every_verb_waits_or_says_why_it_need_not() -> None:
    """A new verb that answers a repetition from what it finds would be the same fault again."""
    excused = [verb for verbs in WITHOUT_PROMISE.values() for verb in verbs]
    assert sorted([*excused, *REPETITIONS]) == sorted(FUNCTIONS)


CASES = [pytest.param(verb, each, id=each.__name__) for verb, those in REPETITIONS.items() for each in those]


@pytest.mark.parametrize(("verb", "prepare"), CASES)
async def test_a_repetition_that_finds_its_first_try_waits_for_the_standby(
    lonely: PostgresServer, verb: str, prepare: Prepare
) -> None:
    """The first try may have been cut off while it waited, and be lost in a failover. A repetition has nothing to
    write, and PostgreSQL lets a commit without a write wait for nothing: the caller would be told that it is safe."""
    schema = new_name("repeated")
    async with client(lonely, schema) as first, client(lonely, schema, synchronous_commit="on") as again:
        await first.store.open()
        repeat = await prepare(first)
        statement = await statement_that_waits(lonely, repeat(again))
        assert statement is not None
        assert f".{verb}(" in statement or verb == "settle_alone"


async def test_a_job_that_is_submitted_again_in_sql_waits_for_the_standby(lonely: PostgresServer) -> None:
    """Programs in other languages call `submit_job` themselves, and repeat it with the same key."""
    schema = new_name("sql")
    submit = f"SELECT {schema}.submit_job('greet', key => 'once')"
    async with client(lonely, schema) as first, connected(lonely) as again:
        await first.store.open()
        await again.execute("SET synchronous_commit = local")
        await again.execute(submit)
        await again.execute("SET synchronous_commit = on")
        assert await statement_that_waits(lonely, again.execute(submit)) == submit


async def test_a_commit_of_a_caller_that_submits_again_waits_for_the_standby(lonely: PostgresServer) -> None:
    """The caller repeats its transaction because the first one was cut off while it waited."""
    async with client(lonely, new_name("caller")) as first, connected(lonely) as caller:
        await first.store.open()
        assert first.store.transactional is not None
        job = keyed_job(1)
        for level in ("local", "on"):
            await caller.execute(f"SET synchronous_commit = {level}")
            await caller.execute("BEGIN")
            await first.store.transactional.submit(caller, [job])
            if level == "local":
                await caller.execute("COMMIT")
        assert await statement_that_waits(lonely, caller.execute("COMMIT")) == "COMMIT"


async def test_the_loser_of_two_equal_keys_waits_for_the_standby(lonely: PostgresServer) -> None:
    """Both find no key, and the second one finds it when it writes. The first one may be cut off before the standby
    has it."""
    schema = new_name("keys")
    async with client(lonely, schema) as first, client(lonely, schema, synchronous_commit="on") as again:
        await first.store.open()
        async with connected(lonely) as holder:
            await holder.execute("SET synchronous_commit = local")
            transaction = holder.transaction()
            await transaction.start()
            key = new_key(1, CLOCK)
            await holder.execute(
                f"INSERT INTO {schema}.api_keys (id, hash, tenant, role, scopes, name, created_at) "
                "VALUES ($1, $2, 'default', 'admin', '[]', '', 0)",
                key.id, key.hash,
            )  # fmt: skip
            loser = asyncio.ensure_future(again.store.keys.add(key))
            await waiting_for_a_lock(holder)
            await transaction.commit()
            statement = await statement_that_waits(lonely, loser)
        assert statement is not None
        assert ".add_api_key(" in statement


# -- the sink ----------------------------------------------------------------------------------------------------------


async def sink_started(first: Client) -> PostgresSink:
    await first.sink.open()
    await started(first.sink)
    return first.sink


async def repeat_start(sink: PostgresSink) -> Any:
    return lambda again: again.runs.start(RUN, (LOW, HIGH))


async def repeat_finish(sink: PostgresSink) -> Any:
    await sink.runs.finish(RUN.id, RunState.COMPLETE)
    return lambda again: again.runs.finish(RUN.id, RunState.COMPLETE)


async def repeat_run_budget(sink: PostgresSink) -> Any:
    await sink.runs.set_budget(RUN.id, 10)
    return lambda again: again.runs.set_budget(RUN.id, 10)


async def repeat_spending(sink: PostgresSink) -> Any:
    await repeat_run_budget(sink)
    await sink.runs.spend(RUN.id, 1)
    return lambda again: again.runs.spend(RUN.id, 1)


async def repeat_begin(sink: PostgresSink) -> Any:
    return lambda again: again.shards.begin(RUN.id, LOW.key, 1)


async def repeat_note(sink: PostgresSink) -> Any:
    await sink.shards.note(RUN.id, LOW.key, 1, {"slow": 1})
    return lambda again: again.shards.note(RUN.id, LOW.key, 1, {"slow": 1})


async def repeat_page(sink: PostgresSink) -> Any:
    await written(sink, page(rows(1, 2), after=2))
    return lambda again: again.shards.write(page(rows(1, 2), after=2))


async def repeat_release(sink: PostgresSink) -> Any:
    await written(sink, page(bad=(bad(1),), after=2))
    ((number, _, _),) = await sink.quarantine.find_all()
    assert await sink.quarantine.release(number, row(1))
    return lambda again: again.quarantine.release(number, row(1))


async def repeat_sweep(sink: PostgresSink) -> Any:
    await sink.sweeps.sweep(RUN.id)
    return lambda again: again.sweeps.sweep(RUN.id)


async def repeat_presence(sink: PostgresSink) -> Any:
    await sink.sweeps.mark_present(RUN.source, ["1"])
    return lambda again: again.sweeps.mark_present(RUN.source, ["1"])


async def repeat_deletion(sink: PostgresSink) -> Any:
    await written(sink, page(rows(1, 2), after=2))
    await sink.sweeps.delete(RUN.id, ["1"], "missing")
    return lambda again: again.sweeps.delete(RUN.id, ["1"], "missing")


SINK_REPETITIONS: dict[Callable[..., object], Callable[[PostgresSink], Any]] = {
    SqlRuns.start: repeat_start,
    SqlRuns.finish: repeat_finish,
    SqlRuns.set_budget: repeat_run_budget,
    SqlRuns.spend: repeat_spending,
    SqlShards.begin: repeat_begin,
    SqlShards.note: repeat_note,
    SqlShards.write: repeat_page,
    SqlQuarantine.release: repeat_release,
    SqlSweeps.sweep: repeat_sweep,
    SqlSweeps.mark_present: repeat_presence,
    SqlSweeps.delete: repeat_deletion,
}
SINK_READS = {SqlRuns.find, SqlRuns.find_all, SqlShards.find_all, SqlShards.count_open, SqlQuarantine.find_all,
              SqlSweeps.find_absent}  # fmt: skip


def test_every_verb_of_the_sink_is_in_the_list() -> None:
    """A new verb of the sink that finds its own work must wait as well."""
    parts = (SqlRuns, SqlShards, SqlQuarantine, SqlSweeps)
    verbs = {verb for part in parts for _, verb in inspect.getmembers(part, inspect.iscoroutinefunction)}
    assert verbs == SINK_READS | set(SINK_REPETITIONS)


@pytest.mark.parametrize("prepare", SINK_REPETITIONS.values())
async def test_a_repetition_at_the_sink_waits_for_the_standby(
    lonely: PostgresServer, prepare: Callable[[PostgresSink], Any]
) -> None:
    """A job reports a page, the end of a shard or a deletion as done. If its sink fails over and has lost it, the job's
    store, which may be another database, says that it is there."""
    schema = new_name("repeated")
    async with client(lonely, schema) as first, client(lonely, schema, synchronous_commit="on") as again:
        await first.store.open()
        repeat = await prepare(await sink_started(first))
        again.sink.tables.sql = first.sink.tables.sql  # `open` would wait for the standby as well
        assert await statement_that_waits(lonely, repeat(again.sink))


async def test_a_poll_of_an_idle_worker_waits_for_no_standby(lonely: PostgresServer) -> None:
    """Nothing is acknowledged, and every idle worker polls."""
    schema = new_name("idle")
    async with client(lonely, schema) as first, client(lonely, schema, synchronous_commit="on") as idle:
        await first.store.open()
        assert await idle.worker.claim() == ()
        assert await idle.store.reads.job(id_of(1)) is None
