"""Which names we answer to, and from which pages browsers may change something.

A page of somebody else's can make a browser send us anything: by a name of its own that it has pointed at us (DNS
rebinding), or from its own origin with the browser's cookies (CSRF). Both show in headers that a page cannot choose.
"""

import ipaddress
import re

from starlette.datastructures import Headers

from leaseway.api.errors import Problem
from leaseway.api.settings import ServiceSettings

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([a-z0-9._-]+))(?::\d{1,5})?")
OWN_SITES = frozenset({"same-origin", "none"})


class Hosts:
    def __init__(self, settings: ServiceSettings) -> None:
        self._names = LOOPBACK | {name.lower() for name in settings.hosts}
        # An address in the place of a name cannot have been pointed at us by anybody; probes come that way.
        self._takes_addresses = not is_loopback(settings.host)

    def check_host(self, headers: Headers) -> None:
        given = headers.getlist("host")
        if len(given) == 1 and self._is_ours(name_of(given[0])):
            return
        named = repr(given[0][:100]) if given else "missing"
        raise Problem(
            421,
            "wrong_host",
            f"Host: {named} is none of our names; start the service with --allow-host to answer to it",
        )

    def check_origin(self, headers: Headers) -> None:
        """By an allow-list, for all methods that change something. A page of another site cannot send Authorization."""
        if headers.get("authorization", "")[:7].lower() == "bearer ":
            return
        site, origin = headers.get("sec-fetch-site"), headers.get("origin")
        if site is not None and site not in OWN_SITES:
            raise foreign(f"Sec-Fetch-Site: {site[:40]}")
        if origin is not None and not self._is_own(origin, headers.get("host", "")):
            raise foreign(f"Origin: {origin[:100]}")

    def _is_own(self, origin: str, host: str) -> bool:
        scheme, found, rest = origin.lower().partition("://")
        return scheme in ("http", "https") and bool(found) and without_port(rest, scheme) == without_port(host, scheme)

    def _is_ours(self, name: str) -> bool:
        return name in self._names or (self._takes_addresses and is_address(name))


def foreign(what: str) -> Problem:
    return Problem(403, "foreign_origin", f"{what}: pages of other sites may neither change nor follow anything here")


def name_of(host: str) -> str:
    """Without the port; [::1]:8420 is ::1. Empty: it is no host at all."""
    found = HOST.fullmatch(host.lower())
    return "" if found is None else found[1] or found[2]


def without_port(host: str, scheme: str) -> str:
    """As browsers write it: the port that the scheme means is left out."""
    return host.lower().removesuffix(":443" if scheme == "https" else ":80")


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
