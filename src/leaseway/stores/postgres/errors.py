"""What happened, to what, and what to do next: the server's error codes in our words."""

import ssl
from pathlib import Path

import asyncpg

from leaseway.domain.errors import (
    BadValue,
    KeyConflict,
    LeasewayError,
    Stale,
    StoreBusy,
    StoreFull,
    StoreRefused,
    TerminalError,
    TransientError,
    UnknownLimit,
    UnknownOutcome,
    UsageError,
)
from leaseway.stores.postgres.address import Address

KEY_CONFLICT = "LW001"
BAD_VALUE = "LW002"
UNKNOWN_LIMIT = "LW003"
STALE = "LW004"
OWN_CODES = (KEY_CONFLICT, BAD_VALUE, UNKNOWN_LIMIT, STALE)
"""Raised by our own functions."""

REFUSED = {
    "28": "check user and password",
    "3D": "create the database first, or name another one",
    "3F": "create it: leaseway migrate",
    "42P01": "the schema is missing or older than this leaseway: leaseway migrate",
    "42883": "the schema is missing or older than this leaseway: leaseway migrate",
    "42703": "the schema is older than this leaseway: leaseway migrate",
    "42501": "ask the owner of the schema for the rights: see docs/guides/postgresql.md",
    "42704": "a word in the address is unknown to the server; our own are schema, pool and pooler",
    "0A": "this server cannot do it; PostgreSQL 14 or newer is needed",
    "26000": "does a pooler lend connections by the transaction? Then say so: ?pooler=transaction",
    "42P05": "does a pooler lend connections by the transaction? Then say so: ?pooler=transaction",
}
UNWRITABLE = ("22000", "22021", "22P05")
"""The driver, or the server, cannot put this text into its words."""
BUSY = {
    "40001": "transactions were in each other's way",
    "55P03": "another transaction holds a lock",
    "57014": "the statement was cancelled or took too long",
    "53300": "the server has no connection left",
    "57P03": "the server is starting or stopping",
    "25006": "it is a replica, or no longer the primary: name the primary, or all hosts with "
    "target_session_attrs=read-write",
}
BEFORE_ANY_COMMIT = ("22", "23", "25", "53300", "57P03")
"""Values that do not fit, a server that takes no writes or no sessions: nothing has been written."""
LOST = ("08", "57P01", "57P02", "57P04", "57P05")
"""The connection ended. What was on its way may have happened."""


class Deadlocked(StoreBusy):
    """Two transactions waited for each other, and ours gave way."""


def translated(error: Exception, address: Address) -> LeasewayError:
    """The meaning of an error that a statement met."""
    where, code = address.shown, getattr(error, "sqlstate", None) or ""
    if code == KEY_CONFLICT:
        return KeyConflict(described(error))
    if code == BAD_VALUE:
        field, _, text = described(error).partition(": ")
        return BadValue(field, text)
    if code == UNKNOWN_LIMIT:
        return UnknownLimit(f"{described(error)}: nobody has defined a limit of this name; declare it first")
    if code == STALE:
        return Stale(f"{described(error)} is at version {getattr(error, 'detail', '?')} by now; look at it again")
    if not isinstance(error, asyncpg.PostgresError) or code.startswith(LOST):
        return UnknownOutcome(f"{where}: the connection was lost ({described(error)}); the call may be repeated")
    if code == "40P01":
        return Deadlocked(f"{where}: two transactions waited for each other, and ours gave way; try again")
    if code == "53100":
        return StoreFull(f"{where}: the server's disk is full; nothing was written. Free some space and try again")
    for meanings, kind in ((REFUSED, StoreRefused), (BUSY, StoreBusy)):
        advice = meanings.get(code) or meanings.get(code[:2])
        if advice:
            return kind(f"{where}: {described(error)}; {advice}")
    if code in UNWRITABLE:
        return UsageError(f"{where}: a value holds NUL or bytes that are no text ({described(error)})")
    if code.startswith("53"):
        return TransientError(f"{where}: the server is short of something ({error}); nothing was written, try again")
    return TerminalError(f"{where}: {error} ({code})")


def may_be_stored(error: LeasewayError) -> bool:
    """After a call that commits on its way: what the server says may be about what came behind the commit."""
    code = getattr(error.__cause__, "sqlstate", None) or ""
    return bool(code) and not isinstance(error, UsageError) and not code.startswith(BEFORE_ANY_COMMIT)


def not_connected(error: Exception, address: Address) -> LeasewayError:
    """The meaning of an error before there was a connection: nothing has happened."""
    where = address.shown
    if isinstance(error, asyncpg.PostgresError):
        meaning = translated(error, address)
        if getattr(error, "sqlstate", "") == "08P01":
            return StoreRefused(f"{where}: {described(error)}; write the address without it")
        return TransientError(str(meaning)) if isinstance(meaning, UnknownOutcome) else meaning
    if isinstance(error, asyncpg.TargetServerAttributeNotMatched):
        wanted = address.words.get("target_session_attrs")
        return TransientError(f"{where}: none of the servers is {wanted} now; is one of them about to become it?")
    if isinstance(error, TimeoutError):
        return TransientError(f"{where}: no answer; is it the right host, and does a firewall let us through?")
    if isinstance(error, ConnectionRefusedError):
        return TransientError(f"{where}: nobody listens there; is PostgreSQL running, are host and port right?")
    if isinstance(error, OSError):
        return without_tls(error, address) or TransientError(
            f"{where}: cannot be reached ({described(error)}); check host and port"
        )
    return StoreRefused(f"{where}: cannot be used as an address ({described(error)})")


def without_tls(error: OSError, address: Address) -> StoreRefused | None:
    """Both sides must want it, and trust each other: no repetition changes that."""
    where = address.shown
    for word in ("sslrootcert", "sslcert", "sslkey", "sslcrl"):
        path = address.words.get(word)
        if path is not None and not Path(path).is_file():
            return StoreRefused(f"{where}: {word}: there is no file {path!r}")
    if "rejected SSL upgrade" in str(error):
        return StoreRefused(
            f"{where}: the server offers no TLS, and the address asks for it; set it up there (ssl = on), or write "
            "sslmode=prefer"
        )
    if isinstance(error, ssl.SSLCertVerificationError):
        return StoreRefused(
            f"{where}: the server's certificate is not trusted ({error.verify_message}); name who signed it: "
            "sslrootcert=FILE"
        )
    return None


def described(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
