"""Translates errors of PyMongo and of the server into errors of leaseway: what happened, to what, what to do next."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote, urlsplit

import msgspec
from bson.errors import BSONError
from pymongo import errors as driver

from leaseway.domain.errors import (
    LeasewayError,
    StoreBusy,
    StoreFull,
    StoreRefused,
    TerminalError,
    TransientError,
    UnknownOutcome,
    UsageError,
)
from leaseway.domain.redact import redact_url

T = TypeVar("T")


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
            f"{redact_url(url)}: does not contain a database; write it after the host: mongodb://host:27017/leaseway"
        )
    return Address(url, redact_url(url), database)


DUPLICATE_KEY = 11_000
WRITE_CONFLICT = 112
CONFLICTS = frozenset({DUPLICATE_KEY, WRITE_CONFLICT})
NAMESPACE_EXISTS = 48
UNAUTHORIZED = 13
INVALID = 121

REFUSED = {
    UNAUTHORIZED: "the user lacks permission; grant it the role readWrite on the database",
    18: "check user, password and authSource",
    8000: "check user, password and authSource",
    20: "the server does not support it; MongoDB 5.0 or newer is required",
    85: "an index of the same name has other options; drop it, or use another database",
    86: "an index of the same name has other fields; drop it, or use another database",
    INVALID: "the collection's validator rejects a row; change it, or choose another collection",
    166: "the collection is a view; use another name",
}
BUSY = {
    WRITE_CONFLICT: "transactions conflicted",
    DUPLICATE_KEY: "transactions conflicted",
    24: "another transaction holds a lock",
    46: "the collection is in use",
    50: "the server gave up after its time limit",
    251: "the server aborted the transaction",
}
ELECTING = frozenset(
    {6, 7, 43, 89, 91, 133, 134, 175, 189, 202, 211, 237, 239, 246, 262, 290, 317, 365, 9_001, 10_058, 10_107, 11_600}
    | {11_601, 11_602, 13_435, 13_436}
)
"""What a server answers while it starts, stops, recovers, or changes its role: https://github.com/mongodb/mongo,
src/mongo/base/error_codes.yml. No such operation was executed."""
FULL = 14_031
FULL_TEXTS = ("No space left on device", "Disk quota exceeded")
"""The system's words. MongoDB finds out during a write what code 14031 says before it, and then has no code for it."""
TOO_LARGE = 10_334
NO_SESSIONS = "Sessions are not supported"
"""The driver's words. Every server that leaseway supports has sessions."""


class WriteConflict(StoreBusy):
    """Another writer changed what was read, or the server changed its role. Nothing was written, and the work can be
    repeated."""


class DocumentRefused(StoreRefused):
    """The collection's validator refuses a document, for example because another program has damaged it."""


class NoSessions(WriteConflict):
    """The connection was opened to a member that had no role yet. The driver asks for the role once, and never allows
    transactions on this connection."""


def translate_error(error: Exception, address: Address) -> LeasewayError:
    """The meaning of an error."""
    where, code = address.shown, error_code(error)
    if isinstance(error, driver.ServerSelectionTimeoutError):
        return TransientError(f"{where}: {unreachable(error)}")
    if isinstance(error, driver.NotPrimaryError):
        return WriteConflict(f"{where}: the server is no longer the primary; try again")
    if isinstance(error, driver.WaitQueueTimeoutError):
        return WriteConflict(f"{where}: no connection was free in time; nothing was sent, try again")
    if isinstance(error, (driver.WriteConcernError, driver.ConnectionFailure)):
        return UnknownOutcome(f"{where}: the reply was lost ({describe_error(error)}); the call may be repeated")
    if is_full(error):
        return StoreFull(f"{where}: the server's disk is full; nothing was written. Free some space and try again")
    if code in REFUSED:
        kind = DocumentRefused if code == INVALID else StoreRefused
        return kind(f"{where}: {describe_error(error)}; {REFUSED[code]}")
    if code in BUSY:
        return WriteConflict(f"{where}: {BUSY[code]}, and this one was aborted; try again")
    if code in ELECTING:
        return WriteConflict(
            f"{where}: a member starts, stops or changes its role ({describe_error(error)}); nothing was written, try "
            "again"
        )
    if isinstance(error, driver.DocumentTooLarge) or code == TOO_LARGE:
        return UsageError(f"{where}: a document is larger than MongoDB stores ({describe_error(error)})")
    if isinstance(error, (UnicodeError, BSONError, OverflowError)):
        return UsageError(f"{where}: a value cannot be stored ({describe_error(error)})")
    if isinstance(error, driver.ConfigurationError) and NO_SESSIONS in str(error):
        return NoSessions(f"{where}: a member had no role yet; nothing was sent, try again")
    if isinstance(error, (driver.ConfigurationError, driver.InvalidURI, ValueError)):
        return StoreRefused(f"{where}: is not a valid URL ({describe_error(error)})")
    if getattr(error, "timeout", False):
        return UnknownOutcome(f"{where}: no reply in time; the call may be repeated")
    return TerminalError(f"{where}: {describe_error(error)} ({code or type(error).__name__})")


def is_full(error: Exception) -> bool:
    if not isinstance(error, driver.OperationFailure):
        return False
    return error_code(error) == FULL or any(text in describe_error(error) for text in FULL_TEXTS)


def unreachable(error: Exception) -> str:
    text = str(error)
    if "No replica set members available for replica set name" in text:
        return "no server there belongs to the replica set that the URL names; check replicaSet, and the hosts"
    if "RSGhost" in text:
        return "the server was started with --replSet, but its set does not exist; call rs.initiate() once in a shell"
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
    text = (str(error).partition(", full error:")[0].splitlines() or [type(error).__name__])[0]
    return NOT_AUTHORIZED.sub(r"not authorized on \1 to execute \2 on \3", text)


NOT_AUTHORIZED = re.compile(r'not authorized on (\S+) to execute command \{ (\w+): "?([^",]*).*')
"""The server adds the whole command."""


def parse_document(collection: str, document: Mapping[str, Any], type: type[T]) -> T:
    """A document as a value. The driver's own numbers of 64 bits, which cannot be sent over HTTP, become plain ones."""
    try:
        return msgspec.convert(document, type)
    except msgspec.ValidationError as error:
        raise StoreRefused(
            f"{collection}: the document {document['_id']!r} was changed by another program: {error}; restore it, or "
            "delete it"
        ) from error
