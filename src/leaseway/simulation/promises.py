"""What the store holds, and what it has promised to its callers, recorded outside the store so that the oracles can
compare."""

import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple, TypeVar

from leaseway.domain.exchange import Exchange, ExchangeReply
from leaseway.domain.ids import SECOND_US, Instant, JobId, Token
from leaseway.domain.job import Settlement, State, Submitted
from leaseway.simulation.process import Process
from leaseway.stores.sqlite.connection import Connection, Work, commit_all
from leaseway.stores.sqlite.errors import translate_error
from leaseway.stores.sqlite.schema import migrate

T = TypeVar("T")

READY, SCHEDULED, LEASED, DONE, FAILED, CANCELLED = "ready", "scheduled", "leased", "done", "failed", "cancelled"
STATES = (READY, SCHEDULED, LEASED, DONE, FAILED, CANCELLED)
PATH = ":memory:"
STATEMENTS_MAX = 512
"""How many compiled statements are kept; the store has about a hundred."""


class SharedDatabase(Connection):
    """One SQLite database in memory, which all processes of a simulated world share.

    A call is executed at one instant of virtual time, so no two transactions overlap, and one connection serves all
    processes: it compiles each statement once. What separates processes on a machine (locks, snapshots and the identity
    of a file) is tested with real files, by the contract suite, tests/faults and `./dev chaos`.

    Closing a store leaves it open, for the other processes and for the oracles.
    """

    def __init__(self) -> None:
        super().__init__(PATH, lambda: 0.0, inline=True)
        self.sqlite = sqlite3.connect(PATH, isolation_level=None, cached_statements=STATEMENTS_MAX)

    @property
    def version(self) -> int:
        """It grows with every row that is written."""
        return self.sqlite.total_changes

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    def dispose(self) -> None:
        self.sqlite.close()

    async def write(self, work: Work[T]) -> T:
        try:
            self.sqlite.execute("BEGIN IMMEDIATE")
            (answer,) = commit_all(self.sqlite, [work])
        except sqlite3.Error as error:
            raise translate_error(error, self.path) from error
        return answer  # type: ignore[no-any-return]

    async def read(self, work: Work[T]) -> T:
        version = self.version
        try:
            answer = work(self.sqlite)
        except sqlite3.Error as error:
            raise translate_error(error, self.path) from error
        if self.version != version:
            raise RuntimeError("a statement of a read has written; on a file it would fail")
        return answer


@contextmanager
def new_jobs_database() -> Iterator[SharedDatabase]:
    """With the current schema and without jobs. It is gone after the block."""
    database = SharedDatabase()
    try:
        empty_jobs_database().backup(database.sqlite)
        yield database
    finally:
        database.dispose()


@cache
def empty_jobs_database() -> sqlite3.Connection:
    connection = sqlite3.connect(PATH, isolation_level=None, check_same_thread=False)
    migrate(connection, PATH)
    return connection


class StoredJob(NamedTuple):
    id: JobId
    lane: int
    state: str
    kind: str
    run_at: Instant
    attempts: int
    attempts_max: int
    fence: int
    lease_us: int
    token: str | None
    last_token: str | None
    owner: str | None
    until: Instant | None
    cancel_requested: int
    last_error_code: str | None
    cursor: str | None
    progress: str | None
    result: str | None

    @property
    def is_final(self) -> bool:
        return self.state in (DONE, FAILED, CANCELLED)


Rows = dict[JobId, StoredJob]

SELECT_JOBS = f"SELECT {', '.join(StoredJob._fields)} FROM jobs ORDER BY seq"
SELECT_LANES = "SELECT id, ready, scheduled, leased, done, failed, cancelled FROM lanes"
SELECT_NEXT_START = """
    SELECT min(max(run_at, coalesce(closed_until, 0))) FROM jobs JOIN lanes ON lanes.id = lane
     WHERE state IN ('ready', 'scheduled')"""
SOON_US = 6 * SECOND_US


