"""The URL of a service, and the API key with which the client authenticates."""

import os
import re
from ipaddress import ip_address
from typing import NamedTuple
from urllib.parse import urlsplit

from leaseway.domain.api_key import parse_key_text
from leaseway.domain.errors import StoreRefused, redact_url

KEY_VARIABLE = "LEASEWAY_KEY"
INSECURE_VARIABLE = "LEASEWAY_INSECURE"
KEY_FORM = re.compile(r"[\x21-\x7e]{1,8192}")
"""An API key, or a JWT of an issuer that the service trusts."""


class Address(NamedTuple):
    url: str
    """Without a trailing slash."""
    key: str | None
    is_local: bool
    """On the loopback interface."""

    def __repr__(self) -> str:
        """Without the key, which must not appear in logs."""
        return f"Address({self.url!r})"


def parse_address(url: str, key: str | None = None) -> Address:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise StoreRefused(f"{redact_url(url)!r} is not the URL of a service ({error})") from error
    if not host or parts.query or parts.fragment:
        raise StoreRefused(f"{redact_url(url)!r} is not the URL of a service; example: https://leaseway.example")
    if parts.username is not None or parts.password is not None:
        raise StoreRefused(f"the key must not be part of the URL; pass key= to App, or set {KEY_VARIABLE}")
    is_local = is_loopback(host)
    if parts.scheme == "http" and not is_local and os.environ.get(INSECURE_VARIABLE) != "1":
        raise StoreRefused(
            f"{redact_url(url)} would send the key and jobs unencrypted; use https://, or in a trusted network "
            f"set {INSECURE_VARIABLE}=1"
        )
    return Address(url.rstrip("/"), checked(key or os.environ.get(KEY_VARIABLE) or None), is_local)


def is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def checked(key: str | None) -> str | None:
    if key is not None and (not KEY_FORM.fullmatch(key) or (key.startswith("lw_") and parse_key_text(key) is None)):
        raise StoreRefused("this is not an API key; keys look like lw_… (leaseway keys create prints one)")
    return key
