"""The same random history on the reference store and on each store: every result and every record must be equal.

Hypothesis generates the history: submissions, exchanges with settlements of every kind from current, stale, repeated
and foreign tokens, heartbeats, commands of operators, schedules, and time. Failing histories are shrunk.
"""

import asyncio
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec import Struct
from msgspec.structs import replace
from tests.stores.conftest import empty

from leaseway.domain.errors import IdConflict, KeyConflict, UsageError
from leaseway.domain.exchange import Admit, Closing, Exchange, ExchangeReply, Gate, HeldLease, ProgressReport, Wants
from leaseway.domain.ids import SECOND_US, JobId, Token, WorkerId
from leaseway.domain.inspection import JobFilter
from leaseway.domain.job import FINAL_STATES, Failure, NewJob, Settlement, State
from leaseway.domain.lane import LaneCount
from leaseway.domain.limits.limit import Rate
from leaseway.domain.schedule import Missed, Schedule
from leaseway.domain.tenant import Tenant
from leaseway.stores.memory.store import MemoryStore
from leaseway.stores.mongodb.store import MongoStore
from leaseway.stores.postgres.store import PostgresStore
from leaseway.stores.sqlite.store import SqliteStore
from leaseway.testing.clock import FakeClock
from leaseway.testing.mongodb import MongoServer
from leaseway.testing.postgres import PostgresServer

pytestmark = pytest.mark.timeout(600)  # shrinking a failure takes a long time

Stores = MemoryStore | SqliteStore | PostgresStore | MongoStore

WORKERS = ("worker-1", "worker-2")
QUEUES = ("queue-1", "queue-2")
ALL = JobFilter()
CLOSED = ((), tuple(Gate(needs, tenant) for needs in ("", "maps") for tenant in ("a", "b")))

# -- steps ----------------------------------------------------------------------------------------------------------

names = st.sampled_from(["a", "b"])
needs = st.sampled_from(["", "", "", "maps", "mail"])
gates = st.builds(Gate, needs, names)
closings = st.lists(
    st.builds(Closing, gates, st.sampled_from([0, 1, SECOND_US, 100 * SECOND_US]), st.sampled_from(["x", "y"])),
    max_size=2,
).map(tuple)
admits = st.lists(st.builds(Admit, gates, st.sampled_from([-1, 0, 1, 2, 9])), max_size=4).map(tuple)
queues = st.lists(st.sampled_from([*QUEUES, "queue-3"]), max_size=3).map(tuple)
delays_us = st.sampled_from([0, 0, 0, 1, SECOND_US, 5 * SECOND_US])
offsets_us = st.none() | st.sampled_from([-SECOND_US, 0, 1, 3 * SECOND_US])
limits = st.sampled_from([-1, 0, 1, 2, 100])
picks = st.integers(0, 12)
"""The index of an existing item, counted from the newest."""


class Submission(Struct, frozen=True, kw_only=True):
    """A job without its id and its instant, which are chosen when the step runs."""

    again: int | None
    """The earlier submission that this one repeats."""
    is_stolen: bool
    """The repetition comes from another tenant."""
    fields: dict[str, Any]
    offset_us: int | None


submissions = st.builds(
    Submission,
    again=st.sampled_from([None] * 6 + [0, 3, 9]),
    is_stolen=st.sampled_from([False] * 5 + [True]),
    offset_us=offsets_us,
    fields=st.fixed_dictionaries(
        {
            "kind": names,
            "queue": st.sampled_from(QUEUES),
            "tenant": names,
            "needs": needs,
            "priority": st.integers(-1, 1),
            "attempts_max": st.integers(1, 3),
            "lease_us": st.sampled_from([2 * SECOND_US, 5 * SECOND_US]),
            "delay_us": delays_us,
            "key": st.sampled_from([None] * 6 + ["key-1", "key-2"]),
            "fingerprint": st.sampled_from(["same", "same", "same", "other"]),
            "key_keep_us": st.sampled_from([0, SECOND_US, 10 * SECOND_US]),
            "cursor": st.none() | st.just("0"),
        }
    ),
)