class StoredRows:
    """The jobs in the database, read again only after a write."""

    def __init__(self, database: SharedDatabase) -> None:
        self._database, self._connection = database, database.sqlite
        self._version = -1
        self.rows: Rows = {}

    def refresh(self) -> list[JobId]:
        """Read the current rows; returns the jobs that are new or changed."""
        version = self._database.version
        if version == self._version:
            return []
        self._version = version
        before, self.rows = self.rows, {}
        changed: list[JobId] = []
        for values in self._connection.execute(SELECT_JOBS).fetchall():
            known = before.get(values[0])
            if known is None or known != values:
                known = StoredJob._make(values)
                changed.append(known.id)
            self.rows[known.id] = known
        return changed

    def starts_soon(self, now: Instant) -> bool:
        """Whether a job that waits is due in an open lane within the longest window of a limit."""
        ((at,),) = self._connection.execute(SELECT_NEXT_START).fetchall()
        return at is not None and at < now + SOON_US

    def counters(self) -> dict[int, tuple[int, ...]]:
        """The counters that the lanes store."""
        return {lane: tuple(counts) for lane, *counts in self._connection.execute(SELECT_LANES).fetchall()}

    def recount(self) -> dict[int, tuple[int, ...]]:
        """The counters that the rows imply."""
        counts: dict[int, list[int]] = {}
        for row in self.rows.values():
            counts.setdefault(row.lane, [0] * 6)[STATES.index(row.state)] += 1
        return {lane: tuple(found) for lane, found in counts.items()}


@dataclass(slots=True)
class Grant:
    """One lease, as the store granted it."""

    job: JobId
    token: Token
    fence: int
    process: Process
    granted_at: float
    until: Instant
    lease_us: int
    renewed_at: float
    """When the store last granted or renewed it."""
    ended_at: float | None = None
    was_taken_back: bool = False


@dataclass(slots=True)
class Run:
    """One handler that executes one lease."""

    process: Process
    job: JobId
    fence: int
    attempt: int
    started_at: float
    heard_at: float | None = None
    """When it was told to stop."""
    end: str = ""
    """"" while it runs, then "done" or the name of the exception."""


@dataclass(slots=True)
class JobBook:
    """What must be true of one job."""

    id: JobId
    label: str
    claims: int = 0
    attempts: int = 0
    cursor: str | None = None
    current: Grant | None = None
    grants: dict[int, Grant] = field(default_factory=dict)
    """By fence."""
    runs: dict[int, Run] = field(default_factory=dict)
    accepted: set[Token] = field(default_factory=set)
    last_accepted: Token | None = None
    """The settlement that the store must still recognise."""
    cancel_wanted: bool = False
    done: int = 0


@dataclass(slots=True)
class Commit:
    """One executed call that may write: the caller, the call, the answer, and the table before and after it."""

    process: Process
    verb: str
    args: tuple[Any, ...]
    answer: Any
    at: float
    now: Instant
    before: Rows
    after: Rows
    changed: list[JobId]
    accepted: list[Settlement] = field(default_factory=list)
    """Of an exchange: settlements that end a lease in this commit."""
    repeated: list[Settlement] = field(default_factory=list)
    """Settlements that had ended their lease before."""
    late: list[Settlement] = field(default_factory=list)
    """Settlements of leases that ended in another way."""

    @property
    def exchange(self) -> Exchange:
        call: Exchange = self.args[0]
        return call

    @property
    def exchanged(self) -> ExchangeReply:
        answer: ExchangeReply = self.answer
        return answer

    def taken_back(self) -> list[StoredJob]:
        """Leases that this commit ended without a settlement, as they were before."""
        settled = {(each.id, each.token) for each in self.accepted}
        held = (self.before[job] for job in self.changed if job in self.before)
        return [
            row
            for row in held
            if row.token is not None
            and row_lease(row) != row_lease(self.after[row.id])
            and (row.id, row.token) not in settled
        ]


def row_lease(row: StoredJob) -> tuple[str | None, int]:
    """A claim that is repeated after its first grant has expired is granted the same job under the same token again."""
    return row.token, row.fence


