"""Transactions of the sink, repeated after conflicts. Clients and the meaning of errors are those of the store."""

import asyncio
import random  # noqa: TID251 - the wait after a conflict; nothing else depends on it
from collections.abc import Awaitable, Callable
from typing import TypeVar

from pymongo.errors import PyMongoError
from pymongo.read_concern import ReadConcern
from pymongo.read_preferences import ReadPreference
from pymongo.write_concern import WriteConcern

from leaseway.domain.errors import UnknownOutcome
from leaseway.stores.mongodb.connection import LOOK_TRIES, Database, Document, MongoClients, Session
from leaseway.stores.mongodb.errors import (
    CONFLICTS,
    Address,
    WriteConflict,
    describe_error,
    error_codes,
    parse_address,
)

__all__ = [
    "CONFLICTS",
    "Database",
    "Document",
    "Session",
    "SinkClients",
    "Work",
    "WriteConflict",
    "error_codes",
    "parse_address",
]

CHANCE = random.SystemRandom()
CALL_SECONDS_MAX = 60.0
CONNECT_SECONDS_MAX = 5.0
TRIES_MAX = 180
"""About 90 s. A user who may not end the transaction of a killed worker waits until the server does, after a minute."""
STEP_SECONDS = 0.005
STEP_SECONDS_MAX = 0.5

LOST = "the reply to a commit was lost; the call may be repeated"

T = TypeVar("T")
Work = Callable[[Session | None], Awaitable[T]]
"""With a session it is part of a transaction, without one it is not."""


class SinkClients(MongoClients):
    def __init__(self, address: Address) -> None:
        super().__init__(
            address,
            socketTimeoutMS=CALL_SECONDS_MAX * 1_000,
            serverSelectionTimeoutMS=CONNECT_SECONDS_MAX * 1_000,
        )

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
            if number >= LOOK_TRIES:
                await self.end_abandoned()
            # The server does not queue conflicting writers, so they wait for random times.
            await asyncio.sleep(min(STEP_SECONDS * 2 ** min(number, 10), STEP_SECONDS_MAX) * (0.5 + CHANCE.random()))  # noqa: TID251
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
