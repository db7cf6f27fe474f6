"""postgresql://user:password@host:port/database?schema=leaseway&pool=10&pooler=transaction

The address as libpq writes it, with three words of our own. Everything else goes to the driver and the server.
"""

import re
from typing import NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from leaseway.domain.errors import BadValue, StoreRefused, redact_url

SCHEMA = "leaseway"
POOL = 10
POOL_MAX = 1_000
SERVERS = ("any", "primary", "read-write", "standby", "read-only", "prefer-standby")
"""What `target_session_attrs` may say."""


class Address(NamedTuple):
    dsn: str
    """For the driver: without our own words."""
    shown: str
    """For people: without the password."""
    schema: str = SCHEMA
    pool: int = POOL
    """Connections that one event loop opens at most."""
    has_sessions: bool = True
    """False: a pooler lends a connection for one transaction at a time, so nothing may be left in it."""

    @property
    def quoted(self) -> str:
        """The schema's name as SQL takes it, even if it is one of SQL's own words."""
        return f'"{self.schema}"'

    @property
    def hosts(self) -> list[str]:
        """For the driver, one host each: one that is silent shall not use up the time of the others."""
        parts = urlsplit(self.dsn)
        user, at, hosts = parts.netloc.rpartition("@")
        return [urlunsplit(parts._replace(netloc=f"{user}{at}{host}")) for host in hosts.split(",")]

    @property
    def words(self) -> dict[str, str]:
        """What the address says to driver and server."""
        return dict(parse_qsl(urlsplit(self.dsn).query, keep_blank_values=True))


def address_of(url: str) -> Address:
    try:
        parts = urlsplit(url)
        _ = "," in parts.netloc or parts.port  # several hosts are read by the driver
    except ValueError as error:  # whose text may hold a part of the password
        raise StoreRefused(
            f"{redact_url(url)}: is not an address: the port must be a number, and in a password / ? # @ are "
            "written %2F %3F %23 %40"
        ) from error
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    schema = schema_of(given.pop("schema", SCHEMA))
    pool = pool_of(given.pop("pool", str(POOL)))
    pooler = given.pop("pooler", "session")
    if pooler not in ("session", "transaction"):
        raise BadValue("pooler", f"must be session or transaction (is {pooler!r})")
    if given.get("target_session_attrs", "any") not in SERVERS:
        raise BadValue(
            "target_session_attrs", f"must be one of {', '.join(SERVERS)} (is {given['target_session_attrs']!r})"
        )
    dsn = urlunsplit(parts._replace(query=urlencode(given)))
    return Address(dsn, redact_url(dsn), schema, pool, has_sessions=pooler == "session")


def schema_of(name: str) -> str:
    if not re.fullmatch(r"[a-z_][a-z0-9_]{0,53}", name) or name.startswith("pg_"):
        raise BadValue("schema", f"must be 1 to 54 small letters, digits or _, and not begin with pg_ (is {name!r})")
    return name


def pool_of(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= POOL_MAX:
        raise BadValue("pool", f"must be a number of connections in 1 … {POOL_MAX:,} (is {text!r})")
    return int(text)