class Promises:
    def __init__(self) -> None:
        self.jobs: dict[JobId, JobBook] = {}
        self.labels: dict[str, JobId] = {}
        """A submission, and the one job that stands for it."""
        self.announced: dict[JobId, str] = {}
        """Ids that submitters have generated, with the label of the job."""
        self.acknowledged: dict[str, Submitted] = {}
        self.conflicts: set[str] = set()
        self.reached: Counter[str] = Counter()
        self.violations: list[str] = []
        self.is_settled = False
        """Whether the last fault ended long ago."""

    def reach(self, what: str) -> None:
        """Record a situation that a campaign must reach at least once."""
        self.reached[what] += 1

    # -- reading an exchange ----------------------------------------------------------------------------------------

    def classify(self, commit: Commit) -> None:
        """Which settlements of an exchange end a lease, which did so before, and which are late."""
        for settlement in commit.exchange.settlements:
            book = self.jobs.get(settlement.id)
            if book is None:
                commit.late.append(settlement)
            elif settlement.token in book.accepted:
                commit.repeated.append(settlement)
            elif book.current is not None and book.current.token == settlement.token:
                commit.accepted.append(settlement)
            else:
                commit.late.append(settlement)

    # -- recording -------------------------------------------------------------------------------------------------

    def keep(self, commit: Commit) -> None:
        """Record the changes of this commit."""
        for job in commit.changed:
            if job not in self.jobs:
                label = self.label_of(commit, job)
                self.jobs[job] = JobBook(job, label, cursor=commit.after[job].cursor)
                self.labels.setdefault(label, job)
        match commit.verb:
            case "exchange":
                self._keep_exchange(commit)
            case "renew":
                self._keep_renewals(commit)
            case "checkpoint" if commit.answer:
                self.jobs[commit.args[0]].cursor = commit.args[2]
            case "cancel" if commit.answer == "requested":
                self.jobs[commit.args[0]].cancel_wanted = True
            case "retry":
                for job in commit.answer:
                    book = self.jobs[job]
                    book.attempts, book.cancel_wanted, book.last_accepted = 0, False, None

    def label_of(self, commit: Commit, job: JobId) -> str:
        """The label of a new row. Children and scheduled jobs are announced by the call that submits them."""
        if job in self.announced:
            return self.announced[job]
        if commit.verb == "fire":
            fires = {new.id: new.payload for new in commit.args[3]}
            return f"{commit.args[0]} {fires.get(job, job)}"
        return f"child {job}"

    def _keep_exchange(self, commit: Commit) -> None:
        for settlement in commit.accepted:
            self._end(commit, self.jobs[settlement.id])
            self._keep_settlement(self.jobs[settlement.id], settlement)
        for row in commit.taken_back():
            self._end(commit, self.jobs[row.id], was_taken_back=True)
        for lease in commit.exchanged.leases:
            self._keep_lease(commit, lease.id, lease.token)

    def _keep_settlement(self, book: JobBook, settlement: Settlement) -> None:
        book.accepted.add(settlement.token)
        book.last_accepted = settlement.token
        book.attempts -= settlement.returns_attempt
        book.done += settlement.state is State.DONE

    def _end(self, commit: Commit, book: JobBook, *, was_taken_back: bool = False) -> None:
        if book.current is not None:
            book.current.ended_at = commit.at
            book.current.was_taken_back = was_taken_back
            book.current = None

    def _keep_lease(self, commit: Commit, job: JobId, token: Token) -> None:
        book, row = self.jobs[job], commit.after[job]
        until = row.until or 0
        if book.current is not None and (book.current.token, book.current.fence) == row_lease(row):
            book.current.until, book.current.renewed_at = until, commit.at
            return
        book.claims += 1
        book.attempts += 1
        # Granted again under the same token: a settlement of the first lease would end this one, too.
        book.accepted.discard(token)
        book.current = Grant(job, token, row.fence, commit.process, commit.at, until, row.lease_us, commit.at)
        book.grants[row.fence] = book.current

    def _keep_renewals(self, commit: Commit) -> None:
        for held in commit.args[0]:
            grant = self.jobs[held.id].current
            if held.id not in commit.answer.lost and grant is not None:
                grant.until, grant.renewed_at = commit.now + held.lease_us, commit.at
