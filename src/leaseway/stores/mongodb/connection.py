"""Clients, transactions, the server's time, and the translation of errors.

An AsyncMongoClient belongs to one event loop, and a store is used from several: the worker's, the lease renewal's,
those of blocking callers. So each loop has a client of its own.

Every decision is made in a transaction: snapshot reads on the primary, and a commit that a majority has in its journal.
The driver repeats nothing by itself. A transaction that conflicts with another one, or that loses its server before the
commit, has written nothing and is repeated here. A commit whose reply is lost is sent again, which has no second
effect; if it stays unanswered, the caller gets `UnknownOutcome`.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from random import random
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from bson.errors import BSONError
from pymongo import AsyncMongoClient
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.errors import PyMongoError
from pymongo.read_concern import ReadConcern
from pymongo.read_preferences import ReadPreference
from pymongo.uri_parser import parse_uri
from pymongo.write_concern import WriteConcern

from leaseway.domain.errors import LeasewayError, StoreBusy, StoreRefused, TransientError, UnknownOutcome
from leaseway.domain.ids import Instant
from leaseway.domain.store_clock import HELD_US_MAX, STEP_US_MAX, ClockWatch
from leaseway.stores.mongodb import reset_connections
from leaseway.stores.mongodb.documents import CODEC
from leaseway.stores.mongodb.errors import (
    Address,
    NoSessions,
    WriteConflict,
    describe_error,
    error_code,
    parse_address,
    translate_error,
)
from leaseway.stores.tenant_share import CALLING_TENANT, TenantShares

CALL_SECONDS_MAX, CLOSE_SECONDS_MAX = 10.0, 5.0
CONNECT_SECONDS_MAX = 4.0
HEARTBEAT_SECONDS = 1.0
"""How often the driver asks each member for its role. A member that does not answer within CONNECT_SECONDS_MAX, because
it is frozen or cut off, is given up together with all calls that wait for it."""
POOL_MAX = 100
QUEUE_SECONDS_MAX = 2.0
"""How long a call waits for a connection of the pool. Without this limit it could wait forever: in Python before 3.13 a
call that is cancelled while it waits can take the notification with which the driver would wake the next one."""
REPEAT_SECONDS_MAX = 8.0
"""How long a transaction is repeated after conflicts, and a commit whose reply is lost."""
LOOK_TRIES, LOOK_SECONDS = 3, 1.0
"""The conflicts, or the seconds of a call, after which a process looks for abandoned transactions; not more often."""
ABANDONED_SECONDS = 3.0
"""A transaction whose client has waited for this long in all is abandoned, also if its connection is open."""
STEP_SECONDS = 0.002
STEP_SECONDS_MAX = 0.1

APP_NAME = "leaseway"
META = "leaseway_meta"
SCHEMA_ID = "schema"
"""The document that holds the version of the schema."""

MAJORITY = WriteConcern("majority", j=True)
SNAPSHOT = ReadConcern("snapshot")
DRIVER_ERRORS = (PyMongoError, BSONError, ValueError, OverflowError)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

T = TypeVar("T")
Document = Mapping[str, Any]
Database = AsyncDatabase[dict[str, Any]]
Session = AsyncClientSession


class Transaction(NamedTuple):
    """Pass `session=transaction.session` to every operation."""

    database: Database
    session: Session
    now: Instant
    """The server's time when the transaction began. A transaction that began earlier and committed later has
    touched other documents: otherwise one of both would have been aborted."""
    found: Document
    """What `stages` have added to the document with the time."""


Work = Callable[[Transaction], Awaitable[T]]
"""May run several times, so it changes nothing but the database."""


class MongoClients:
    """A client per event loop, and the translation of its errors."""

    def __init__(self, address: Address, **options: Any) -> None:
        self.address = address
        self._options = options
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, MongoLoopClient] = WeakKeyDictionary()
        self._looked_at = 0.0

    async def database(self) -> Database:
        return (await self._client()).database

    async def close(self) -> None:
        """Closes the client of this loop; the others are closed with their loops."""
        own = self._clients.pop(asyncio.get_running_loop(), None)
        if own is not None:
            await own.until_the_end.aclose()

    @contextlib.asynccontextmanager
    async def calling(self, *, is_long: bool = False) -> AsyncIterator[Database]:
        """Translates every error. A service's calls for one tenant use at most half of the connections.

        The server blocks a write outside a transaction until the transaction of a killed process has ended.
        `is_long`: the call takes long on purpose.
        """
        client, tenant = await self._client(), CALLING_TENANT.get()
        if tenant is not None:
            await client.shares.acquire(tenant)
        look = None if is_long else LateCall(self.end_abandoned)
        try:
            yield client.database
        except (*DRIVER_ERRORS, LeasewayError) as error:
            meaning = error if isinstance(error, LeasewayError) else translate_error(error, self.address)
            if isinstance(meaning, NoSessions):
                await reset_connections(client.database.client)
            raise meaning from (error.__cause__ if meaning is error else error)
        finally:
            if look is not None:
                look.end()
            if tenant is not None:
                client.shares.release(tenant)

    async def read(self, query: Callable[[Database], Awaitable[T]]) -> T:
        """For calls that change nothing: after a lost reply, the call is repeated once."""
        for is_last in (False, True):
            try:
                async with self.calling() as database:
                    return await query(database)
            except UnknownOutcome as error:
                if is_last:
                    raise TransientError(str(error)) from error
        raise AssertionError("unreachable")

    async def end_abandoned(self) -> None:
        """End the transactions of killed and frozen processes. The server would keep their locks for more than a
        minute. A process that was only frozen repeats its aborted transaction."""
        if time.monotonic() < self._looked_at + LOOK_SECONDS:
            return
        self._looked_at = time.monotonic()
        own = {"$currentOp": {"allUsers": False, "idleSessions": True, "idleConnections": True}}
        with contextlib.suppress(LeasewayError):  # some services do not allow it; then the server's limit counts
            async with self.calling(is_long=True) as database:
                admin = database.client.get_database("admin", read_preference=ReadPreference.PRIMARY)
                found = await (await admin.aggregate([own, {"$match": {"appName": APP_NAME}}])).to_list()
                if sessions := abandoned_sessions(found):
                    await admin.command({"killSessions": sessions})

    async def _client(self) -> "MongoLoopClient":
        loop = asyncio.get_running_loop()
        own = self._clients.get(loop)
        if own is None:
            try:
                own = self._clients[loop] = MongoLoopClient(self.address, self._options)
            except (PyMongoError, ValueError) as error:
                raise translate_error(error, self.address) from error
            await anext(own.until_the_end)
        return own


class LateCall:
    """Looks for abandoned transactions while a call takes longer than expected."""

    def __init__(self, look: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._look = look
        self._task: asyncio.Task[None] | None = None
        self._timer = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._start)

    def end(self) -> None:
        self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    def _start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._repeat())

    async def _repeat(self) -> None:
        while True:
            await self._look()
            await asyncio.sleep(LOOK_SECONDS)


class MongoLoopClient:
    """The client of one event loop."""

    def __init__(self, address: Address, options: Mapping[str, Any]) -> None:
        if address.url.startswith("mongodb://"):
            # The client itself only warns of options that it does not know.
            parse_uri(address.url, warn=False)
        settings: dict[str, Any] = {
            "appname": APP_NAME,
            "serverSelectionTimeoutMS": CONNECT_SECONDS_MAX * 1_000,
            "connectTimeoutMS": CONNECT_SECONDS_MAX * 1_000,
            "heartbeatFrequencyMS": HEARTBEAT_SECONDS * 1_000,
            # One connection less per server, and the driver leaks a socket if it is closed while it opens that one.
            "serverMonitoringMode": "poll",
            # Not `timeoutMS`: with it, the driver retries failed calls until the timeout.
            "socketTimeoutMS": CALL_SECONDS_MAX * 1_000,
            "maxPoolSize": POOL_MAX,
            "waitQueueTimeoutMS": QUEUE_SECONDS_MAX * 1_000,
        }
        self._client: AsyncMongoClient[dict[str, Any]] = AsyncMongoClient(address.url, **settings | dict(options))
        # Whatever the URL says: decisions are made on the primary, and a majority has every acknowledged write.
        self.database = self._client.get_database(
            address.database,
            CODEC,
            read_preference=ReadPreference.PRIMARY,
            write_concern=MAJORITY,
            read_concern=ReadConcern("majority"),
        )
        self.shares = TenantShares(POOL_MAX // 2)
        self.until_the_end = self._closed_with_the_loop()

    async def _closed_with_the_loop(self) -> AsyncGenerator[None, None]:
        """asyncio finishes the async generators of a loop before it closes the loop. This is the last chance to close
        the client.
        """
        try:
            yield
        finally:
            with contextlib.suppress(TimeoutError):  # a server that does not answer must not keep a process alive
                await asyncio.wait_for(self._client.close(), CLOSE_SECONDS_MAX)


class Connections(MongoClients):
    """What jobs, limits and budgets share: transactions, and the server's time.

    `now_us`: a clock for tests, instead of the server's.
    """

    def __init__(self, url: str, now_us: Callable[[], Instant] | None = None) -> None:
        # leaseway's own ids make a repetition harmless; the driver's retries would hide how often one happened.
        super().__init__(parse_address(url), retryWrites=False, retryReads=False)
        self._now_us = now_us
        self._watch = ClockWatch()

    async def transaction(
        self,
        work: Work[T],
        stages: Sequence[Document] = (),
        *,
        tries_max: int | None = None,
        on_conflict: Callable[[], object] | None = None,
        may_estimate: bool = False,
    ) -> T:
        """Run `work` in a transaction: all of it happens or nothing. Repeated after conflicts with other writers, at
        most `tries_max` times; `on_conflict` is called after each.

        `stages`: what to read together with the time, in the same round trip; see `look`. With `may_estimate`, the time
        may be an earlier one of the server plus what has passed since, which saves this round trip.
        """
        return await self.repeat(
            lambda deadline: self._transact(work, stages, deadline, may_estimate), tries_max, on_conflict
        )

    async def read(self, query: Callable[[Database], Awaitable[T]]) -> T:
        """Repeated while the server cannot read yet, as after an election."""
        plainly = super().read
        return await self.repeat(lambda deadline: plainly(query))

    async def repeat(
        self,
        once: Callable[[float], Awaitable[T]],
        tries_max: int | None = None,
        on_conflict: Callable[[], object] | None = None,
    ) -> T:
        """Until it does not conflict with other writers. `once` gets the time at which the repetitions end."""
        deadline, tries = time.monotonic() + REPEAT_SECONDS_MAX, 0
        while True:
            try:
                return await once(deadline)
            except WriteConflict:
                tries += 1
                if time.monotonic() > deadline or tries == tries_max:
                    raise
            if on_conflict is not None:
                on_conflict()
            if tries >= LOOK_TRIES:
                await self.end_abandoned()
            # The server does not queue conflicting writers, so they wait for random times.
            await asyncio.sleep(min(STEP_SECONDS * 2 ** min(tries, 10), STEP_SECONDS_MAX) * (0.5 + random()))

    async def snapshot(self, query: Callable[[Database, Session], Awaitable[T]]) -> T:
        """Several reads of one snapshot. Other than a transaction, it may take longer than a minute."""

        async def run(database: Database) -> T:
            async with database.client.start_session(snapshot=True) as session:
                return await query(database, session)

        return await self.read(run)

    async def _transact(self, work: Work[T], stages: Sequence[Document], deadline: float, may_estimate: bool) -> T:
        async with self.calling() as database, database.client.start_session() as session:
            await session.start_transaction(SNAPSHOT, MAJORITY, ReadPreference.PRIMARY)
            try:
                estimate = self._watch.estimate(time.monotonic()) if may_estimate and self._now_us is None else None
                seen = (estimate, {}) if estimate is not None else await self.look(database, stages, session)
                answer = await work(Transaction(database, session, *seen))
            except PyMongoError as error:
                self._watch.forget()
                raise self._before_commit(error) from error
            await self._commit(session, deadline)
            return answer

    def _before_commit(self, error: PyMongoError) -> Exception:
        """Nothing was written, even if a reply was lost."""
        meaning = translate_error(error, self.address)
        if error.has_error_label("TransientTransactionError") and error_code(error) is not None:
            return WriteConflict(
                f"{self.address.shown}: the transaction was aborted ({describe_error(error)}); try again"
            )
        if isinstance(meaning, UnknownOutcome):
            return StoreBusy(
                f"{self.address.shown}: the server was lost ({describe_error(error)}); nothing was written"
            )
        return meaning

    async def _commit(self, session: Session, deadline: float) -> None:
        while True:
            try:
                return await session.commit_transaction()
            except PyMongoError as error:
                if error.has_error_label("TransientTransactionError"):
                    raise WriteConflict(f"{self.address.shown}: the transaction was aborted; try again") from error
                if not error.has_error_label("UnknownTransactionCommitResult"):
                    raise
                if time.monotonic() > deadline:
                    raise UnknownOutcome(
                        f"{self.address.shown}: the reply to a commit was lost ({describe_error(error)}); the call may "
                        "be repeated"
                    ) from error
            await asyncio.sleep(STEP_SECONDS_MAX * (0.5 + random()))

    async def now(self, database: Database, session: Session | None = None) -> Instant:
        """The server's time. It does not go back by less than an hour, as seen by this process: see
        `domain.store_clock`."""
        now, _ = await self.look(database, (), session)
        return now

    async def look(
        self, database: Database, stages: Sequence[Document], session: Session | None = None
    ) -> tuple[Instant, Document]:
        """The server's time, and a document to which `stages` add what else is needed, such as `lookup` does.

        `$unionWith` would be simpler, but transactions do not support it.
        """
        if self._now_us is not None and not stages:
            return self._now_us(), {}
        sent = time.monotonic()
        first: Sequence[Document] = ({"$match": {"_id": SCHEMA_ID}}, {"$project": {"now": "$$NOW"}})
        async with await database[META].aggregate([*first, *stages], session=session) as cursor:
            async for found in cursor:
                return self._time(found, sent), found
        raise StoreRefused(f"{self.address.shown}: has no schema of leaseway yet; create it: leaseway migrate")

    def _time(self, found: Document, sent: float) -> Instant:
        if self._now_us is not None:
            return self._now_us()
        now, least = int((found["now"] - EPOCH) // timedelta(microseconds=1)), self._watch.least_now(sent)
        if least is not None and STEP_US_MAX < least - now <= HELD_US_MAX:
            now = least
        self._watch.observe(now, time.monotonic())
        return now

    @property
    def now_micros(self) -> object:
        """The time as an expression for the server. It may be a little earlier than the time that `look` returns."""
        return self._now_us() if self._now_us is not None else {"$multiply": [{"$toLong": "$$NOW"}, 1_000]}


def abandoned_sessions(operations: Sequence[Document]) -> list[Document]:
    """The sessions with an open transaction whose client is gone, or has been silent for too long."""
    connected = {each.get("connectionId") for each in operations if each["type"] == "op"}
    idle = [each for each in operations if each["type"] == "idleSession" and "transaction" in each]
    return [
        {"id": each["lsid"]["id"]}
        for each in idle
        if each.get("connectionId") not in connected
        or each["transaction"]["timeInactiveMicros"] > ABANDONED_SECONDS * 1_000_000
    ]


def lookup(collection: str, name: str, condition: Document) -> Document:
    """A stage that adds the documents of a collection which meet this condition, under this name."""
    return {"$lookup": {"from": collection, "pipeline": [{"$match": condition}], "as": name}}
