"""Clients, timeouts and transactions.

A client belongs to one event loop, but a sink is used from several: a worker's loop, and the loop of synchronous
callers. So each loop has its own client, which is closed with the loop.
"""

import asyncio
import random  # noqa: TID251 - parts those who are in each other's way; nothing else depends on it
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from bson.codec_options import CodecOptions
from pymongo import AsyncMongoClient
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.errors import PyMongoError
from pymongo.read_concern import ReadConcern
from pymongo.read_preferences import ReadPreference
from pymongo.write_concern import WriteConcern

from leaseway.domain.errors import TransientError, UnknownOutcome
from leaseway.imports.sinks.mongodb.address import Address
from leaseway.imports.sinks.mongodb.errors import WriteConflict, describe_error, translate_error

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
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopClient] = WeakKeyDictionary()

    async def database(self) -> Database:
        loop = asyncio.get_running_loop()
        own = self._clients.get(loop)
        if own is None:
            own = self._clients[loop] = LoopClient(self.address)
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


class LoopClient:
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
