"""Limits in MongoDB: restored copies, crashes, concurrency, lost replies, and documents that were edited by hand."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient, WriteConcern
from tests.limits.conftest import forget_use
from tests.mongodb_collections import empty_collections
from tests.mongodb_faults import BREAKABLE, LOST_COMMIT, commits, failing, leave_a_transaction

from leaseway.domain.errors import StoreBusy, StoreRefused, TransientError, UnknownOutcome
from leaseway.domain.ids import SECOND_US
from leaseway.domain.limits.buckets import IN_FLIGHT_GRACE_US, Granted, Verdict, Wait, us_from_ns
from leaseway.domain.limits.limit import Limit, PermitRequest, size_limit
from leaseway.stores.mongodb import connection
from leaseway.stores.mongodb.connection import META
from leaseway.stores.mongodb.limits import FENCE_ID, LevelCall, MongoLevels, MongoLimiter
from leaseway.stores.mongodb.schema import LEVELS, LIMITS
from leaseway.testing.clock import FakeClock
from leaseway.testing.limiter_contract.fixtures import (
    MAPS,
    MAPS_BURST,
    PHONE,
    SEAT_US,
    ask,
    drained,
    granted,
    left,
    level_of,
    ready,
    seated,
    waits,
)
from leaseway.testing.mongodb import MongoServer, mongodb_server

ROOT = Path(__file__).parents[2]
ROOMY = tuple(Limit(name, "100000/minute") for name in "abc")
"""Limits that many can use at once: five thousand permits each."""
OF_TENANT = Limit("maps:{tenant}", "100/minute")


@pytest.fixture(scope="module")
def breakable() -> Iterator[MongoServer]:
    """A server that can be told to fail, and killed without affecting other tests."""
    with mongodb_server(*BREAKABLE) as server:
        yield server


@asynccontextmanager
async def opened(server: MongoServer, clock: FakeClock | None = None) -> AsyncIterator[MongoLimiter]:
    limiter = MongoLimiter(server.url, None if clock is None else clock.now_us)
    try:
        await limiter.open()
        yield limiter
    finally:
        await limiter.close()


@pytest.fixture
async def limiter(breakable: MongoServer, clock: FakeClock) -> AsyncIterator[MongoLimiter]:
    async with opened(breakable, clock) as limiter:
        await forget_use(limiter)
        yield limiter


@pytest.fixture
async def other(breakable: MongoServer, clock: FakeClock) -> AsyncIterator[MongoLimiter]:
    """Another process, as far as the server can tell."""
    async with opened(breakable, clock) as limiter:
        yield limiter


async def start_anew(limiter: MongoLimiter) -> None:
    """The database as a new user finds it."""
    await empty_collections(limiter.connections, LIMITS, LEVELS)
    database = await limiter.connections.database()
    await database[META].delete_one({"_id": FENCE_ID})
    await limiter.open()


async def restore(limiter: MongoLimiter) -> None:
    """Replace the levels by a copy of them, as mongorestore does."""
    database = await limiter.connections.database()
    documents = await database[LEVELS].find().to_list()
    await database[LEVELS].drop()
    await database[LEVELS].insert_many(documents)


# -- what is known about earlier use ----------------------------------------------------------------------------------


async def test_a_new_database_starts_full(limiter: MongoLimiter) -> None:
    """Nothing was used before, and the database knows it: users must not wait for the first permits of a day."""
    await start_anew(limiter)
    await limiter.definitions.declare([MAPS.definition])
    assert (await drained(limiter, ask(MAPS))).count == MAPS_BURST
    assert isinstance(await limiter.acquire([ask(MAPS)]), Wait)


async def test_a_restored_copy_grants_no_permits(limiter: MongoLimiter, clock: FakeClock) -> None:
    """A backup contains old levels, at which less was used."""
    await ready(limiter, clock, MAPS, PHONE)
    taken = await granted(limiter, ask(MAPS))
    await seated(limiter, "one", ask(PHONE), most=2)
    await restore(limiter)
    clock.advance(1)
    await limiter.open()
    assert (await level_of(limiter, MAPS)).since == clock.now_us() > taken.since
    assert await left(limiter, MAPS) == [0]
    await limiter.return_unused(taken, 1)
    assert await left(limiter, MAPS) == [0]
    wait = await seated(limiter, "two", ask(PHONE))
    assert isinstance(wait, Wait)
    assert wait.wait_us == IN_FLIGHT_GRACE_US, "calls do not end because the database was restored"


async def test_a_fence_that_was_deleted_while_levels_exist_counts_everything_as_used(
    limiter: MongoLimiter, clock: FakeClock
) -> None:
    """So an operator who has restored files can make sure that no permit is granted twice, while workers run."""
    await ready(limiter, clock, MAPS)
    await granted(limiter, ask(MAPS))
    database = await limiter.connections.database()
    await database[META].delete_one({"_id": FENCE_ID})
    await waits(limiter, ask(MAPS))
    assert await left(limiter, MAPS) == [0]


async def test_grants_survive_a_power_cut(breakable: MongoServer, limiter: MongoLimiter, clock: FakeClock) -> None:
    """Permits that were used before the crash must not be granted again, and the others need not wait."""
    await ready(limiter, clock, MAPS, PHONE)
    await granted(limiter, ask(MAPS), most=2)
    await seated(limiter, "one", ask(PHONE), most=3)
    known = await limiter.levels([ask(MAPS), ask(PHONE)])
    breakable.restart()
    async with opened(breakable, clock) as after:
        assert await after.levels([ask(MAPS), ask(PHONE)]) == known
        assert (await drained(after, ask(MAPS))).count == MAPS_BURST - 2
        assert isinstance(await seated(after, "two", ask(PHONE)), Wait)


async def test_a_level_that_a_forgotten_limit_has_left_behind_does_not_count(
    limiter: MongoLimiter, clock: FakeClock
) -> None:
    """A worker that has read the definition before it was forgotten may write its level afterwards."""
    await ready(limiter, clock, MAPS)
    await drained(limiter, ask(MAPS))
    database = await limiter.connections.database()
    late = await database[LEVELS].find_one({})
    assert late is not None
    await limiter.definitions.forget("maps")
    await database[LEVELS].insert_one(late)
    await limiter.definitions.declare([MAPS.definition])
    assert await left(limiter, MAPS) == [MAPS_BURST]
    assert (await drained(limiter, ask(MAPS))).count == MAPS_BURST


async def test_limits_that_nobody_uses_any_more_do_not_pile_up(limiter: MongoLimiter, clock: FakeClock) -> None:
    """A limit per user of a public site would fill the disk in a year."""
    await ready(limiter, clock, OF_TENANT)
    for number in range(60):
        clock.advance(4 * 86_400)
        await granted(limiter, ask(OF_TENANT, name=f"maps:{number}"))
    database = await limiter.connections.database()
    assert await database[LEVELS].count_documents({}) < 20


async def test_a_level_is_not_deleted_while_a_changed_definition_needs_it(
    limiter: MongoLimiter, clock: FakeClock
) -> None:
    """Its use was harmless after a minute under the old definition; the new one counts per month."""
    await ready(limiter, clock, OF_TENANT)
    await drained(limiter, ask(OF_TENANT, name="maps:one"))
    monthly = Limit(OF_TENANT.name, "100/minute", "200 per 31 day", start="empty")
    await limiter.definitions.change(monthly.definition)
    clock.advance(40 * 86_400)
    await limiter.acquire([ask(OF_TENANT, name="maps:two")])
    database = await limiter.connections.database()
    assert await database[LEVELS].count_documents({}) == 2


# -- many at once -----------------------------------------------------------------------------------------------------


async def test_concurrent_takes_in_any_order_lose_no_permits(
    limiter: MongoLimiter, other: MongoLimiter, clock: FakeClock
) -> None:
    """A lost update grants a permit twice."""
    await ready(limiter, clock, *ROOMY)
    orders = [[0, 1, 2], [2, 1, 0], [0], [2, 0], [0, 2], [1], [0], [2, 0, 1]]
    taken: list[Granted] = []

    async def use(order: list[int], through: MongoLimiter) -> None:
        asks = [ask(ROOMY[place], cost=1) for place in order]
        for times in range(1, 11):
            taken.append(await granted(through, *asks, most=times % 3 + 1))

    await asyncio.gather(*(use(order, (limiter, other)[number % 2]) for number, order in enumerate(orders)))
    for limit in ROOMY:
        (window,) = size_limit(limit.definition).windows
        spent_us = sum(us_from_ns(grant.count * window.permit_ns) for grant in taken if ask(limit) in grant.asks)
        level = await level_of(limiter, limit)
        assert level.buckets[window.window_us].tat == clock.now_us() + spent_us


async def test_a_level_that_has_changed_since_it_was_read_is_read_again(
    breakable: MongoServer, limiter: MongoLimiter, clock: FakeClock
) -> None:
    """A decision on an older level would undo the other grant."""
    await ready(limiter, clock, MAPS)
    await granted(limiter, ask(MAPS))
    tries = []

    def acquire(levels: MongoLevels) -> Verdict:
        tries.append(levels)
        if len(tries) == 1:
            client: MongoClient[dict[str, Any]]
            with MongoClient(breakable.url) as client:
                client.leaseway[LEVELS].update_one({}, {"$set": {"blocked_until": 2**52}})
        return levels.acquire([ask(MAPS)], 1, 1, "", 0)

    verdict = await limiter._calls.call(LevelCall([("maps", "maps")], acquire))
    assert len(tries) == 2
    assert isinstance(verdict, Wait)
    assert verdict.why == "the provider asked for a wait"


async def test_concurrent_takes_of_a_new_name_count_each_once(
    limiter: MongoLimiter, other: MongoLimiter, clock: FakeClock
) -> None:
    """A level that does not exist cannot conflict; only one of two may create it."""
    await ready(limiter, clock, OF_TENANT)
    for number in range(10):
        asked = ask(OF_TENANT, name=f"maps:{number}")
        await asyncio.gather(*(granted(each, asked) for each in (limiter, other)))
        now, (level,) = await limiter.levels([asked])
        token_us = us_from_ns(size_limit(OF_TENANT.definition).windows[0].permit_ns)
        assert level.buckets[60 * SECOND_US].tat - now == 2 * token_us


async def test_calls_of_one_process_share_a_write(
    breakable: MongoServer, limiter: MongoLimiter, clock: FakeClock
) -> None:
    """Workers of one process would otherwise conflict with each other on every busy limit."""
    await ready(limiter, clock, *ROOMY)
    before = commits(breakable)
    await asyncio.gather(*(granted(limiter, ask(ROOMY[0]), ask(ROOMY[1])) for _ in range(40)))
    assert commits(breakable) - before <= 2


TAKER = """
import asyncio, sys
from leaseway.domain.limits.buckets import Granted
from leaseway.domain.limits.limit import PermitRequest
from leaseway.stores.mongodb.limits import MongoLimiter

