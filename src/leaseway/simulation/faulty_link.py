"""The store ports as a simulated process sees them, over a link with faults: latency, stalls, losses, refusals."""

import asyncio
import sqlite3
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ParamSpec, TypeVar

from leaseway.domain.errors import LeasewayError, SchemaVersions, StoreBusy, StoreFull, UnknownOutcome
from leaseway.domain.exchange import Exchange, ExchangeReply, Gate, HeldLease, ProgressReport, Renewed
from leaseway.domain.ids import Instant, JobId, Token
from leaseway.domain.inspection import CancelResult, JobFilter
from leaseway.domain.job import ErrorRecord, Job, NewJob, State, Submitted
from leaseway.domain.lane import LaneCount
from leaseway.domain.schedule import Schedule, StoredSchedule
from leaseway.domain.tenant import Tenant
from leaseway.ports.definitions import LanePauses, ScheduleStore, TenantStore
from leaseway.ports.history import HistoryStore
from leaseway.ports.job_store import BlockingSubmission, JobOperations, JobStore, TransactionalSubmission
from leaseway.ports.key_store import KeyStore, SessionStore
from leaseway.ports.pool_board import PoolBoard
from leaseway.ports.reads import Inspection, JobReads
from leaseway.ports.store import Notifications
from leaseway.ports.workers import WorkerRegistry
from leaseway.simulation.process import Process
from leaseway.simulation.promises import Commit
from leaseway.simulation.swarm import LEASE_SECONDS
from leaseway.simulation.trace import brief
from leaseway.simulation.world import SimulatedWorld
from leaseway.stores.keys import UnsupportedKeys, UnsupportedSessions
from leaseway.virtual_time.loop import run_now

P = ParamSpec("P")
T = TypeVar("T")

LATENCY_SECONDS_MAX = 0.15
STALL_SECONDS_MAX = 6.0
BLOCKED_SECONDS_MAX = 1.5 * LEASE_SECONDS
BURST_SECONDS = 0.3
BURST_FACTOR = 3.0
WRITES = frozenset(("submit", "exchange", "renew", "checkpoint", "report", "cancel", "retry", "declare", "fire"))
KEEPING = frozenset(("exchange", "renew"))
"""Calls that a lease may depend on: a fault in one of them excuses a lost lease."""
RINGING = frozenset(("submit", "cancel", "retry", "fire"))


@dataclass(slots=True)
class LinkCall:
    verb: str
    step: Callable[[], Coroutine[Any, Any, Any]]
    args: tuple[Any, ...]
    reply: asyncio.Future[Any]
    fault: str


