"""Invalid addresses are reported at once, with the cause and without the password."""

import builtins
import socket
import ssl
import sys
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from tests.stores.postgres_support import address, error_of, new_role, opened

from leaseway.app import App
from leaseway.domain.errors import BadValue, LeasewayError, StoreRefused, TransientError
from leaseway.domain.redact import redact_url
from leaseway.stores.postgres import connection as connection_module
from leaseway.stores.postgres.address import parse_address
from leaseway.stores.postgres.errors import translate_connect
from leaseway.stores.postgres.store import PostgresStore
from leaseway.testing.postgres import PostgresServer
from leaseway.testing.server import free_port
from leaseway.wiring import store_at

SECRET = "hush-hush"


@pytest.mark.parametrize(
    ("words", "field"),
    [
        ("schema=", "schema"),
        ("schema=Jobs", "schema"),
        ("schema=a-b", "schema"),
        ("schema=1st", "schema"),
        ("schema=pg_jobs", "schema"),
        ("schema=a.b", "schema"),
        ("schema=x;drop%20schema%20public", "schema"),
        ("schema=" + "x" * 64, "schema"),
        ("pool=0", "pool"),
        ("pool=-1", "pool"),
        ("pool=many", "pool"),
        ("pool=", "pool"),
        ("pool=1001", "pool"),
        ("pool=²", "pool"),
        ("pooler=", "pooler"),
        ("pooler=statement", "pooler"),
    ],
)
def test_an_invalid_option_is_named(words: str, field: str) -> None:
    """A mistyped schema must not become another, empty one."""
    with pytest.raises(BadValue, match=f"^{field}: must") as caught:
        PostgresStore(f"postgresql://ada:{SECRET}@host/db?{words}")
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://ada:{SECRET}@host:port/db",
        f"postgresql://ada:{SECRET}@host:99999/db",
        f"postgresql://ada:{SECRET}@host:-1/db",
        f"postgresql://ada:{SECRET}@[::1/db",
    ],
)
def test_an_invalid_port_or_host_is_refused_before_connecting(url: str) -> None:
    """The cause is in the URL and not in the network."""
    with pytest.raises(StoreRefused, match="is not a valid URL: ") as caught:
        PostgresStore(url)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ada:{}@host/db",
        "postgresql://:{}@host/db",
        "postgresql://ada:{}@host:5432",
        "postgresql://ada:a@{}@host/db",
        "postgresql://ada:a:{}@host/db",
        "postgresql://ada:a/{}@host/db",
        "postgresql://ada:a?{}@host/db",
        "postgresql://ada:a#{}@host/db",
        "postgresql://ada@host/db?password={}",
        "postgresql://ada@host/db?schema=x&password={}&pool=2",
        "postgresql://ada:a%2F{}@host/db",
    ],
)
def test_a_password_is_never_shown_wherever_it_stands(url: str) -> None:
    """Error messages go to logs and screens, also if a / in the password was not quoted."""
    text = url.format(SECRET)
    try:
        shown = parse_address(text).shown
    except LeasewayError as error:
        shown = str(error)
    assert SECRET not in shown
    assert SECRET not in redact_url(text)


def test_an_unquoted_slash_in_a_password_does_not_show_the_part_before_it() -> None:
    """The parser takes that part for a port and repeats it in its message."""
    with pytest.raises(StoreRefused) as caught:
        PostgresStore(f"postgresql://ada:{SECRET}/more@host/db")
    assert SECRET not in str(caught.value)


async def test_a_refused_connection_is_reported() -> None:
    """The most common error: the server is not running, or runs elsewhere."""
    port = free_port()
    error = await error_of(PostgresStore(f"postgresql://ada:{SECRET}@127.0.0.1:{port}/db").open())
    assert isinstance(error, TransientError)
    assert f"127.0.0.1:{port}" in str(error)
    assert "check that PostgreSQL is running" in str(error)
    assert SECRET not in str(error)


async def test_an_unknown_host_is_named() -> None:
    """A typing error in the host must be visible in the message."""
    error = await error_of(PostgresStore(f"postgresql://ada:{SECRET}@no-such-host.invalid/db").open())
    assert isinstance(error, TransientError)
    assert "no-such-host.invalid" in str(error)
    assert "check host and port" in str(error)
    assert SECRET not in str(error)


