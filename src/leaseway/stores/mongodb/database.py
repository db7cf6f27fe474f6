"""One MongoDB database as several ports share it: transactions on jobs, and notifications."""

import contextlib
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar
from uuid import uuid4

from pymongo import UpdateMany
from pymongo.asynchronous.collection import AsyncCollection

from leaseway.domain.errors import TransientError
from leaseway.domain.ids import Instant
from leaseway.stores.event_loops import LocalNotifier
from leaseway.stores.mongodb.connection import Connections, Database, Session, Transaction
from leaseway.stores.mongodb.documents import (
    FINAL,
    PENDING,
    SCHEDULED,
    UNREADABLE,
    Doc,
    LaneKey,
    lane_key,
    text_size,
    turn,
)
from leaseway.stores.mongodb.errors import DocumentRefused
from leaseway.stores.mongodb.lanes import BYTES, FOLD_AT, LaneChanges, LaneState, fold, read_lanes
from leaseway.stores.mongodb.schema import JOB_VALIDATOR, JOBS, LANE_CHANGES

T = TypeVar("T")
CHANCE = random.SystemRandom()
Collection = AsyncCollection[Doc]


class JobTransaction:
    """An open transaction that moves jobs. It collects what changes in their lanes."""

    def __init__(self, transaction: Transaction, *, is_careful: bool = False) -> None:
        self.transaction = transaction
        self.database = transaction.database
        self.session = transaction.session
        self.now: Instant = transaction.now
        self.found = transaction.found
        self.changes = LaneChanges()
        self.readable: Mapping[str, Any] = JOB_VALIDATOR if is_careful else {}
        """Holds for jobs that can be read and changed."""
        self._updates: list[UpdateMany] = []

    @property
    def jobs(self) -> Collection:
        return self.database[JOBS]

    def __getitem__(self, name: str) -> Collection:
        return self.database[name]

    async def find(self, name: str, where: Mapping[str, Any], *fields: str, **options: Any) -> list[Doc]:
        """All documents that match, with these fields or with all."""
        projection = dict.fromkeys(fields, 1) or None
        return await self.database[name].find(where, projection, session=self.session, **options).to_list()

    async def insert(self, name: str, docs: Sequence[Doc]) -> None:
        if docs:
            await self.database[name].insert_many(docs, session=self.session)

    def update_later(self, *updates: UpdateMany) -> None:
        """Change jobs at the end of the transaction, all with one command. Until then, queries do not find the
        changes."""
        self._updates += updates

    def moved(self, lane: LaneKey, before: str, after: str) -> None:
        self.changes.add(lane, before, -1)
        self.changes.add(lane, after, 1)

    def move(self, doc: Doc, status: str) -> None:
        """Give a job its next status: the document is changed here, and written by the caller."""
        lane = lane_key(doc)
        self.moved(lane, doc["status"], status)
        doc["status"] = status
        for name in ("lease", "finished_at", "at"):
            doc.pop(name, None)
        if status in PENDING:
            doc["turn"] = turn(status, doc["priority"])
        if status == SCHEDULED:
            doc["at"] = doc["run_at"]
        if status in FINAL:
            doc["finished_at"] = doc["at"] = self.now
        self.count_bytes(doc)

    def count_bytes(self, doc: Doc) -> None:
        """After a text of the job has changed."""
        size = text_size(doc)
        self.changes.add(lane_key(doc), BYTES, size - doc["bytes"])
        doc["bytes"] = size

    async def flush(self, by: str) -> None:
        """`by`: the store that changes the lanes, which needs no notification of it."""
        if self._updates:
            await self.jobs.bulk_write(self._updates, session=self.session)
        await self.insert(LANE_CHANGES, [doc | {"by": by} for doc in self.changes.render(self.now)])


Work = Callable[[JobTransaction], Awaitable[T]]


class JobDatabase:
    def __init__(self, url: str, now_us: Callable[[], Instant] | None = None) -> None:
        self.connections = Connections(url, now_us)
        self.address = self.connections.address
        self.local = LocalNotifier()
        self.name = uuid4().hex[:12]
        """Tells its own changes from those of other processes."""
        self.is_followed = False
        """Whether a change stream tells what other processes change in lanes."""
        self.has_own_clock = now_us is not None
        self._unfolded = 0
        self._is_careful = False
        """Another program has damaged the document of a job. From now on such documents are left out."""

    async def write(self, work: Work[T], stages: Sequence[Doc] = (), **options: Any) -> T:
        """Run `work` in a transaction that moves jobs. `stages`: what to read together with the time."""

        async def run(transaction: Transaction) -> tuple[T, int]:
            jobs = JobTransaction(transaction, is_careful=self._is_careful)
            answer = await work(jobs)
            await jobs.flush(self.name)
            return answer, len(jobs.changes.by_lane)

        try:
            answer, changes = await self.connections.transaction(run, stages, **options)
        except (DocumentRefused, *UNREADABLE):
            if self._is_careful:
                raise
            self._is_careful = True
            return await self.write(work, stages, **options)
        await self._fold_sometimes(changes)
        return answer

    async def _fold_sometimes(self, changes: int) -> None:
        """After about FOLD_AT changes of this process. If another process folds at the same time, it is left to it."""
        self._unfolded += changes
        if self._unfolded >= FOLD_AT * (0.75 + CHANCE.random() / 2):
            self._unfolded = 0
            with contextlib.suppress(TransientError):
                await self.connections.transaction(fold, tries_max=1)

    async def fold(self) -> int:
        """Fold changes of lanes, and return their number. If another process folds, wait for it."""
        return await self.connections.transaction(fold)

    async def snapshot(self, query: Callable[[Database, Session], Awaitable[T]]) -> T:
        """Several reads of one snapshot: a fold between two of them would count its changes twice or not at all."""
        return await self.connections.snapshot(query)

    async def lanes(self, tenant: str | None = None) -> list[LaneState]:
        where = {} if tenant is None else {"tenant": tenant}
        return await self.snapshot(lambda database, session: read_lanes(database, session, where))

    async def now(self) -> Instant:
        return await self.connections.read(self.connections.now)
