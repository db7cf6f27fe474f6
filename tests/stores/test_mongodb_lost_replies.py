"""A server that fails at any command of a call: a repeated call has no second effect, and nothing is half done."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from tests.mongodb_faults import BREAKABLE, LOST_COMMIT, SwallowingProxy, commands, failing, leave_a_transaction
from tests.stores.conftest import empty

from leaseway.domain import store_clock
from leaseway.domain.errors import TransientError, UnknownOutcome
from leaseway.domain.exchange import Exchange
from leaseway.domain.ids import SECOND_US
from leaseway.domain.job import NewJob, State
from leaseway.ports.store import require_inspection
from leaseway.stores.mongodb import connection
from leaseway.stores.mongodb.store import MongoStore
from leaseway.testing.job_store_contract.fixtures import ContractWorker, counts, done, id_of, ids_in, job_of, new_job
from leaseway.testing.mongodb import MongoServer, mongodb_server

NOT_PRIMARY = 10_107


@pytest.fixture(scope="module")
def breakable() -> Iterator[MongoServer]:
    with mongodb_server(*BREAKABLE) as server:
        yield server


@pytest.fixture
async def store(breakable: MongoServer) -> AsyncIterator[MongoStore]:
    store = MongoStore(breakable.url)
    await store.open()
    await empty(store)
    yield store
    await store.close()


@contextmanager
def broken(server: MongoServer, data: dict[str, Any]) -> Iterator[None]:
    """All commands fail as `data` says, and the store gives up at once."""
    with pytest.MonkeyPatch.context() as patch, failing(server, data):
        patch.setattr(connection, "REPEAT_SECONDS_MAX", 0.0)
        yield


async def test_a_submission_whose_commit_was_not_answered_is_stored_once(
    store: MongoStore, breakable: MongoServer
) -> None:
    """The submitter cannot know, so it repeats the call."""
    jobs = [new_job(1), new_job(2)]
    with broken(breakable, LOST_COMMIT), pytest.raises(UnknownOutcome, match="the call may be repeated"):
        await store.jobs.submit(jobs)
    await store.jobs.submit(jobs)
    assert await ids_in(store) == [id_of(1), id_of(2)]
    assert await counts(store) == {"ready": 2}


async def test_a_repeated_exchange_receives_the_leases_of_the_first_try(
    store: MongoStore, breakable: MongoServer
) -> None:
    """Otherwise the jobs would wait for their leases to expire, and a settlement would be taken for a lost one."""
    await store.jobs.submit([new_job(number) for number in (1, 2, 3)])
    worker = ContractWorker(store)
    lease = await worker.claim_one()
    call = Exchange(worker.id, (done(lease),), worker.wants(1))
    with broken(breakable, LOST_COMMIT), pytest.raises(UnknownOutcome):
        await store.jobs.exchange(call)
    reply = await store.jobs.exchange(Exchange(call.worker, call.settlements, call.wants, repeat=True))
    assert ([each.id for each in reply.leases], reply.lost) == ([id_of(2)], ())
    assert (await job_of(store, 1)).state is State.DONE
    assert await counts(store) == {"ready": 1, "leased": 1, "done": 1}


@pytest.mark.parametrize("command", ["aggregate", "find", "update", "insert", "commitTransaction"])
async def test_a_connection_that_breaks_before_the_commit_leaves_nothing(
    store: MongoStore, breakable: MongoServer, command: str
) -> None:
    """Whichever of its commands fails: the exchange has happened as a whole or not at all."""
    await store.jobs.submit([new_job(1), new_job(2)])
    worker = ContractWorker(store)
    lease = await worker.claim_one()
    lost = {"failCommands": [command], "closeConnection": True}
    wants = worker.wants(1)
    with broken(breakable, lost), pytest.raises(TransientError):
        await worker.exchange(done(lease), wants=wants)
    assert await counts(store) == {"ready": 1, "leased": 1}
    reply = await worker.exchange(done(lease), wants=wants, repeat=True)
    assert [each.id for each in reply.leases] == [id_of(2)]
    assert await counts(store) == {"leased": 1, "done": 1}
    findings = {finding.check: finding.text for finding in await require_inspection(store).health(deep=True)}
    assert findings["counters"] == "1 lanes have correct counters"


@pytest.mark.parametrize("command", ["aggregate", "insert", "commitTransaction"])
async def test_a_network_that_loses_replies_stores_a_submission_once(
    store: MongoStore, breakable: MongoServer, command: str
) -> None:
    """The server has executed the command, and the client cannot know. The submitter repeats the call if it fails."""
    second = new_job(2, key="second" if command == "aggregate" else None)  # only then the time is asked for
    async with SwallowingProxy(breakable.port).running() as proxy:
        far = MongoStore(proxy.url)
        await far.jobs.submit([new_job(1)])
        proxy.swallow(command)
        with suppress(TransientError):
            await far.jobs.submit([second])
        await far.jobs.submit([second])
        await far.close()
    assert proxy.swallowed == 1
    assert await ids_in(store) == [id_of(1), id_of(2)]
    assert await counts(store) == {"ready": 2}


async def test_a_network_that_loses_replies_settles_and_claims_once(store: MongoStore, breakable: MongoServer) -> None:
    """The commit of an exchange is sent again, and happens once."""
    await store.jobs.submit([new_job(number) for number in (1, 2, 3)])
    async with SwallowingProxy(breakable.port).running() as proxy:
        far = MongoStore(proxy.url)
        worker = ContractWorker(far)
        lease = await worker.claim_one()
        call = Exchange(worker.id, (done(lease),), worker.wants(1))
        proxy.swallow("commitTransaction")
        try:
            reply = await far.jobs.exchange(call)
        except TransientError:
            reply = await far.jobs.exchange(Exchange(call.worker, call.settlements, call.wants, repeat=True))
        await far.close()
    assert proxy.swallowed == 1
    assert ([each.id for each in reply.leases], reply.lost) == ([id_of(2)], ())
    assert await counts(store) == {"ready": 1, "leased": 1, "done": 1}


async def test_a_call_that_gets_no_connection_ends(
    store: MongoStore, breakable: MongoServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver can forget to wake a call that waits for a connection. A worker would wait forever."""
    monkeypatch.setattr(connection, "POOL_MAX", 1)
    monkeypatch.setattr(connection, "QUEUE_SECONDS_MAX", 0.1)
    busy = MongoStore(breakable.url)
    await busy.versions()
    slow = {"failCommands": ["find"], "blockConnection": True, "blockTimeMS": 1_500}
    with broken(breakable, slow):
        first, second = await asyncio.gather(counts(busy), busy.database.now(), return_exceptions=True)
    assert first == {}
    assert isinstance(second, TransientError)
    assert "no connection was free" in str(second)
    await busy.jobs.submit([new_job(1)])
    await busy.close()


