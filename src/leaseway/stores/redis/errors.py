"""What happened, to what, and what to do next: the errors of driver and server in our words."""

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
"""Errors from whose text the driver takes the code away."""


def translate_error(error: Exception, address: Address) -> LeasewayError:
    """The meaning of an error. Lost replies are no `UnknownOutcome`: repeating a call would take once more."""
    where, code = address.shown, error_code(error)
    if code == "OOM":
        return StoreFull(f"{where}: the server has reached maxmemory; nothing was written. Give it more")
    if code in REFUSED:
        return StoreRefused(f"{where}: {describe_error(error)}; {REFUSED[code].replace('prefix', address.prefix)}")
    if code in BUSY:
        return StoreBusy(f"{where}: {describe_error(error)}; {BUSY[code]}. Nothing was written, try again")
    if isinstance(error, driver.ResponseError):
        return TerminalError(f"{where}: {describe_error(error)}")
    if isinstance(error, (driver.TimeoutError, TimeoutError)):
        return TransientError(f"{where}: no answer in time; what the call may have taken counts as used")
    if isinstance(error, (driver.ConnectionError, OSError)):
        return TransientError(f"{where}: {describe_error(error)}; is it running, are host and port right?")
    return StoreRefused(f"{where}: cannot be used as an address ({describe_error(error)})")


def error_code(error: Exception) -> str:
    for kind, code in KINDS.items():
        if isinstance(error, kind):
            return code
    return str(error).partition(" ")[0] if isinstance(error, driver.ResponseError) else ""


def describe_error(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
