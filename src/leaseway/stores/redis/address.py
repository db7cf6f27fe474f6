"""redis://user:password@host:port/0?prefix=leaseway&pool=10, or rediss://, unix://, valkey:// and valkeys://

The address as redis-py reads it, with two words of our own.
"""

import re
from typing import NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from leaseway.domain.errors import BadValue, StoreRefused, redact_url

PREFIX = "leaseway"
POOL = 10
POOL_MAX = 1_000
SCHEMES = {"redis": "redis", "rediss": "rediss", "unix": "unix", "valkey": "redis", "valkeys": "rediss"}
DRIVER_WORDS = re.compile(r"ssl_[a-z_]+|db|password|username")
"""Query parameters that are passed to the driver. Others, such as its retries, are set by leaseway."""


class Address(NamedTuple):
    url: str
    """For the driver, without leaseway's own parameters."""
    shown: str
    """For messages, without the password."""
    prefix: str = PREFIX
    pool: int = POOL
    """The maximum number of connections per event loop."""

    def key(self, *parts: str) -> str:
        """All keys share one hash slot, because a script may only use keys of one server."""
        return ":".join((f"{{{self.prefix}}}", *parts))


def parse_address(url: str) -> Address:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:  # its text may contain a part of the password
        raise StoreRefused(
            f"{redact_url(url)}: is not an address: the port must be a number, and in a password / ? # @ are "
            "written %2F %3F %23 %40"
        ) from error
    if parts.scheme not in SCHEMES:
        raise StoreRefused(
            f"{redact_url(url)}: is not the URL of a Redis server; supported schemes: {', '.join(SCHEMES)}"
        )
    if parts.scheme != "unix" and not re.fullmatch(r"/?\d*", parts.path):
        raise StoreRefused(f"{redact_url(url)}: {parts.path} must be the number of a database, such as /0")
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    prefix = check_prefix(given.pop("prefix", PREFIX))
    pool = parse_pool(given.pop("pool", str(POOL)))
    for word in given:
        if not DRIVER_WORDS.fullmatch(word):
            raise BadValue(word, "is no word of this address; there are prefix, pool, db, username, password, ssl_…")
    driver_url = urlunsplit(parts._replace(scheme=SCHEMES[parts.scheme], query=urlencode(given)))
    return Address(driver_url, redact_url(driver_url), prefix, pool)


def check_prefix(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_.:-]{1,64}", name):
        raise BadValue("prefix", f"must be 1 to 64 letters, digits or _ . : - (is {name!r})")
    return name


def parse_pool(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= POOL_MAX:
        raise BadValue("pool", f"must be a number of connections in 1 … {POOL_MAX:,} (is {text!r})")
    return int(text)
