"""One DATABASE_URL for all libraries of a program: leaseway accepts the spellings of the others, and needs no parameter
in the URL that they would refuse."""

import asyncio
import os
import sys
from pathlib import Path

import asyncpg
import psycopg
import psycopg2
import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine
from tests.stores.postgres_support import Shop, new_name, value

from leaseway import App
from leaseway.domain.errors import BadValue, StoreRefused
from leaseway.domain.validators import in_schema, url_scheme
from leaseway.stores.postgres.address import parse_address
from leaseway.stores.postgres.store import PostgresStore
from leaseway.testing.postgres import PostgresServer
from leaseway.wiring import limiter_at, sqlite_path, store_at


@pytest.mark.parametrize(
    "scheme",
    ["postgresql", "postgres", "postgresql+asyncpg", "postgresql+psycopg", "postgresql+psycopg2", "postgres+asyncpg",
     "psql", "pgsql", "postgis"],
)  # fmt: skip
async def test_the_schemes_of_other_libraries_are_accepted(server: PostgresServer, scheme: str) -> None:
    """SQLAlchemy names the driver in the scheme; the parsers for Django have four names for PostgreSQL."""
    app = App(server.url.replace("postgresql", scheme), schema=new_name())

    @app.job
    async def ship(order: int) -> None: ...

    async with app:
        assert await app.find(await ship.submit(order=1)) is not None
        await app.run_worker(until_empty=True)
    limiter = limiter_at(app.url)
    await limiter.close()


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///work.db", "work.db"),
        ("sqlite:////var/lib/work.db", "/var/lib/work.db"),
        ("sqlite+aiosqlite:///work.db", "work.db"),
        ("sqlite+pysqlite:////var/lib/work.db?timeout=20&cache=shared", "/var/lib/work.db"),
        ("sqlite:///what?.db", "what?.db"),
    ],
)
def test_the_file_of_an_sqlite_url(url: str, path: str) -> None:
    """A file named `work.db?timeout=20` would silently be a second, empty store."""
    assert (url_scheme(url), sqlite_path(url)) == ("sqlite", path)


def test_a_scheme_with_a_plus_of_its_own_stays() -> None:
    """`mongodb+srv` is not MongoDB with a driver."""
    assert url_scheme("mongodb+srv://host/shop") == "mongodb+srv"
    with pytest.raises(StoreRefused, match=r"mysql\+asyncmy"):
        store_at("mysql+asyncmy://host/shop")


PARAMETERS = {
    "libpq": "connect_timeout=10&keepalives=1&keepalives_idle=30&gssencmode=prefer&channel_binding=prefer",
    "search path": "options=-csearch_path%3Dpublic",
    "SQLAlchemy": "prepared_statement_cache_size=0&ssl=prefer",
    "name": "application_name=shop",
}


@pytest.mark.parametrize("case", PARAMETERS)
async def test_parameters_for_other_drivers_do_no_harm(server: PostgresServer, case: str) -> None:
    """The server refuses a connection with a parameter that it does not know."""
    async with App(f"{server.url}?{PARAMETERS[case]}", schema=new_name()) as app:
        assert (await app.store()).transactional is not None


def test_ssl_of_sqlalchemy_is_sslmode() -> None:
    """A URL that asks for TLS must get it."""
    assert parse_address("postgresql+asyncpg://host/db?ssl=require").options == {"sslmode": "require"}


@pytest.mark.parametrize("demand", ["channel_binding=require", "gssencmode=require"])
def test_a_demand_that_the_driver_cannot_meet_is_refused(demand: str) -> None:
    """Ignoring it would be less secure than the URL says."""
    with pytest.raises(StoreRefused, match="sslmode=verify-full"):
        parse_address(f"postgresql://ada:hush-hush@host/db?{demand}")


# -- the schema -------------------------------------------------------------------------------------------------------


def schema_of_app(app: App) -> str:
    store = app.world.store
    assert isinstance(store, PostgresStore)
    return store.address.schema


URL = "postgresql://host/db"


def test_the_schema_has_three_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """The nearest one wins: the URL, then the code, then the environment."""
    assert schema_of_app(App(URL)) == "leaseway"
    monkeypatch.setenv("LEASEWAY_SCHEMA", "by_environment")
    assert schema_of_app(App(URL)) == "by_environment"
    assert schema_of_app(App(URL, schema="by_code")) == "by_code"
    assert schema_of_app(App(f"{URL}?pool=3&schema=by_url", schema="by_code")) == "by_url"


def test_moving_an_app_keeps_its_schema() -> None:
    """`leaseway work --store` names another server; the tables there have the same schema."""
    app = App(URL, schema="by_code")
    app.move("postgres://other/db")
    assert schema_of_app(app) == "by_code"
    app.move("postgres://other/db?schema=by_url")
    assert schema_of_app(app) == "by_url"


def test_stores_without_schemas_ignore_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs use SQLite in development and PostgreSQL in production, with the same code."""
    monkeypatch.setenv("LEASEWAY_SCHEMA", "jobs")
    assert App("memory://", schema="jobs").url == "memory://"
    assert in_schema("sqlite:///work.db", "jobs") == "sqlite:///work.db"


@pytest.mark.parametrize("by", ["code", "environment"])
def test_an_invalid_schema_is_named_at_once(by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mistyped schema must not become another, empty one."""
    if by == "environment":
        monkeypatch.setenv("LEASEWAY_SCHEMA", "Jobs")
    with pytest.raises(BadValue, match=r"^schema: must"):
        App(URL, schema="Jobs" if by == "code" else None)


async def test_one_url_for_leaseway_and_every_driver(server: PostgresServer, tmp_path: Path) -> None:
    """The URL that the program shares has no parameter of leaseway. The command line finds the schema, too."""
    shop = Shop(server)
    app, schema = App(server.url, schema=shop.schema), shop.schema
    async with app:
        await app.store()
    assert await value(server, "SELECT to_regnamespace($1)::text", schema) == schema
    await (await asyncpg.connect(server.url)).close()
    psycopg.connect(server.url).close()
    psycopg2.connect(server.url).close()
    for driver in ("psycopg", "psycopg2"):
        engine = create_engine(server.url.replace("postgresql", f"postgresql+{driver}"))
        engine.connect().close()
        engine.dispose()
    async_engine = create_async_engine(server.url.replace("postgresql", "postgresql+asyncpg"))
    await (await async_engine.connect()).close()
    await async_engine.dispose()
    variables = os.environ | {"LEASEWAY_STORE": server.url, "LEASEWAY_SCHEMA": schema}
    command = [sys.executable, "-m", "leaseway.cli", "lanes"]
    process = await asyncio.create_subprocess_exec(*command, cwd=tmp_path, env=variables)
    assert await process.wait() == 0