async def take(url):
    limiter = MongoLimiter(url)
    await limiter.open()
    taken = 0
    while isinstance(verdict := await limiter.acquire([PermitRequest("daily", "daily")], most=3), Granted):
        taken += verdict.count
    await limiter.close()
    print(taken)

asyncio.run(take(sys.argv[1]))
"""


def process(program: str, *arguments: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", program, *arguments], cwd=ROOT, stdout=subprocess.PIPE)


async def test_two_processes_take_no_more_than_a_bucket_holds(breakable: MongoServer) -> None:
    """By the server's own clock: 500 permits at once, and the next one after more than a minute."""
    daily = Limit("daily", "1000/day", burst=0.5)
    async with opened(breakable) as limiter:
        await start_anew(limiter)
        await limiter.definitions.declare([daily.definition])
        running = [process(TAKER, breakable.url) for _ in range(2)]
        taken = [int((await asyncio.to_thread(each.communicate))[0]) for each in running]
        assert sum(taken) in (500, 501), "a slow machine may take longer than a minute"
        wait = await limiter.acquire([PermitRequest("daily", "daily")])
        assert isinstance(wait, Wait)


async def test_a_lock_that_a_killed_process_has_left_behind_does_not_close_a_limit(
    breakable: MongoServer, limiter: MongoLimiter, clock: FakeClock
) -> None:
    """The server would keep it for more than a minute, and no worker could make a call for so long."""
    await ready(limiter, clock, MAPS, PHONE)
    await granted(limiter, ask(MAPS))
    await seated(limiter, "one", ask(PHONE))
    for asks in ([ask(MAPS)], [ask(MAPS), ask(PHONE)]):
        leave_a_transaction(breakable.url, LEVELS)
        assert isinstance(await limiter.acquire(asks, holder="two", in_flight_us=SEAT_US), Granted)