async def test_an_address_without_a_host_raises_an_error_of_leaseway(monkeypatch: pytest.MonkeyPatch) -> None:
    """It means this machine; a failure must not be a bare error of the driver."""
    monkeypatch.setenv("PGPORT", str(free_port()))
    monkeypatch.delenv("PGHOST", raising=False)
    error = await error_of(PostgresStore("postgresql:///db").open())
    assert isinstance(error, TransientError)
    assert "host" in str(error)


async def test_an_invalid_option_of_the_driver_is_refused() -> None:
    """The driver raises a ValueError, which is not an error of leaseway."""
    error = await error_of(PostgresStore("postgresql://ada@127.0.0.1/db?sslmode=perhaps").open())
    assert isinstance(error, StoreRefused)
    assert "sslmode" in str(error)


def test_without_the_driver_the_extra_to_install_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """leaseway alone does not install asyncpg; new users of PostgreSQL meet this error first."""
    real = builtins.__import__

    def without_asyncpg(name: str, *rest: Any, **more: Any) -> Any:
        if name.partition(".")[0] == "asyncpg":
            raise ModuleNotFoundError("No module named 'asyncpg'", name="asyncpg")
        return real(name, *rest, **more)

    for name in [name for name in sys.modules if name.startswith("leaseway.stores.postgres")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", without_asyncpg)
    with pytest.raises(StoreRefused, match=r"pip install 'leaseway\[postgres\]'"):
        store_at("postgresql://ada@host/db")


def test_the_error_of_a_refused_move_does_not_show_the_password() -> None:
    """`move` names both addresses."""
    app = App("memory://")
    app._is_open = True
    with pytest.raises(LeasewayError) as caught:
        app.move(f"postgresql://ada:{SECRET}@host/db")
    assert SECRET not in str(caught.value)


async def test_of_several_hosts_the_primary_is_found(server: PostgresServer) -> None:
    """A failover must not require a change of the URL."""
    hosts = f"127.0.0.1:{free_port()},127.0.0.1:{server.port}"
    store = PostgresStore(f"postgresql://postgres@{hosts}/postgres?target_session_attrs=read-write")
    await store.open()
    assert await store.reads.now() > 0
    await store.close()


async def test_a_host_that_does_not_answer_leaves_time_for_the_others(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that is gone neither accepts nor refuses connections."""
    monkeypatch.setattr(connection_module, "CONNECT_SECONDS_MAX", 3.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hosts = f"127.0.0.1:{silent.getsockname()[1]},127.0.0.1:{server.port}"
        store = PostgresStore(f"postgresql://postgres@{hosts}/postgres?target_session_attrs=read-write")
        await store.open()
        assert await store.reads.now() > 0
        await store.close()


async def test_without_a_primary_the_error_is_transient(server: PostgresServer) -> None:
    """During a failover no server accepts writes; workers must retry and not stop."""
    role = await new_role(server, "ALTER ROLE {0} SET default_transaction_read_only = on")
    error = await error_of(PostgresStore(address(server, "any", role, target_session_attrs="read-write")).open())
    assert isinstance(error, TransientError)
    assert "no server is read-write now" in str(error)


def test_an_unknown_target_session_attrs_is_named() -> None:
    """The driver would ignore it or fail later."""
    with pytest.raises(BadValue, match=r"target_session_attrs: must be one of any, primary.*\(is 'foo'\)"):
        parse_address("postgresql://host/db?target_session_attrs=foo")


async def test_an_application_name_in_the_address_is_used(server: PostgresServer) -> None:
    """Administrators find sessions by it."""
    async with opened(server) as store, opened(server, application_name="mine") as named:
        assert await store.connections.call("SHOW application_name") == [("leaseway",)]
        assert await named.connections.call("SHOW application_name") == [("mine",)]


async def test_startup_parameters_contain_nothing_that_poolers_refuse(server: PostgresServer) -> None:
    """PgBouncer refuses `default_transaction_isolation` at startup, but accepts it later."""
    sql = "SELECT name FROM pg_settings WHERE source = 'client' AND name LIKE 'default%'"
    async with opened(server) as store:
        assert await store.connections.call(sql) == []
        assert await store.connections.call("SHOW default_transaction_isolation") == [("read committed",)]


async def test_both_ends_of_a_connection_notice_that_the_other_has_vanished(server: PostgresServer) -> None:
    """With the system's defaults, a server keeps the sessions and locks of a machine that is gone for two hours, and a
    worker waits as long for notifications of a server that is gone."""
    sql = "SELECT name, setting::integer FROM pg_settings WHERE name LIKE 'tcp%' OR name = $1"
    async with opened(server) as store, store.connections.borrow() as connection:
        session = dict(await connection.fetch(sql, "client_connection_check_interval"))
        own = connection._transport.get_extra_info("socket")
        assert own.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        client = [own.getsockopt(socket.IPPROTO_TCP, option) for option in (
            socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)]  # fmt: skip
    assert session == {
        "tcp_keepalives_idle": 15, "tcp_keepalives_interval": 5, "tcp_keepalives_count": 3, "tcp_user_timeout": 20_000,
        "client_connection_check_interval": 5_000,
    }  # fmt: skip
    assert client == [15, 5, 3, 20_000]


async def test_behind_a_pooler_the_settings_end_with_the_transaction(server: PostgresServer) -> None:
    """The session belongs to other programs as well."""
    sql = "SELECT current_setting('idle_in_transaction_session_timeout'), current_setting('tcp_user_timeout')"
    async with opened(server, pooler="transaction", pool="1") as store:
        assert await store.connections.call(sql) == [("2s", "20000")]
        async with store.connections.borrow() as connection:
            assert await connection.fetch(sql) == [("0", "0")]


# -- TLS --------------------------------------------------------------------------------------------------------------


async def test_a_server_without_tls_is_reported_as_such(server: PostgresServer) -> None:
    """Host and port are right; checking them would mislead."""
    error = await error_of(PostgresStore(f"{server.url}?sslmode=require").open())
    assert isinstance(error, StoreRefused)
    assert "the server does not support TLS" in str(error)
    assert "sslmode=prefer" in str(error)


async def test_a_missing_certificate_file_is_named(server: PostgresServer, tmp_path: Path) -> None:
    """The error of the driver does not name the file."""
    error = await error_of(PostgresStore(f"{server.url}?sslmode=verify-full&sslrootcert={tmp_path}/nope.crt").open())
    assert isinstance(error, StoreRefused)
    assert "sslrootcert: file " in str(error)
    assert "nope.crt" in str(error)


def test_an_untrusted_certificate_is_not_a_connection_error() -> None:
    """A retry cannot succeed; the certificate of the authority is missing."""
    untrusted = ssl.SSLCertVerificationError(1, "certificate verify failed")
    untrusted.verify_message = "self-signed certificate"
    error = translate_connect(untrusted, parse_address("postgresql://host/db?sslmode=verify-full"))
    assert isinstance(error, StoreRefused)
    assert "not trusted (self-signed certificate); set the certificate of its authority: sslrootcert=FILE" in str(error)


def test_an_option_that_a_pooler_refuses_is_named() -> None:
    """PgBouncer accepts few startup parameters."""
    refused = asyncpg.ProtocolViolationError("unsupported startup parameter: geqo")
    error = translate_connect(refused, parse_address("postgresql://host/db?geqo=off"))
    assert isinstance(error, StoreRefused)
    assert "unsupported startup parameter: geqo; remove this option from the URL" in str(error)


@pytest.mark.parametrize(
    "broken",
    [
        asyncpg.InternalClientError("cannot switch to state 15; another operation (2) is in progress"),
        asyncpg.InterfaceError("connection is closed"),
        asyncpg.InterfaceError("cannot perform operation: connection is closed"),
    ],
    ids=str,
)
def test_a_connection_that_breaks_while_it_is_opened_is_opened_again(broken: Exception) -> None:
    """The server or the network failed at that moment. A worker that takes it for a wrong URL exits."""
    error = translate_connect(broken, parse_address("postgresql://host/db"))
    assert isinstance(error, TransientError)
    assert "the connection broke while it was opened" in str(error)


@pytest.mark.parametrize(
    "wrong",
    [asyncpg.ClientConfigurationError("invalid port"), asyncpg.InterfaceError("unsupported authentication method")],
    ids=str,
)
def test_a_wrong_url_is_not_tried_again(wrong: Exception) -> None:
    """A worker that waits for it to become right hides the mistake."""
    assert isinstance(translate_connect(wrong, parse_address("postgresql://host/db")), StoreRefused)
