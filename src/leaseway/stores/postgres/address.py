"""postgresql://user:password@host:port/database?schema=leaseway&pool=10&pooler=transaction

A libpq URL with three options of leaseway: schema, pool and pooler. Options that only other drivers know are left out,
so that a program can give one URL to all of its libraries. All others go to the driver and the server.
"""

import os
import re
from typing import NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from leaseway.domain.errors import BadValue, StoreRefused
from leaseway.domain.redact import redact_url

SCHEMA = "leaseway"
POOL = 10
POOL_MAX = 1_000
SERVERS = ("any", "primary", "read-write", "standby", "read-only", "prefer-standby")
"""The values of `target_session_attrs`."""


IGNORED = frozenset({
    # of libpq
    "connect_timeout", "keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count", "tcp_user_timeout",
    "sslcompression", "sslsni", "load_balance_hosts", "fallback_application_name", "gssdelegation",
    # of SQLAlchemy with asyncpg
    "prepared_statement_cache_size", "statement_cache_size", "command_timeout", "timeout", "async_fallback",
})  # fmt: skip
"""Options for other drivers. leaseway has timeouts and keepalives of its own."""
UNAVAILABLE = ("channel_binding", "gssencmode")
"""Options of libpq that leaseway's driver does not have. They can be ignored unless the URL requires them."""


class Address(NamedTuple):
    dsn: str
    """For the driver, without leaseway's options."""
    shown: str
    """For messages, without the password."""
    schema: str = SCHEMA
    pool: int = POOL
    """The maximum number of connections of one event loop."""
    has_sessions: bool = True
    """False behind a pooler in transaction mode: no state may be left in a connection between two transactions."""

    @property
    def quoted(self) -> str:
        """The schema's name for SQL, quoted because it may be a keyword."""
        return f'"{self.schema}"'

    @property
    def hosts(self) -> list[str]:
        """One URL per host, so that a host that does not answer does not use up the timeout of the others."""
        parts = urlsplit(self.dsn)
        user, at, hosts = parts.netloc.rpartition("@")
        return [urlunsplit(parts._replace(netloc=f"{user}{at}{host}")) for host in hosts.split(",")]

    @property
    def options(self) -> dict[str, str]:
        """The options for the driver and the server."""
        return dict(parse_qsl(urlsplit(self.dsn).query, keep_blank_values=True))


def parse_address(url: str) -> Address:
    try:
        parts = urlsplit(url)
        _ = "," in parts.netloc or parts.port  # several hosts are parsed by the driver
    except ValueError as error:  # its text may contain a part of the password
        raise StoreRefused(
            f"{redact_url(url)}: is not a valid URL: the port must be a number, and / ? # @ in a password "
            "must be written as %2F %3F %23 %40"
        ) from error
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    schema = check_schema(given.pop("schema", os.environ.get("LEASEWAY_SCHEMA") or SCHEMA))
    pool = parse_pool(given.pop("pool", str(POOL)))
    pooler = given.pop("pooler", "session")
    if pooler not in ("session", "transaction"):
        raise BadValue("pooler", f"must be session or transaction (is {pooler!r})")
    if given.get("target_session_attrs", "any") not in SERVERS:
        raise BadValue(
            "target_session_attrs", f"must be one of {', '.join(SERVERS)} (is {given['target_session_attrs']!r})"
        )
    known = leave_out_unknown(given, redact_url(url))
    dsn = urlunsplit(parts._replace(scheme="postgresql", query=urlencode(known)))
    return Address(dsn, redact_url(dsn), schema, pool, has_sessions=pooler == "session")


def leave_out_unknown(given: dict[str, str], shown: str) -> dict[str, str]:
    """The options without those that only other drivers know."""
    for name in UNAVAILABLE:
        if given.pop(name, "prefer") not in ("disable", "allow", "prefer"):
            raise StoreRefused(
                f"{shown}: the driver does not support {name}; use sslmode=verify-full instead, with {name}=prefer"
            )
    if "ssl" in given:  # SQLAlchemy's name for it, with asyncpg
        given = {"sslmode": given["ssl"], **given}
        del given["ssl"]
    return {name: value for name, value in given.items() if name not in IGNORED}


def check_schema(name: str) -> str:
    if not re.fullmatch(r"[a-z_][a-z0-9_]{0,53}", name) or name.startswith("pg_"):
        raise BadValue(
            "schema", f"must be 1 to 54 lowercase letters, digits or _, and must not start with pg_ (is {name!r})"
        )
    return name


def parse_pool(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= POOL_MAX:
        raise BadValue("pool", f"must be a number of connections in 1 … {POOL_MAX:,} (is {text!r})")
    return int(text)