async def test_waiting_for_a_lock_has_an_end(
    limiter: MongoLimiter, other: MongoLimiter, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction of a client that is alive is left alone; then nothing is granted, and nothing is used."""
    await ready(limiter, clock, MAPS)
    await granted(limiter, ask(MAPS))
    monkeypatch.setattr(connection, "REPEAT_SECONDS_MAX", 0.1)
    database = await other.connections.database()
    async with database.client.start_session() as session, await session.start_transaction():
        await database[LEVELS].update_many({}, {"$inc": {"slowed_at": 1}}, session=session)
        with pytest.raises(StoreBusy):
            await limiter.acquire([ask(MAPS)])
        await session.abort_transaction()
    assert await left(limiter, MAPS) == [MAPS_BURST - 1]


# -- lost replies -----------------------------------------------------------------------------------------------------


async def test_a_commit_whose_reply_is_lost_is_sent_again(
    breakable: MongoServer, limiter: MongoLimiter, clock: FakeClock
) -> None:
    """The server recognizes the transaction, so the permits are used once."""
    await ready(limiter, clock, MAPS)
    with failing(breakable, LOST_COMMIT, times=1):
        await granted(limiter, ask(MAPS), most=2)
    assert await left(limiter, MAPS) == [MAPS_BURST - 2]


async def test_a_grant_whose_reply_was_lost_is_used_up(
    breakable: MongoServer, limiter: MongoLimiter, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has written it; a second try would use permits twice."""
    await ready(limiter, clock, MAPS)
    monkeypatch.setattr(connection, "REPEAT_SECONDS_MAX", 0.05)
    with failing(breakable, LOST_COMMIT), pytest.raises(UnknownOutcome):
        await limiter.acquire([ask(MAPS)], most=2)
    assert await left(limiter, MAPS) == [MAPS_BURST - 2]


async def test_a_return_whose_reply_was_lost_is_not_repeated(
    breakable: MongoServer, limiter: MongoLimiter, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Permits that are returned twice are granted twice."""
    await ready(limiter, clock, MAPS)
    taken = await granted(limiter, ask(MAPS), most=3)
    monkeypatch.setattr(connection, "REPEAT_SECONDS_MAX", 0.05)
    with failing(breakable, LOST_COMMIT), pytest.raises(UnknownOutcome):
        await limiter.return_unused(taken, 1)
    assert await left(limiter, MAPS) == [MAPS_BURST - 2]


async def test_a_server_that_does_not_answer_grants_nothing(
    breakable: MongoServer, limiter: MongoLimiter, clock: FakeClock
) -> None:
    """A lost connection before the write must not use permits."""
    await ready(limiter, clock, MAPS)
    await granted(limiter, ask(MAPS))
    with (
        failing(breakable, {"failCommands": ["update"], "closeConnection": True}, times=1),
        pytest.raises(TransientError),
    ):
        await limiter.acquire([ask(MAPS)])
    assert await left(limiter, MAPS) == [MAPS_BURST - 1]


# -- documents that were edited by hand -------------------------------------------------------------------------------


async def spoil(limiter: MongoLimiter, collection: str, change: dict[str, Any]) -> None:
    database = await limiter.connections.database()
    unchecked = database[collection].with_options(write_concern=WriteConcern("majority"))
    await unchecked.update_one({}, {"$set": change}, bypass_document_validation=True)


async def test_a_level_that_cannot_be_read_fails_alone(limiter: MongoLimiter, clock: FakeClock) -> None:
    """Calls on other limits share a transaction with it."""
    await ready(limiter, clock, MAPS, PHONE)
    await granted(limiter, ask(MAPS))
    await spoil(limiter, LEVELS, {"percent": "all"})
    answers = await asyncio.gather(
        limiter.acquire([ask(PHONE)], holder="one", in_flight_us=SEAT_US),
        limiter.acquire([ask(MAPS)]),
        limiter.acquire([ask(PHONE)], holder="two", in_flight_us=SEAT_US),
        return_exceptions=True,
    )
    assert isinstance(answers[0], Granted)
    assert isinstance(answers[2], Granted)
    assert isinstance(answers[1], StoreRefused)
    assert "was changed by another program" in str(answers[1])


async def test_a_definition_that_cannot_be_read_is_named(limiter: MongoLimiter, clock: FakeClock) -> None:
    """The message must say which document to restore."""
    await ready(limiter, clock, MAPS)
    await spoil(limiter, LIMITS, {"definition": {"name": "maps", "rates": "many"}})
    with pytest.raises(StoreRefused, match=r"leaseway_limits: the document 'maps' was changed .*rates"):
        await limiter.acquire([ask(MAPS)])
