"""The Host and Origin headers: which host names the service answers to, and which pages may change something.

A page of another site can make a browser send requests to this service: through a host name of its own that resolves to
this service (DNS rebinding), or from its own origin with the browser's cookies (CSRF). Both are visible in headers that
a page cannot set.
"""

import ipaddress
import re

from starlette.datastructures import Headers

from leaseway.api.errors import Problem
from leaseway.api.settings import ServiceSettings

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([a-z0-9._-]+))(?::\d{1,5})?")
OWN_SITES = frozenset({"same-origin", "none"})


class OriginChecks:
    def __init__(self, settings: ServiceSettings) -> None:
        self._names = LOOPBACK | {name.lower() for name in settings.hosts}
        # An IP address cannot be the result of DNS rebinding, and health probes use it.
        self._accepts_addresses = not is_loopback(settings.host)

    def check_host(self, headers: Headers) -> None:
        given = headers.getlist("host")
        if len(given) == 1 and self._is_own_host(host_name(given[0])):
            return
        named = repr(given[0][:100]) if given else "missing"
        raise Problem(
            421,
            "wrong_host",
            f"Host: {named} is not a host name of this service; add it with --allow-host",
        )

    def check_origin(self, headers: Headers) -> None:
        """For all requests that may change something. A page of another site cannot set the Authorization header."""
        if headers.get("authorization", "")[:7].lower() == "bearer ":
            return
        site, origin = headers.get("sec-fetch-site"), headers.get("origin")
        if site is not None and site not in OWN_SITES:
            raise foreign_origin(f"Sec-Fetch-Site: {site[:40]}")
        if origin is not None and not self._is_own_origin(origin, headers.get("host", "")):
            raise foreign_origin(f"Origin: {origin[:100]}")

    def _is_own_origin(self, origin: str, host: str) -> bool:
        scheme, found, rest = origin.lower().partition("://")
        return scheme in ("http", "https") and bool(found) and without_port(rest, scheme) == without_port(host, scheme)

    def _is_own_host(self, name: str) -> bool:
        return name in self._names or (self._accepts_addresses and is_address(name))


def foreign_origin(what: str) -> Problem:
    return Problem(403, "foreign_origin", f"{what}: pages of other sites must not change or follow anything here")


def host_name(host: str) -> str:
    """Without the port; [::1]:8420 becomes ::1. Empty: not a valid host."""
    found = HOST.fullmatch(host.lower())
    return "" if found is None else found[1] or found[2]


def without_port(host: str, scheme: str) -> str:
    """As browsers write it: without the default port of the scheme."""
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
