"""Translates errors of the driver and the server into errors of leaseway: what happened, to what, what to do next."""

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import asyncpg

from leaseway.domain.errors import (
    BadValue,
    IdConflict,
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
from leaseway.stores.caller_connection import causes
from leaseway.stores.postgres.address import Address

KEY_CONFLICT = "LW001"
BAD_VALUE = "LW002"
UNKNOWN_LIMIT = "LW003"
STALE = "LW004"
ID_CONFLICT = "LW005"
OWN_CODES = (KEY_CONFLICT, BAD_VALUE, UNKNOWN_LIMIT, STALE, ID_CONFLICT)
"""SQLSTATEs that the schema's functions raise."""

REFUSED = {
    "28": "check user and password",
    "3D": "create the database first, or use another one",
    "3F": "create the schema: leaseway migrate",
    "42P01": "the schema is missing or older than this leaseway: leaseway migrate",
    "42883": "the schema is missing or older than this leaseway: leaseway migrate",
    "42703": "the schema is older than this leaseway: leaseway migrate",
    "42501": "ask the owner of the schema for the rights; see docs/guides/postgresql.md",
    "42704": "the server does not know an option of the URL; leaseway's own are schema, pool and pooler",
    "0A": "this server does not support it; PostgreSQL 14 or newer is needed",
    "26000": "if there is a pooler in transaction mode, add ?pooler=transaction to the URL",
    "42P05": "if there is a pooler in transaction mode, add ?pooler=transaction to the URL",
}
MISSING = ("3F000", "42883")
"""No such schema, no such function."""
UNWRITABLE = ("22000", "22021", "22P05")
"""The driver or the server cannot encode a text."""
BUSY = {
    "40001": "concurrent transactions conflicted; try again",
    "55P03": "another transaction holds a lock; try again",
    "57014": "the statement was cancelled or timed out; try again",
    "53300": "the server has no free connection; raise max_connections or use a pooler",
    "57P03": "the server is starting or stopping; try again",
    "25006": "the server is a replica or was demoted; use the primary's URL, or list all hosts with "
    "target_session_attrs=read-write",
}
BEFORE_ANY_COMMIT = ("22", "23", "25", "53300", "57P03")
"""Invalid values, or a server that accepts no writes or no sessions: nothing was written."""
BROKEN = ("connection is closed", "cannot perform operation")
"""How the driver describes a connection that was lost between two of its own steps."""
LOST = ("08", "25P03", "57P01", "57P02", "57P04", "57P05")
"""The connection ended. The statement may have been executed."""


class Deadlocked(StoreBusy):
    """The server rolled this transaction back to resolve a deadlock."""


def translate(error: Exception, address: Address) -> LeasewayError:
    """The error of leaseway for an error of a statement."""
    where, code = address.shown, sqlstate(error)
    if code == KEY_CONFLICT:
        return KeyConflict(first_line(error))
    if code == ID_CONFLICT:
        return IdConflict(first_line(error))
    if code == BAD_VALUE:
        field, _, text = first_line(error).partition(": ")
        return BadValue(field, text)
    if code == UNKNOWN_LIMIT:
        return UnknownLimit(f"{first_line(error)}: no limit of this name is defined; declare it first")
    if code == STALE:
        return Stale(f"{first_line(error)} is now at version {getattr(error, 'detail', '?')}; read it again")
    if not isinstance(error, asyncpg.PostgresError) or code.startswith(LOST):
        return UnknownOutcome(f"{where}: the connection was lost ({first_line(error)}); the call may be repeated")
    if code == "40P01":
        return Deadlocked(f"{where}: deadlock with another transaction; try again")
    if code == "53100":
        return StoreFull(f"{where}: the server's disk is full; nothing was written. Free some space and try again")
    for meanings, kind in ((REFUSED, StoreRefused), (BUSY, StoreBusy)):
        advice = meanings.get(code) or meanings.get(code[:2])
        if advice:
            return kind(f"{where}: {first_line(error)}; {advice}")
    if code in UNWRITABLE:
        return UsageError(f"{where}: a value contains NUL or bytes that are not text ({first_line(error)})")
    if code.startswith("53"):
        return TransientError(f"{where}: the server lacks resources ({error}); nothing was written, try again")
    return TerminalError(f"{where}: {error} ({code})")


def sqlstate(error: BaseException) -> str:
    """The SQLSTATE of a driver's error; empty if it has none."""
    return getattr(error, "sqlstate", None) or getattr(error, "pgcode", None) or ""


@contextmanager
def translating_caller_errors(address: Address) -> Iterator[None]:
    """For statements on the caller's own connection: only errors that the schema's functions raise, and a missing
    schema, are translated. All others concern the caller's transaction, and the caller handles those of its driver."""
    try:
        yield
    except Exception as error:
        translated = translate_caller_error(error, address)
        if translated is None:
            raise
        raise translated from error


def translate_caller_error(error: Exception, address: Address) -> LeasewayError | None:
    for cause in reversed(list(causes(error))):
        code = sqlstate(cause)
        if code in OWN_CODES and isinstance(cause, Exception):
            return translate(cause, address)
        if code in MISSING:
            return UsageError(
                f"the database of this connection has no schema {address.schema!r} of this leaseway version, so it is "
                f"not the database of the store, {address.shown}; pass a connection to that database"
            )
    return None


def may_be_stored(error: LeasewayError) -> bool:
    """Whether the job may be stored although the call failed: the call commits before it ends."""
    code = getattr(error.__cause__, "sqlstate", None) or ""
    return bool(code) and not isinstance(error, UsageError) and not code.startswith(BEFORE_ANY_COMMIT)


def translate_connect(error: Exception, address: Address) -> LeasewayError:
    """The error of leaseway for a failure to connect: nothing was executed."""
    where = address.shown
    if isinstance(error, asyncpg.PostgresError):
        meaning = translate(error, address)
        if getattr(error, "sqlstate", "") == "08P01":
            return StoreRefused(f"{where}: {first_line(error)}; remove this option from the URL")
        return TransientError(str(meaning)) if isinstance(meaning, UnknownOutcome) else meaning
    if isinstance(error, asyncpg.TargetServerAttributeNotMatched):
        wanted = address.options.get("target_session_attrs")
        return TransientError(f"{where}: no server is {wanted} now; if a failover is in progress, try again")
    if isinstance(error, TimeoutError):
        return TransientError(f"{where}: no answer; check the host and the firewall")
    if isinstance(error, ConnectionRefusedError):
        return TransientError(
            f"{where}: connection refused; check that PostgreSQL is running and that host and port are right"
        )
    if isinstance(error, OSError):
        return translate_tls(error, address) or TransientError(
            f"{where}: is not reachable ({first_line(error)}); check host and port"
        )
    if isinstance(error, asyncpg.InternalClientError) or first_line(error).startswith(BROKEN):
        return TransientError(f"{where}: the connection broke while it was opened ({first_line(error)}); try again")
    return StoreRefused(f"{where}: is not a usable URL ({first_line(error)})")


def translate_tls(error: OSError, address: Address) -> StoreRefused | None:
    """A TLS configuration error, which no retry can fix; None for all other errors."""
    where = address.shown
    for option in ("sslrootcert", "sslcert", "sslkey", "sslcrl"):
        path = address.options.get(option)
        if path is not None and not Path(path).is_file():
            return StoreRefused(f"{where}: {option}: file {path!r} does not exist")
    if "rejected SSL upgrade" in str(error):
        return StoreRefused(
            f"{where}: the server does not support TLS, and the URL requires it; configure it there (ssl = on), or "
            "use sslmode=prefer"
        )
    if isinstance(error, ssl.SSLCertVerificationError):
        return StoreRefused(
            f"{where}: the server's certificate is not trusted ({error.verify_message}); set the "
            "certificate of its authority: sslrootcert=FILE"
        )
    return None


def first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
