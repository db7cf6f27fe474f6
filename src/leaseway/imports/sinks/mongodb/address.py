"""mongodb://user:password@host:27017/database?replicaSet=rs0: the driver's URL, with the database in the path."""

from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from leaseway.domain.errors import StoreRefused, redact_url


class Address(NamedTuple):
    url: str
    """For the driver."""
    shown: str
    """For messages: without the password."""
    database: str


def parse_address(url: str) -> Address:
    database = unquote(urlsplit(url).path.removeprefix("/"))
    if not database or any(character in database for character in '/\\. "$*<>:|?\0'):
        raise StoreRefused(
            f"{redact_url(url)}: does not contain a database; write it after the host: mongodb://host:27017/places"
        )
    return Address(url, redact_url(url), database)