failures = st.builds(Failure, st.sampled_from(["broken", "late"]), st.just("it broke"), st.just("line 1"))
endings = st.one_of(
    st.fixed_dictionaries({"state": st.just(State.DONE), "result": st.none() | st.just('"well"')}),
    st.fixed_dictionaries({"state": st.just(State.FAILED), "failure": failures}),
    st.fixed_dictionaries({"state": st.just(State.CANCELLED)}),
    st.fixed_dictionaries({"state": st.just(State.PENDING), "failure": failures, "delay_us": delays_us}),
    st.fixed_dictionaries(
        {
            "state": st.just(State.PENDING),
            "returns_attempt": st.just(True),
            "delay_us": delays_us,
            "failure": st.none() | failures,
        }
    ),
)


class Ending(Struct, frozen=True, kw_only=True):
    """A settlement without its job: the index of a granted lease, and the defect of the settlement, if any."""

    lease: int
    token: str
    fields: dict[str, Any]
    offset_us: int | None
    progress: str | None
    children: list[Submission]


some_endings = st.lists(
    st.builds(
        Ending,
        lease=picks,
        token=st.sampled_from(["right"] * 6 + ["foreign", "exchanged"]),
        fields=endings,
        offset_us=offsets_us,
        progress=st.none() | st.just("half"),
        children=st.just([]) | st.lists(submissions, max_size=2),
    ),
    max_size=4,
)


class Shift(Struct, frozen=True, kw_only=True):
    worker: str
    endings: list[Ending]
    count: int
    admits: tuple[Admit, ...]
    closed: tuple[Closing, ...]
    pause_us: int


shifts = st.builds(
    Shift,
    worker=st.sampled_from(WORKERS),
    endings=some_endings,
    count=st.integers(1, 6),
    admits=admits,
    closed=closings,
    pause_us=st.sampled_from([0, 0, 1, SECOND_US, 2 * SECOND_US]),
)

filters = st.just(ALL) | st.builds(
    JobFilter,
    states=st.none() | st.lists(st.sampled_from(list(State)), max_size=3).map(tuple),
    kind=st.none() | names,
    queue=st.none() | st.sampled_from(QUEUES),
    tenant=st.none() | names,
    error_code=st.none() | st.sampled_from(["broken", "lease_expired"]),
)

tenants = st.builds(
    Tenant,
    name=names,
    weight=st.sampled_from([1, 1, 2, 3, 1_000]),
    starts=st.sampled_from([(), (), (), (Rate(SECOND_US, 5),)]),
    concurrency=st.sampled_from([None, None, None, 2]),
)

schedules = st.builds(
    Schedule,
    name=st.sampled_from(["a", "a", "b"]),
    kind=names,
    cron=st.sampled_from(["* * * * *", "* * * * *", "0 3 * * *"]),
    tz=st.sampled_from(["UTC", "Europe/Berlin"]),
    missed=st.sampled_from(Missed),
)


T = TypeVar("T")


def pick(things: Sequence[T], which: int) -> T:
    return things[-1 - which % len(things)]


# -- the state machine ----------------------------------------------------------------------------------------------