class FaultyLink:
    """One process's own connection to the database file."""

    def __init__(self, universe: SimulatedWorld, process: Process) -> None:
        self._universe, self._process = universe, process
        self._chance = universe.streams.of(f"link {process.name}")
        self._blocking = universe.streams.of(f"blocked {process.name}")
        self._sql = Statements(universe.sql)
        self._burst_until = 0.0
        self.store = universe.store(self._sql)

    def open(self) -> None:
        run_now(self.store.open())

    # -- request ---------------------------------------------------------------------------------------------------

    async def call(self, step: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Send a call to the store and wait for its reply, which may never arrive."""
        verb = step.__name__
        reply: asyncio.Future[T] = self._process.loop.create_future()
        if not self._process.is_dead:
            self._universe.judge.sent(self._process, verb, args[0] if args else None)
            call = LinkCall(verb, partial(step, *args, **kwargs), args, reply, self._draw_fault(verb))
            self._later(self._way_seconds(call, "stalled"), self._arrive, call)
        return await reply

    def _draw_fault(self, verb: str) -> str:
        """Faults come in bursts: after one, more of them are likely for a short time."""
        faults, draw = self._universe.faults, self._chance.random()
        is_burst = self._universe.loop.time() < self._burst_until
        for fault, share in (
            ("busy", faults.busy),
            ("request lost", faults.request_lost),
            ("reply lost", faults.reply_lost),
            ("stalled", faults.stall / 2),
            ("reply stalled", faults.stall / 2),
            ("full", faults.full if verb in WRITES else 0.0),
        ):
            draw -= share * BURST_FACTOR if is_burst else share
            if draw < 0:
                self._burst_until = self._universe.loop.time() + BURST_SECONDS
                return fault
        return ""

    def _way_seconds(self, call: LinkCall, stall: str) -> float:
        """The latency of one direction; `stall` is the fault that makes it long."""
        if call.fault == stall:
            seconds = self._chance.uniform(0.3, STALL_SECONDS_MAX)
            if is_claim(call):
                self._process.wait_for_claim(seconds)
            elif call.verb in KEEPING:
                self._process.suffer(seconds)
            self._universe.books.reach("a call stalled")
            return seconds
        mean = self._universe.faults.latency_seconds
        return min(self._chance.expovariate(1 / mean), LATENCY_SECONDS_MAX)

    def _later(self, seconds: float, step: Any, *args: Any) -> None:
        self._universe.loop.call_later(seconds, step, *args)

    # -- at the store -----------------------------------------------------------------------------------------------

    def _arrive(self, call: LinkCall) -> None:
        if self._is_cut_off(call):
            return
        if self._process.loop.is_frozen and not self._process.is_dead and self._chance.random() < 0.5:
            # The writer thread is frozen together with its process. A remote store would go on: the other branch covers
            # that.
            self._process.when_thawed(partial(self._arrive, call))
        elif call.fault == "request lost":
            self._fail(call, UnknownOutcome("the request was lost"), "a request was lost")
        elif call.fault == "busy" or self._universe.is_out:
            self._fail(call, StoreBusy("another process is writing"), "the store was busy")
        else:
            self._execute(call)

    def _is_cut_off(self, call: LinkCall) -> bool:
        """The caller was cancelled. Its call may or may not have been sent already."""
        if self._process.is_dead:
            return self._chance.random() < 0.5
        if call.reply.cancelled():
            if self._chance.random() < 0.5:
                return True
            self._universe.books.reach("a caller gave up and the call was executed")
        return False

    def _execute(self, call: LinkCall) -> None:
        if call.fault == "full":
            self._sql.burn(self._chance.randint(0, 8))
        try:
            answer = run_now(call.step())
        except StoreFull as error:
            self._fail(call, error, "the store was full in the middle of a transaction")
        except LeasewayError as error:
            self._answer(call, error)
        else:
            self._show(call, answer)
            self._answer(call, answer)
        finally:
            self._sql.put_out()

    def _show(self, call: LinkCall, answer: Any) -> None:
        """Let the judge check the commit before anything else happens."""
        universe = self._universe
        universe.note(self._process.name, brief(call.verb, call.args, answer))
        if call.verb in WRITES:
            before = universe.table.rows
            changed = universe.table.refresh()
            commit = Commit(
                self._process,
                call.verb,
                call.args,
                answer,
                universe.loop.time(),
                universe.now_us(),
                before,
                universe.table.rows,
                changed,
            )
            universe.judge.saw(commit)
            if call.verb in RINGING or (call.verb == "exchange" and makes_ready(call.args[0])):
                universe.notifier.notify()

    # -- reply -----------------------------------------------------------------------------------------------------

    def _answer(self, call: LinkCall, answer: Any) -> None:
        if call.fault == "reply lost":
            self._fail(call, UnknownOutcome("the reply was lost"), "a reply was lost")
        else:
            self._process.succeed(call.verb)
            seconds = self._way_seconds(call, "reply stalled") + self._blocked_seconds(call, answer)
            self._later(seconds, self._deliver, call.reply, answer)

    def _blocked_seconds(self, call: LinkCall, answer: Any) -> float:
        """How long a handler blocks the event loop, so that the reply to a claim is not read."""
        is_granted = is_claim(call) and isinstance(answer, ExchangeReply) and answer.leases
        if not is_granted or self._blocking.random() >= self._universe.faults.blocked:
            return 0.0
        seconds = self._blocking.uniform(0.3, BLOCKED_SECONDS_MAX)
        self._process.wait_for_claim(seconds)
        self._universe.books.reach("a reply waited behind a blocked loop")
        return seconds

    def _fail(self, call: LinkCall, error: Exception, what: str) -> None:
        self._universe.books.reach(what)
        self._universe.note(self._process.name, f"{call.verb}: {what}")
        if call.verb in KEEPING:
            self._process.fail(call.verb)
        self._later(self._way_seconds(call, "reply stalled"), self._deliver, call.reply, error)

    def _deliver(self, reply: asyncio.Future[Any], answer: Any) -> None:
        self._process.loop.call_soon_threadsafe(end, reply, answer)


def end(reply: asyncio.Future[Any], answer: Any) -> None:
    if reply.done():
        return  # the caller timed out
    if isinstance(answer, Exception):
        reply.set_exception(answer)
    else:
        reply.set_result(answer)


def is_claim(call: LinkCall) -> bool:
    return call.verb == "exchange" and call.args[0].wants is not None and call.args[0].wants.count > 0


def makes_ready(call: Exchange) -> bool:
    return any(each.state is State.PENDING or each.children for each in call.settlements)


class Statements(dict[str, str]):
    """The store's SQL with a fault: after some statements the disk is full, within a transaction."""

    def __init__(self, statements: Mapping[str, str]) -> None:
        super().__init__(statements)
        self._left: int | None = None

    def burn(self, statements: int) -> None:
        self._left = statements

    def put_out(self) -> None:
        self._left = None

    def __getitem__(self, verb: str) -> str:
        if self._left is not None:
            if self._left == 0:
                raise disk_full()
            self._left -= 1
        return super().__getitem__(verb)


def disk_full() -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("database or disk is full")
    error.sqlite_errorname, error.sqlite_errorcode = "SQLITE_FULL", sqlite3.SQLITE_FULL
    return error


class FaultyJobs:
    def __init__(self, link: FaultyLink) -> None:
        self._link, self._port = link, link.store.jobs

    async def submit(self, jobs: Sequence[NewJob]) -> list[Submitted]:
        return await self._link.call(self._port.submit, jobs)

    async def exchange(self, call: Exchange) -> ExchangeReply:
        return await self._link.call(self._port.exchange, call)

    async def renew(self, leases: Sequence[HeldLease]) -> Renewed:
        return await self._link.call(self._port.renew, leases)

    async def checkpoint(self, job: JobId, token: Token, cursor: str) -> bool:
        return await self._link.call(self._port.checkpoint, job, token, cursor)

    async def report(self, reports: Sequence[ProgressReport]) -> None:
        await self._link.call(self._port.report, reports)

    async def wait_us(self, queues: Sequence[str], closed: Sequence[Gate] = ()) -> int | None:
        return await self._link.call(self._port.wait_us, queues, closed)

    async def traces(self, leases: Sequence[HeldLease]) -> Mapping[JobId, str]:
        return await self._link.call(self._port.traces, leases)


class FaultyOperations:
    def __init__(self, link: FaultyLink) -> None:
        self._link, self._port = link, link.store.operations

    async def cancel(self, job: JobId) -> CancelResult:
        return await self._link.call(self._port.cancel, job)

    async def retry(self, which: JobFilter, limit: int) -> list[JobId]:
        return await self._link.call(self._port.retry, which, limit)

    async def run_now(self, which: JobFilter, limit: int) -> list[JobId]:
        return await self._link.call(self._port.run_now, which, limit)

    async def open_lanes(self, name: str, limit: int, tenant: str | None = None) -> int:
        return await self._link.call(self._port.open_lanes, name, limit, tenant)

    async def discard(self, which: JobFilter, limit: int) -> list[JobId]:
        return await self._link.call(self._port.discard, which, limit)

    async def prune(self, keep_us: int, limit: int) -> int:
        return await self._link.call(self._port.prune, keep_us, limit)


class FaultyReads:
    def __init__(self, link: FaultyLink) -> None:
        self._link, self._port = link, link.store.reads

    async def job(self, job: JobId) -> Job | None:
        return await self._link.call(self._port.job, job)

    async def jobs(
        self, which: JobFilter, *, before: JobId | None = None, limit: int = 50, bytes_max: int | None = None
    ) -> list[Job]:
        return await self._link.call(self._port.jobs, which, before=before, limit=limit, bytes_max=bytes_max)

    async def errors(self, job: JobId) -> list[ErrorRecord]:
        return await self._link.call(self._port.errors, job)

    async def lanes(self, tenant: str | None = None) -> Sequence[LaneCount]:
        return await self._link.call(self._port.lanes, tenant)

    async def now(self) -> Instant:
        return await self._link.call(self._port.now)

    async def locked_by(self, job: JobId) -> str | None:
        return await self._link.call(self._port.locked_by, job)


class FaultySchedules:
    def __init__(self, link: FaultyLink) -> None:
        self._link, self._port = link, link.store.schedules

    async def declare(self, schedules: Sequence[Schedule]) -> None:
        await self._link.call(self._port.declare, schedules)

    async def all(self) -> list[StoredSchedule]:
        return await self._link.call(self._port.all)

    async def fire(self, name: str, seen: Instant, upto: Instant, jobs: Sequence[NewJob]) -> bool:
        return await self._link.call(self._port.fire, name, seen, upto, jobs)

    async def pause(self, name: str, paused: bool) -> bool:
        return await self._link.call(self._port.pause, name, paused)


class FaultyTenants:
    def __init__(self, link: FaultyLink) -> None:
        self._link, self._port = link, link.store.tenants

    async def set(self, tenant: Tenant) -> None:
        await self._link.call(self._port.set, tenant)

    async def all(self) -> list[Tenant]:
        return await self._link.call(self._port.all)

    async def forget(self, name: str) -> bool:
        return await self._link.call(self._port.forget, name)


class SimulatedNotifications:
    def __init__(self, universe: SimulatedWorld, process: Process) -> None:
        self._universe, self._process = universe, process

    async def wait(self, seconds: float) -> bool:
        return await self._universe.notifier.wait(self._process, seconds)


class FaultyStore:
    def __init__(self, universe: SimulatedWorld, process: Process) -> None:
        self._link = link = FaultyLink(universe, process)
        self.jobs: JobStore = FaultyJobs(link)
        self.operations: JobOperations = FaultyOperations(link)
        self.reads: JobReads = FaultyReads(link)
        self.schedules: ScheduleStore = FaultySchedules(link)
        self.tenants: TenantStore = FaultyTenants(link)
        self.keys: KeyStore = UnsupportedKeys()
        self.sessions: SessionStore = UnsupportedSessions()
        self.notifications: Notifications = SimulatedNotifications(universe, process)
        self.inspection: Inspection | None = None
        self.pauses: LanePauses | None = None
        self.workers: WorkerRegistry | None = None
        self.history: HistoryStore | None = None
        self.pools: PoolBoard | None = None
        self.blocking: BlockingSubmission | None = None
        self.transactional: TransactionalSubmission | None = None

    async def open(self) -> int:
        self._link.open()
        return 0

    async def versions(self) -> SchemaVersions:
        return SchemaVersions(1, 1)

    async def close(self) -> None:
        """The simulated world closes every file at the end, including those of killed processes."""
