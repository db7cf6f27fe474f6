"""MongoDB URLs, clients, deadlines and transactions, and what the errors of driver and server mean."""

import asyncio
import random  # noqa: TID251 - parts those who are in each other's way; nothing else depends on it
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote, urlsplit
from weakref import WeakKeyDictionary

from bson.codec_options import CodecOptions
from pymongo import AsyncMongoClient
from pymongo import errors as driver
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.errors import PyMongoError
from pymongo.read_concern import ReadConcern
from pymongo.read_preferences import ReadPreference
from pymongo.write_concern import WriteConcern

from leaseway.domain.errors import (
    LeasewayError,
    StoreBusy,
    StoreFull,
    StoreRefused,
    TerminalError,
    TransientError,
    UnknownOutcome,
    redact_url,
)


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


CALL_SECONDS_MAX = 60.0
CONNECT_SECONDS_MAX = 5.0
TRIES_MAX = 180
"""About 90 s: the server ends the transaction of a killed worker, which holds its rows, after a minute."""
STEP_SECONDS = 0.005
STEP_SECONDS_MAX = 0.5

LOST = "the reply to a commit was lost; the call may be repeated"

T = TypeVar("T")
Document = Mapping[str, Any]
Database = AsyncDatabase[dict[str, Any]]
Session = AsyncClientSession
Work = Callable[[Session | None], Awaitable[T]]
"""With a session it is part of a transaction, without one it is not."""


class MongoClients:
    def __init__(self, address: Address) -> None:
        self.address = address
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, MongoLoopClient] = WeakKeyDictionary()

    async def database(self) -> Database:
        loop = asyncio.get_running_loop()
        own = self._clients.get(loop)
        if own is None:
            own = self._clients[loop] = MongoLoopClient(self.address)
            await anext(own.until_the_end)
        return own.database

    async def close(self) -> None:
        """Closes the client of this loop; the others are closed with their loops."""
        own = self._clients.pop(asyncio.get_running_loop(), None)
        if own is not None:
            await own.until_the_end.aclose()

    @asynccontextmanager
    async def calling(self) -> AsyncIterator[Database]:
        """Limits every wait, and translates every error."""
        try:
            yield await self.database()
        except (PyMongoError, ValueError) as error:
            raise translate_error(error, self.address) from error

    async def read(self, query: Callable[[Database], Awaitable[T]]) -> T:
        """For calls that change nothing: after a lost reply, the caller may repeat the call."""
        try:
            async with self.calling() as database:
                return await query(database)
        except UnknownOutcome as error:
            raise TransientError(str(error)) from error

    async def together(self, work: Work[T], *, in_transaction: bool) -> T:
        """Run the work, in a transaction if requested. It is repeated after a conflict with another writer."""
        once = self._transact if in_transaction else self._plainly
        return await self.patiently(lambda: once(work))

    async def patiently(self, once: Callable[[], Awaitable[T]]) -> T:
        for number in range(TRIES_MAX):
            try:
                return await once()
            except WriteConflict:
                if number == TRIES_MAX - 1:
                    raise
            # The server does not queue conflicting writers, so they wait for random times.
            await asyncio.sleep(min(STEP_SECONDS * 2 ** min(number, 10), STEP_SECONDS_MAX) * (0.5 + random.random()))  # noqa: TID251
        raise AssertionError("unreachable")

    async def _plainly(self, work: Work[T]) -> T:
        async with self.calling():
            return await work(None)

    async def _transact(self, work: Work[T]) -> T:
        async with self.calling() as database, database.client.start_session() as session:
            await session.start_transaction(ReadConcern("snapshot"), WriteConcern("majority"), ReadPreference.PRIMARY)
            try:
                answer = await work(session)
            except PyMongoError as error:
                # An error before the commit means that nothing was written, even if a reply was lost.
                if error.has_error_label("TransientTransactionError"):
                    raise WriteConflict(
                        f"{self.address.shown}: the transaction was aborted ({error}); try again"
                    ) from error
                raise
            try:
                await session.commit_transaction()
            except PyMongoError as error:
                if error.has_error_label("UnknownTransactionCommitResult"):
                    raise UnknownOutcome(f"{self.address.shown}: {LOST} ({describe_error(error)})") from error
                raise
            return answer


class MongoLoopClient:
    """The client of one event loop."""

    def __init__(self, address: Address) -> None:
        self._client: AsyncMongoClient[dict[str, Any]] = AsyncMongoClient(
            address.url,
            appname="leaseway",
            serverSelectionTimeoutMS=CONNECT_SECONDS_MAX * 1_000,
            connectTimeoutMS=CONNECT_SECONDS_MAX * 1_000,
            # Not `timeoutMS`: with it, the driver retries failed calls until the timeout.
            socketTimeoutMS=CALL_SECONDS_MAX * 1_000,
        )
        codec: CodecOptions[dict[str, Any]] = CodecOptions(tz_aware=True)
        # Whatever the URL says: run tables are read from the primary, and writes are acknowledged.
        self.database = self._client.get_database(
            address.database, codec, read_preference=ReadPreference.PRIMARY, write_concern=WriteConcern("majority")
        )
        self.until_the_end = self._closed_with_the_loop()

    async def _closed_with_the_loop(self) -> AsyncGenerator[None, None]:
        """asyncio finishes the async generators of a loop before it closes the loop. This is the last chance to close
        the client.
        """
        try:
            yield
        finally:
            await self._client.close()
