"""Every store keeps API keys and sessions in the same way."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest
from tests.sqlite_files import open_sqlite
from tests.stores.conftest import KEEPING, kept
from tests.stores.postgres_support import new_role, opened, value

from leaseway.domain.errors import StoreRefused
from leaseway.domain.identity import ApiKey
from leaseway.stores.keys import UnsupportedKeys, UnsupportedSessions
from leaseway.stores.memory import keys as memory_keys
from leaseway.stores.memory.store import MemoryStore
from leaseway.stores.mongodb import keys as mongodb_keys
from leaseway.stores.mongodb.store import MongoStore
from leaseway.stores.postgres import keys as postgres_keys
from leaseway.stores.postgres.store import PostgresStore
from leaseway.stores.sqlite import keys as sqlite_keys
from leaseway.stores.sqlite.store import SqliteStore
from leaseway.testing.clock import FakeClock
from leaseway.testing.key_store_contract import *  # noqa: F403
from leaseway.testing.key_store_contract import new_key, new_session
from leaseway.testing.postgres import PostgresServer

Stores = MemoryStore | SqliteStore | PostgresStore | MongoStore


@pytest.fixture(params=KEEPING)
async def key_store(request: pytest.FixtureRequest, clock: FakeClock, tmp_path: Path) -> AsyncIterator[Stores]:
    async with kept(request, clock, tmp_path) as store:
        if isinstance(store, PostgresStore):
            async with store.connections.transaction() as connection:
                schema = store.address.quoted
                await connection.execute(f"TRUNCATE {schema}.api_keys, {schema}.api_sessions")
        yield store


async def test_there_is_an_end_to_keys(key_store: Stores, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key beyond the limit could not be listed, and only a caller that knows its id could revoke it."""
    for module in (memory_keys, sqlite_keys, postgres_keys, mongodb_keys):
        monkeypatch.setattr(module, "KEYS_MAX", 2)
    for number in (1, 2, 1):
        await key_store.keys.add(new_key(number, clock))
    with pytest.raises(StoreRefused, match="the maximum"):
        await key_store.keys.add(new_key(3, clock))
    assert len(await key_store.keys.all()) == 2


async def test_many_who_use_and_revoke_keys_at_once_do_not_stop_each_other(
    server: PostgresServer, clock: FakeClock
) -> None:
    """Every process of the service writes the usage that it has seen, in any order."""
    async with opened(server) as store:
        keys = [new_key(number, clock) for number in range(30)]
        for key in keys:
            await store.keys.add(key)
        ids = [key.id for key in keys]
        await asyncio.gather(
            *(store.keys.touch(dict.fromkeys(order, at)) for at in range(1, 6) for order in (ids, ids[::-1])),
            *(store.keys.revoke(id_) for id_ in ids[::-3]),
        )
        assert {key.used_at for key in await store.keys.all()} == {5}


async def test_the_file_holds_no_secret(tmp_path: Path, clock: FakeClock) -> None:
    """A lost backup must not give access to anything."""
    store = SqliteStore(str(tmp_path / "work.db"), now_us=clock.now_us)
    await store.open()
    await store.keys.add(new_key(1, clock))
    await store.sessions.add(new_session(1, clock))
    await store.close()
    with open_sqlite(tmp_path / "work.db") as connection:
        dump = "\n".join(connection.iterdump())
    connection.close()
    assert new_key(1, clock).hash in dump
    assert "secret 1" not in dump
    assert "session 1" not in dump


@pytest.mark.parametrize("kind", ["reader", "submitter", "worker"])
async def test_roles_that_have_no_business_with_keys_learn_nothing_of_them(
    server: PostgresServer, clock: FakeClock, kind: str
) -> None:
    """A worker that runs third-party code must neither create a key nor read hashes."""
    async with opened(server) as owner:
        schema, role = owner.address.schema, await new_role(server)
        await value(server, f"SELECT {schema}.grant_{kind}($1)", role)
        await owner.keys.add(new_key(1, clock))
        for table in ("api_keys", "api_sessions"):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await value(server, f"SELECT * FROM {schema}.{table}", user=role)
        async with opened(server, schema, role) as store:
            for call in (
                store.keys.add(new_key(2, clock)),
                store.keys.find("key000000001"),
                store.keys.all(),
                store.keys.revoke("key000000001"),
                store.keys.expire("key000000001", 1),
                store.keys.touch({"key000000001": 1}),
                store.sessions.add(new_session(1, clock)),
                store.sessions.find("x"),
                store.sessions.end("x"),
            ):
                with pytest.raises(StoreRefused, match="permission denied"):
                    await call


async def test_an_operator_has_every_verb_of_keys(server: PostgresServer, clock: FakeClock) -> None:
    """The service runs with this role."""
    async with opened(server) as owner:
        schema, role = owner.address.schema, await new_role(server)
        await value(server, f"SELECT {schema}.grant_operator($1)", role)
        async with opened(server, schema, role) as store:
            await store.keys.add(new_key(1, clock))
            await store.keys.touch({"key000000001": 1})
            assert await store.keys.expire("key000000001", clock.now_us() + 1)
            assert await store.keys.revoke("key000000001")
            assert [key.id for key in await store.keys.all()] == ["key000000001"]
            assert isinstance(await store.keys.find("key000000001"), ApiKey)
            session = new_session(1, clock, seconds=10**9)
            await store.sessions.add(session)
            assert await store.sessions.find(session.hash) == session
            assert await store.sessions.end(session.hash)
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await value(server, f"SELECT * FROM {schema}.api_keys", user=role)


async def test_a_store_without_keys_says_where_they_are(clock: FakeClock) -> None:
    """Over HTTP, keys are created through routes; an AttributeError would not explain that."""
    keys, sessions = UnsupportedKeys(), UnsupportedSessions()
    for call in (
        keys.add(new_key(1, clock)),
        keys.find("x"),
        keys.all(),
        keys.revoke("x"),
        keys.expire("x", 1),
        keys.touch({}),
        sessions.add(new_session(1, clock)),
        sessions.find("x"),
        sessions.end("x"),
    ):
        with pytest.raises(StoreRefused, match="/v1/keys"):
            await call