def test_a_loop_ends_although_the_driver_does_not(breakable: MongoServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that has failed would hang at its end, and never tell why it failed."""
    monkeypatch.setattr(connection, "CLOSE_SECONDS_MAX", 0.1)

    async def work() -> None:
        store = MongoStore(breakable.url)
        await store.versions()
        client = (await store.connections.database()).client
        close = client.close

        async def hang() -> None:
            await close()
            await asyncio.Event().wait()

        monkeypatch.setattr(client, "close", hang)

    asyncio.run(work())


async def test_jobs_that_a_killed_process_has_locked_are_claimed_soon(
    breakable: MongoServer, store: MongoStore
) -> None:
    """The server would keep the transaction of a killed process for a minute."""
    await store.jobs.submit([new_job(1)])
    leave_a_transaction(breakable.url, "leaseway_jobs")
    worker = ContractWorker(store)
    leases = [lease for _ in range(10) for lease in await worker.claim(1)]
    assert [lease.id for lease in leases] == [id_of(1)]


@pytest.mark.parametrize("code", [246, 134, 11_600, 211])
async def test_a_read_while_the_set_recovers_is_repeated(store: MongoStore, breakable: MongoServer, code: int) -> None:
    """A new primary cannot read a snapshot for a moment. A dashboard and a submitter must not fail for good."""
    await store.jobs.submit([new_job(1)])
    for command in ("find", "aggregate"):
        with failing(breakable, {"failCommands": [command], "errorCode": code}, times=2):
            assert await counts(store) == {"ready": 1}
            assert await store.jobs.wait_us(("default",)) == 0
    with broken(breakable, {"failCommands": ["find", "aggregate"], "errorCode": code}), pytest.raises(TransientError):
        await store.reads.lanes()


async def test_a_submission_asks_for_the_time_only_if_it_matters(
    store: MongoStore, breakable: MongoServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lone submission is a transaction, and the time costs it a fourth round trip. It is still the server's time:
    observed a moment ago, never by another server, and never for what a key or a delay decides."""
    monkeypatch.setattr(store_clock, "RECENT_SECONDS", 3_600.0)
    before = await store.database.now()

    async def asked(*jobs: NewJob) -> int:
        first = commands(breakable, "aggregate")
        await store.jobs.submit(jobs)
        return commands(breakable, "aggregate") - first

    assert await asked(new_job(1)) == 0
    after = await store.database.now()
    assert before <= (await job_of(store, 1)).created_at <= after + 1_000, "in steps of a millisecond"
    assert await asked(new_job(2, key="k")) == 1
    assert await asked(new_job(3, delay_us=1)) == 1
    assert await asked(new_job(4)) == 0
    with failing(breakable, {"failCommands": ["insert"], "errorCode": NOT_PRIMARY}, times=1):
        assert await asked(new_job(5)) == 1, "after an election another server's clock decides"
    monkeypatch.setattr(store_clock, "RECENT_SECONDS", 0.0)
    assert await asked(new_job(6)) == 1, "the observation is too old"


async def test_a_new_primary_with_a_slower_clock_does_not_turn_time_back(store: MongoStore) -> None:
    """Leases would last longer, and limits and schedules would wait, until that clock has caught up."""
    before = await store.database.now()
    store.connections._watch.observe(before + 600 * SECOND_US, time.monotonic())  # the clock of the former primary
    after = await store.database.now()
    assert 600 * SECOND_US <= after - before < 660 * SECOND_US
    await store.jobs.submit([new_job(1)])
    assert (await job_of(store, 1)).created_at >= after
