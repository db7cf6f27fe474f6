"""Translation of driver and server errors: what happened, to what, and what to do next."""

import redis.exceptions as driver

from leaseway.domain.errors import LeasewayError, StoreBusy, StoreFull, StoreRefused, TerminalError, TransientError
from leaseway.stores.redis.address import Address

REFUSED = {
    "NOAUTH": "give user and password in the address",
    "WRONGPASS": "check user and password",
    "NOPERM": "allow it: ACL SETUSER … ~{prefix}* +@connection +@read +@write +@scripting +info +time",
    "MOVED": "a cluster is not supported; name the address of a single primary",
    "CROSSSLOT": "a cluster is not supported; name the address of a single primary",
}
BUSY = {
    "LOADING": "the server is starting",
    "BUSY": "a script runs for too long there",
    "READONLY": "the server became a replica; perhaps another one is the primary now",
    "MASTERDOWN": "the server is a replica without a primary",
    "NOREPLICAS": "the server misses its replicas",
    "MISCONF": "the server cannot save to its disk",
    "TRYAGAIN": "the server moves keys",
    "CLUSTERDOWN": "the cluster is down",
}
KINDS = {
    driver.AuthenticationError: "WRONGPASS",
    driver.NoPermissionError: "NOPERM",
    driver.BusyLoadingError: "LOADING",
    driver.ReadOnlyError: "READONLY",
    driver.OutOfMemoryError: "OOM",
}
"""Errors whose code the driver removes from their text."""


def translate_error(error: Exception, address: Address) -> LeasewayError:
    """Translate an error. A lost reply is not an `UnknownOutcome`: repeating the call would acquire permits again."""
    where, code = address.shown, error_code(error)
    if code == "OOM":
        return StoreFull(f"{where}: the server has reached maxmemory; nothing was written. Raise maxmemory")
    if code in REFUSED:
        return StoreRefused(f"{where}: {describe_error(error)}; {REFUSED[code].replace('prefix', address.prefix)}")
    if code in BUSY:
        return StoreBusy(f"{where}: {describe_error(error)}; {BUSY[code]}. Nothing was written, try again")
    if isinstance(error, driver.ResponseError):
        return TerminalError(f"{where}: {describe_error(error)}")
    if isinstance(error, (driver.TimeoutError, TimeoutError)):
        return TransientError(f"{where}: no reply in time; permits that the call may have acquired count as used")
    if isinstance(error, (driver.ConnectionError, OSError)):
        return TransientError(f"{where}: {describe_error(error)}; check that the server runs, and host and port")
    return StoreRefused(f"{where}: cannot be used as an address ({describe_error(error)})")


def error_code(error: Exception) -> str:
    for kind, code in KINDS.items():
        if isinstance(error, kind):
            return code
    return str(error).partition(" ")[0] if isinstance(error, driver.ResponseError) else ""


def describe_error(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
