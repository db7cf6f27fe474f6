"""submit_job: submitting from any language by SQL."""

import asyncio
from typing import Any

import asyncpg
import pytest
from tests.stores.postgres_support import address, connected, new_name, opened, recounted, value

from leaseway import App
from leaseway.domain.ids import ALPHABET, SECOND_US, JobId
from leaseway.domain.job import State
from leaseway.stores.postgres.store import PostgresStore
from leaseway.testing.job_store_contract.fixtures import ContractWorker, counts, ids_in
from leaseway.testing.postgres import PostgresServer


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ("''", "kind"),
        ("NULL", "kind"),
        ("'k', '[1]'", "payload"),
        ("'k', '7'", "payload"),
        ("'k', 'null'", "payload"),
        ("'k', NULL", "payload"),
        ("'k', queue => ''", "queue"),
        ("'k', queue => NULL", "queue"),
        ("'k', tenant => ''", "tenant"),
        ("'k', priority => 1001", "priority"),
        ("'k', priority => -1001", "priority"),
        ("'k', priority => NULL", "priority"),
        ("'k', attempts => 0", "attempts"),
        ("'k', attempts => 1001", "attempts"),
        ("'k', attempts => NULL", "attempts"),
        ("'k', lease => '1 millisecond'", "lease"),
        ("'k', lease => '2 days'", "lease"),
        ("'k', lease => NULL", "lease"),
        ("'k', timeout => '-1 second'", "timeout"),
        ("'k', timeout => '0'", "timeout"),
        ("'k', delay => '-1 second'", "delay"),
        ("'k', delay => '1 second', run_at => now()", "delay"),
        ("'k', run_at => 'infinity'", "run_at"),
        ("'k', run_at => '9999-12-31 23:59:59-14'", "run_at"),
        ("'k', run_at => '1970-01-01 00:00:00+01'", "run_at"),
        ("'k', key => ''", "key"),
        ("'k', key => 'x', key_retention => NULL", "key_retention"),
        ("'k', key => 'x', key_retention => '-1 day'", "key_retention"),
        ("'k', id => ''", "id"),
        ("'k', queue => repeat('x', 2000)", "queue"),
        ("'k', needs => NULL", "needs"),
        ("'k', needs => repeat('x', 1001)", "needs"),
    ],
)
async def test_an_invalid_value_is_named_and_nothing_is_stored(
    server: PostgresServer, arguments: str, field: str
) -> None:
    """SQL clients have no other validation; it must be the same as in Python."""
    async with opened(server, "by_sql") as store:
        before = await ids_in(store)
        async with connected(server) as connection:
            with pytest.raises(asyncpg.PostgresError) as caught:
                await connection.fetchval(f"SELECT by_sql.submit_job({arguments})")
        assert caught.value.sqlstate == "LW002", caught.value
        assert field in str(caught.value)
        assert await ids_in(store) == before


async def test_the_defaults_are_those_of_python(server: PostgresServer) -> None:
    """A job must not depend on the language of its submitter."""
    async with opened(server) as store:
        id_ = await value(server, f"SELECT {store.address.schema}.submit_job('count')")
        job = await store.reads.job(JobId(id_))
        assert job is not None
        assert (job.kind, job.payload, job.queue, job.tenant) == ("count", "{}", "default", "default")
        assert (job.priority, job.attempts_max, job.lease_us, job.timeout_us) == (0, 5, 15 * SECOND_US, None)
        assert (job.cursor, job.shard_key, job.state) == (None, None, State.PENDING)
        assert await counts(store) == {"ready": 1}


async def test_every_option_is_stored(server: PostgresServer) -> None:
    """The parameters are mapped by hand."""
    async with opened(server) as store:
        options = (
            "'count', '{\"n\": 1}', queue => 'q', tenant => 't', priority => -7, attempts => 3, lease => '1 minute', "
            "timeout => '1.5 seconds', delay => '1 hour', key => 'k', shard_key => 's', cursor => '[1]', id => 'me', "
            "needs => 'maps'"
        )
        assert await value(server, f"SELECT {store.address.schema}.submit_job({options})") == "me"
        job = await store.reads.job(JobId("me"))
        assert job is not None
        assert (job.queue, job.tenant, job.priority, job.attempts_max) == ("q", "t", -7, 3)
        assert (job.lease_us, job.timeout_us) == (60 * SECOND_US, 1_500_000)
        assert (job.shard_key, job.cursor, job.payload) == ("s", "[1]", '{"n": 1}')
        assert job.run_at == job.created_at + 3_600 * SECOND_US
        assert job.needs == "maps"
        assert await counts(store, "q", "t", "maps") == {"scheduled": 1}