class TwoStores(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.runner = asyncio.Runner()
        self.folder = tempfile.TemporaryDirectory()
        self.specification = MemoryStore(self.clock.now_us)
        self.store = self.open_store()
        self.submitted: list[NewJob] = []
        self.leases: list[tuple[JobId, Token]] = []
        self.exchanges: list[Exchange] = []
        self.tokens = 0

    def open_store(self) -> Stores:
        """The store that is compared with the reference, open and empty."""
        raise NotImplementedError

    def teardown(self) -> None:
        self.run(self.store.close())
        self.runner.close()
        self.folder.cleanup()

    def run(self, answer: Awaitable[Any]) -> Any:
        async def wait() -> Any:
            return await answer

        return self.runner.run(wait())

    def same(self, verb: Callable[[Stores], Awaitable[Any]]) -> Any:
        """Run the step on both stores; the results must be equal."""
        expected, actual = (self.answer(verb, store) for store in (self.specification, self.store))
        assert actual == expected, f"{actual} is not {expected}"
        return expected

    def answer(self, verb: Callable[[Stores], Awaitable[Any]], store: Stores) -> Any:
        try:
            return self.run(verb(store))
        except (KeyConflict, IdConflict):
            # If both apply to a batch, either may be reported.
            return UsageError

    # -- submitters

    def job(self, submission: Submission) -> NewJob:
        """A repeated submission repeats every field, because an id stands for one job. Another tenant's is refused."""
        if submission.again is not None and self.submitted:
            known = pick(self.submitted, submission.again)
            return replace(known, tenant="b" if known.tenant == "a" else "a") if submission.is_stolen else known
        offset_us = submission.offset_us
        run_at = None if offset_us is None else self.clock.now_us() + offset_us
        # Ids go up and down, so that no store can use their order as the order of submission.
        number = (len(self.submitted) + 1) * 7_919 % 10_007
        new = NewJob(id=JobId(f"{number:026d}"), payload="{}", run_at=run_at, **submission.fields)
        self.submitted.append(new)
        return new

    @initialize(batch=st.lists(submissions, min_size=3, max_size=10))
    def begin(self, batch: list[Submission]) -> None:
        self.submit(batch)

    @rule(batch=st.lists(submissions, min_size=1, max_size=6))
    def submit(self, batch: list[Submission]) -> None:
        jobs = [self.job(submission) for submission in batch]
        self.same(lambda store: store.jobs.submit(jobs))

    # -- workers

    def settlement(self, ending: Ending) -> Settlement:
        job, token = pick(self.leases, ending.lease)
        if ending.token == "foreign":
            token = Token("foreign")
        elif ending.token == "exchanged":  # the token of another lease
            _, token = pick(self.leases, ending.lease + 1)
        pending = ending.fields["state"] is State.PENDING and ending.offset_us is not None
        return Settlement(
            id=job,
            token=token,
            run_at=self.clock.now_us() + (ending.offset_us or 0) if pending else None,
            progress=ending.progress,
            children=tuple(self.job(replace(child, is_stolen=False)) for child in ending.children),
            **ending.fields,
        )

    @rule(shifts=st.lists(shifts, min_size=1, max_size=4))
    def work(self, shifts: list[Shift]) -> None:
        """The usual exchange of a worker."""
        for shift in shifts:
            news = {"admits": shift.admits, "closed": shift.closed, "tenant": None}
            self.exchange(shift.worker, shift.endings, QUEUES, shift.count, repeat=False, **news)
            self.clock.advance_us(shift.pause_us)

    @rule(
        worker=st.sampled_from(WORKERS),
        endings=some_endings,
        queues=st.none() | queues,
        count=st.integers(-1, 6),
        repeat=st.booleans(),
        admits=admits,
        closed=closings,
        tenant=st.sampled_from([None, None, None, "a"]),
    )
    def exchange(
        self,
        worker: str,
        endings: list[Ending],
        queues: tuple[str, ...] | None,
        count: int,
        repeat: bool,
        admits: tuple[Admit, ...],
        closed: tuple[Closing, ...],
        tenant: str | None,
    ) -> None:
        settlements = tuple(self.settlement(ending) for ending in endings) if self.leases else ()
        self.tokens += 1
        token = Token(f"token-{self.tokens}")
        wants = None if queues is None else Wants(queues, count, token, admits, closed, tenant)
        call = Exchange(WorkerId(worker), settlements, wants, repeat)
        self.exchanges.append(call)
        self.send(call)

    @precondition(lambda self: self.exchanges)
    @rule(which=st.integers(0, 3), worker=st.sampled_from([None, None, None, *WORKERS]))
    def exchange_again(self, which: int, worker: str | None) -> None:
        """The reply was lost and the worker repeats the request, perhaps much later; or another client
        impersonates it.
        """
        call = pick(self.exchanges, which)
        self.send(Exchange(WorkerId(worker or call.worker), call.settlements, call.wants, repeat=True))

    def send(self, call: Exchange) -> None:
        answer: ExchangeReply | type[UsageError] = self.same(lambda store: store.jobs.exchange(call))
        if isinstance(answer, ExchangeReply):
            self.leases += [(lease.id, lease.token) for lease in answer.leases]

    @precondition(lambda self: self.leases)
    @rule(
        verb=st.sampled_from(["renew", "checkpoint", "report"]),
        which=st.lists(picks, min_size=1, max_size=4),
        lease_us=st.sampled_from([SECOND_US, 9 * SECOND_US]),
        text=st.sampled_from(["1", "2"]),
        pause_us=st.sampled_from([0, 0, 2 * SECOND_US, 5 * SECOND_US]),
    )
    def hold(self, verb: str, which: list[int], lease_us: int, text: str, pause_us: int) -> None:
        self.clock.advance_us(pause_us)
        leases = [pick(self.leases, one) for one in which]
        match verb:
            case "renew":
                self.same(lambda store: store.jobs.renew([HeldLease(*lease, lease_us) for lease in leases]))
            case "checkpoint":
                self.same(lambda store: store.jobs.checkpoint(*leases[0], text))
            case "report":
                self.same(lambda store: store.jobs.report([ProgressReport(*lease, text) for lease in leases]))

    # -- operators
    # ------------------------------------------------------------------------------------------------------

    @rule(which=st.integers(0, 3), running=st.sampled_from([True, True, False]))
    def cancel(self, which: int, running: bool) -> None:
        job = pick(self.leases, which)[0] if running and self.leases else self.known(which)
        self.same(lambda store: store.operations.cancel(job))

    def known(self, which: int) -> JobId:
        return pick(self.submitted, which).id if self.submitted else JobId("nobody")

    @rule(which=filters, ids=st.none() | st.lists(picks, max_size=8), limit=limits)
    def replay(self, which: JobFilter, ids: list[int] | None, limit: int) -> None:
        chosen = self.narrowed(which, ids)
        self.same(lambda store: store.operations.retry(chosen, limit))

    @rule(which=filters, ids=st.none() | st.lists(picks, max_size=8), limit=limits)
    def bring_forward(self, which: JobFilter, ids: list[int] | None, limit: int) -> None:
        chosen = self.narrowed(which, ids)
        self.same(lambda store: store.operations.run_now(chosen, limit))

    def narrowed(self, which: JobFilter, ids: list[int] | None) -> JobFilter:
        return which if ids is None else replace(which, ids=tuple(map(self.known, ids)))

    @rule(
        verb=st.sampled_from(["discard", "prune", "prune", "look"]),
        which=filters,
        ids=st.none() | st.lists(picks, max_size=8),
        limit=limits,
        number=st.integers(0, 3),
    )
    def sweep(self, verb: str, which: JobFilter, ids: list[int] | None, limit: int, number: int) -> None:
        chosen = self.narrowed(which, ids)
        match verb:
            case "discard":
                self.same(lambda store: store.operations.discard(chosen, limit))
            case "prune":
                self.same(lambda store: store.operations.prune(number * SECOND_US, limit))
            case "look":
                self.same(lambda store: store.reads.jobs(chosen, before=self.known(number), limit=limit))

    @rule(tenant=tenants, is_forgotten=st.sampled_from([False, False, False, True]))
    def agree(self, tenant: Tenant, is_forgotten: bool) -> None:
        if is_forgotten:
            self.same(lambda store: store.tenants.forget(tenant.name))
        else:
            self.same(lambda store: store.tenants.set(tenant))
        self.same(lambda store: store.tenants.all())

    # -- schedules

    @rule(
        verb=st.sampled_from(["declare", "fire", "fire", "pause"]),
        schedule=schedules,
        number=picks,
        batch=st.lists(submissions, max_size=2),
    )
    def schedule(self, verb: str, schedule: Schedule, number: int, batch: list[Submission]) -> None:
        match verb:
            case "declare":
                self.same(lambda store: store.schedules.declare([schedule]))
            case "fire":
                self.fire(schedule.name, number, batch)
            case "pause":
                self.same(lambda store: store.schedules.pause(schedule.name, number % 2 == 0))

    def fire(self, name: str, number: int, batch: list[Submission]) -> None:
        rows = self.run(self.specification.schedules.all())
        seen = next((row.seen for row in rows if row.schedule.name == name), 0)
        jobs = [self.job(submission) for submission in batch]
        too_late = number % 3 == 2
        self.same(lambda store: store.schedules.fire(name, seen - too_late, self.clock.now_us(), jobs))

    # -- time

    @rule(duration_us=st.sampled_from([1, SECOND_US - 1, SECOND_US, 2 * SECOND_US, 5 * SECOND_US, 11 * SECOND_US]))
    def advance(self, duration_us: int) -> None:
        self.clock.advance_us(duration_us)

    # -- invariants
    # -----------------------------------------------------------------------------------------------------

    @invariant()
    def records_are_equal(self) -> None:
        for job in self.same(lambda store: store.reads.jobs(ALL, limit=1_000)):
            if job.last_error_code is not None:
                self.same(lambda store, job=job: store.reads.errors(job.id))  # type: ignore[misc]
            assert (job.lease_owner is None) == (job.lease_until is None) == (job.state is not State.LEASED)
            assert (job.finished_at is not None) == (job.state in FINAL_STATES)
            assert 0 <= job.attempts <= job.fence

    @invariant()
    def counters_are_a_recount(self) -> None:
        lanes: Sequence[LaneCount] = self.same(lambda store: store.reads.lanes())
        jobs = self.run(self.specification.reads.jobs(ALL, limit=1_000))
        recount = Counter((job.queue, job.tenant, job.needs, job.state) for job in jobs)
        for lane in lanes:
            counted = (lane.pending, lane.leased, lane.done, lane.failed, lane.cancelled)
            for state, number in zip(State, counted, strict=True):
                assert recount.pop((lane.queue, lane.tenant, lane.needs, state), 0) == number
        assert not recount

    @invariant()
    def the_wait_and_the_schedules_are_equal(self) -> None:
        for queues in (QUEUES, QUEUES[:1], ()):
            for closed in CLOSED:
                self.same(lambda store, queues=queues, closed=closed: store.jobs.wait_us(queues, closed))  # type: ignore[misc]
        self.same(lambda store: store.schedules.all())


class Sqlite(TwoStores):
    def open_store(self) -> Stores:
        store = SqliteStore(str(Path(self.folder.name) / "work.db"), now_us=self.clock.now_us, durable=False)
        self.run(store.open())
        return store


class Postgres(TwoStores):
    url: ClassVar[str] = ""

    def open_store(self) -> Stores:
        store = PostgresStore(self.url, now_us=self.clock.now_us)
        self.run(self.emptied(store))
        return store

    async def emptied(self, store: PostgresStore) -> None:
        await store.open()
        await empty(store)
        async with store.connections.borrow() as connection:
            # Prune leaves empty lanes to its next call if the server is vacuuming or analyzing this table.
            await connection.execute("ALTER TABLE lives.lane_changes SET (autovacuum_enabled = off)")


class Mongo(TwoStores):
    url: ClassVar[str] = ""

    def open_store(self) -> Stores:
        store = MongoStore(self.url, now_us=self.clock.now_us)
        self.run(self.emptied(store))
        return store

    async def emptied(self, store: MongoStore) -> None:
        await store.open()
        await empty(store)


@pytest.fixture(scope="module", autouse=True)
def _servers(server: PostgresServer, mongodb: MongoServer) -> None:
    Postgres.url = f"{server.url}?schema=lives"
    Mongo.url = mongodb.url.replace("/leaseway", "/lives")


LIVES = settings(
    max_examples=40,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,  # the same histories in every run: a failing build means a change, not chance
    suppress_health_check=[HealthCheck.too_slow],
)
TestSqlite = Sqlite.TestCase
TestSqlite.settings = LIVES
TestPostgres = Postgres.TestCase
TestPostgres.settings = settings(LIVES, max_examples=16)  # each step needs several round trips
TestMongo = Mongo.TestCase
TestMongo.settings = settings(LIVES, max_examples=16)
