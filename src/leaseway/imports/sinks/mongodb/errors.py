"""Errors of the driver and the server ─► errors that say what happened, to what, and what to do next."""

from typing import Any

from pymongo import errors as driver

from leaseway.domain.errors import (
    LeasewayError,
    StoreBusy,
    StoreFull,
    StoreRefused,
    TerminalError,
    TransientError,
    UnknownOutcome,
)
from leaseway.imports.sinks.mongodb.address import Address

DUPLICATE_KEY = 11_000
WRITE_CONFLICT = 112
CONFLICTS = frozenset({DUPLICATE_KEY, WRITE_CONFLICT})

REFUSED = {
    13: "the user lacks permission; grant it the role readWrite on the database",
    18: "check user, password and authSource",
    8000: "check user, password and authSource",
    20: "the server does not support it; MongoDB 5.0 or newer is required",
    121: "the collection's validator rejects a row; change it, or choose another collection",
    166: "the collection is a view; choose another collection",
}
BUSY = {
    WRITE_CONFLICT: "transactions conflicted",
    DUPLICATE_KEY: "transactions conflicted",
    24: "another transaction holds a lock",
    46: "the collection is in use",
    50: "the server gave up after its time limit",
    251: "the server aborted the transaction",
}
FULL = 14_031


class WriteConflict(StoreBusy):
    """Another writer changed what was read. Nothing was written, and the work can be repeated."""


def translate_error(error: Exception, address: Address) -> LeasewayError:
    """The meaning of an error."""
    where, code = address.shown, error_code(error)
    if isinstance(error, driver.ServerSelectionTimeoutError):
        return TransientError(f"{where}: {unreachable(error)}")
    if isinstance(error, driver.NotPrimaryError):
        return StoreBusy(f"{where}: the server is no longer the primary; try again")
    if isinstance(error, (driver.WriteConcernError, driver.ConnectionFailure)):
        return UnknownOutcome(f"{where}: the reply was lost ({describe_error(error)}); the call may be repeated")
    if code == FULL:
        return StoreFull(f"{where}: the server's disk is full; nothing was written. Free some space and try again")
    if code in REFUSED:
        return StoreRefused(f"{where}: {describe_error(error)}; {REFUSED[code]}")
    if code in BUSY:
        return WriteConflict(f"{where}: {BUSY[code]}, and this one was aborted; try again")
    if isinstance(error, (driver.ConfigurationError, driver.InvalidURI, ValueError)):
        return StoreRefused(f"{where}: is not a valid URL ({describe_error(error)})")
    if getattr(error, "timeout", False):
        return UnknownOutcome(f"{where}: no reply in time; the call may be repeated")
    return TerminalError(f"{where}: {describe_error(error)} ({code or type(error).__name__})")


def unreachable(error: Exception) -> str:
    text = str(error)
    if "Connection refused" in text or "Connect call failed" in text:
        return "the connection was refused; check that MongoDB is running, and check host and port"
    if "No replica set members match" in text or "No primary" in text or "no primary" in text:
        return "no primary replies; check that one is elected and that its address can be reached from here"
    if "not known" in text or "nodename" in text or "getaddrinfo" in text:
        return "the host name cannot be resolved; check its spelling"
    return "no reply; check the host, and whether a firewall blocks the connection"


def error_code(error: Exception) -> int | None:
    """The code of a command, or of the first failed write."""
    if isinstance(error, driver.BulkWriteError):
        codes = error_codes(error)
        return next((code for code in codes if code not in CONFLICTS), codes[0] if codes else None)
    return error.code if isinstance(error, driver.OperationFailure) else None


def error_codes(error: driver.BulkWriteError) -> list[int]:
    details: Any = error.details
    return [int(each["code"]) for each in details.get("writeErrors", ())]


def describe_error(error: Exception) -> str:
    if isinstance(error, driver.BulkWriteError):
        details: Any = error.details
        texts = [str(each.get("errmsg", "")) for each in details.get("writeErrors", ())]
        return texts[0] if texts else "a write failed"
    return (str(error).partition(", full error:")[0].splitlines() or [type(error).__name__])[0]