async def test_a_rollback_leaves_no_job_and_no_count(server: PostgresServer) -> None:
    """This includes the lane that only this submission would have created."""
    async with opened(server) as store, connected(server) as connection:
        transaction = connection.transaction()
        await transaction.start()
        sql = f"SELECT {store.address.schema}.submit_job('count', key => 'k', tenant => 'new')"
        await connection.fetchval(sql)
        await transaction.rollback()
        assert await ids_in(store) == []
        assert await store.reads.lanes() == await recounted(store) == []
        assert await connection.fetchval(sql) in await ids_in(store), "the key must be free again"


async def test_a_repeated_key_returns_the_first_job_and_a_conflict_fails(server: PostgresServer) -> None:
    """The order of the fields in a payload has no meaning."""
    async with opened(server) as store, connected(server) as connection:
        submit = f"SELECT {store.address.schema}.submit_job($1, $2::text::json, key => 'k')"
        first = await connection.fetchval(submit, "count", '{"a": 1, "b": 2}')
        assert await connection.fetchval(submit, "count", '{"b": 2,"a":1}') == first
        for kind, payload in (("count", '{"a": 1}'), ("recount", '{"a": 1, "b": 2}')):
            with pytest.raises(asyncpg.PostgresError, match="use a new key for a new job") as caught:
                await connection.fetchval(submit, kind, payload)
            assert caught.value.sqlstate == "LW001"
        assert await ids_in(store) == [first]


async def test_a_job_submitted_by_sql_runs_in_a_python_worker(server: PostgresServer) -> None:
    """Both sides must agree on the format of payloads and ids."""
    app, _, greeted = greeter(server)
    async with app:
        schema = (await store_of(app)).address.schema
        id_ = await value(server, f"""SELECT {schema}.submit_job('greet', '{{"name": "ada"}}')""")
        await app.run_worker(until_empty=True)
        job = await app.find(id_)
        assert job is not None
        assert (job.state, job.result, greeted) == (State.DONE, "hello ada", ["ada"])


def greeter(server: PostgresServer) -> tuple[App, Any, list[str]]:
    app, greeted = App(address(server, new_name())), list[str]()

    @app.job
    async def greet(name: str, times: int = 1) -> str:
        greeted.append(name)
        return f"hello {name}"

    return app, greet, greeted


async def store_of(app: App) -> PostgresStore:
    store = await app.store()
    assert isinstance(store, PostgresStore)
    return store


async def test_ids_have_the_format_of_python(server: PostgresServer) -> None:
    """26 characters of the same alphabet that sort by time: both kinds are listed together."""
    async with opened(server) as store:
        async with connected(server, server_settings={"search_path": store.address.schema}) as connection:
            ids: list[str] = await connection.fetchval(
                "SELECT array_agg(new_job_id() ORDER BY n) FROM generate_series(1, 2000) AS n"
            )
        assert len(set(ids)) == 2_000
        assert {len(id_) for id_ in ids} == {26}
        assert set("".join(ids)) <= set(ALPHABET)
        prefixes = [id_[:10] for id_ in ids]
        assert prefixes == sorted(prefixes)
        for place in range(10, 26):
            assert len({id_[place] for id_ in ids}) == 32, f"character {place} is not by chance"


async def test_many_sessions_submit_at_once(server: PostgresServer) -> None:
    """The first ones create the lane together."""
    async with opened(server) as store:
        sql = f"SELECT {store.address.schema}.submit_job('count', key => $1)"
        ids = await asyncio.gather(*(value(server, sql, str(n % 10)) for n in range(30)))
        assert len(set(ids)) == 10
        assert await counts(store) == {"ready": 10}
        assert len(await ContractWorker(store).claim(20)) == 10
