"""exchange ─► [run handler] ─► settle ─► exchange

The slots in which handlers run. A lease comes from an exchange, waits for a free slot, runs as a task, and ends as a
settlement.

    claim        sent, not answered yet; lease renewal watches it until the reply arrives
    prefetched   leased, not started: about a tenth of a second of work
    running      handlers at work; lease renewal extends their leases from its own thread

A handler that waits in place for a limit or a budget gives up its slot: see `WaitingPlaces`.
"""

import asyncio
import contextlib
import threading
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from contextvars import copy_context

from leaseway.domain.errors import TransientError
from leaseway.domain.exchange import ProgressReport, Wants
from leaseway.domain.ids import JobId
from leaseway.domain.job import LEASE_SECONDS_MIN, Lease
from leaseway.domain.kind import Kind
from leaseway.domain.outcome import Released
from leaseway.worker.environment import STALE_SHARE, Environment
from leaseway.worker.run_handler import HandlerRunner, run_traced
from leaseway.worker.settle import Attempt, Settlements, Stop

REPORT_SECONDS = 0.5
"""How often the progress of running jobs is stored."""


class Claim:
    """A claim that was sent and has not been answered yet.

    The leases that it was granted run down in the store while the reply is on its way. The reply must pass through the
    worker's event loop, which a handler may block. Lease renewal has its own thread and its own connection: it asks the
    store what was granted and releases it before it expires. So two parties may want the same claim, and the first one
    to take it keeps it:

        the worker, when the reply arrives           its leases are prefetched and run
        lease renewal, when no reply arrives in time its leases are released, now and whenever one turns up later

    All leases of a claim carry its token. The same job may be granted twice under it, because an exchange whose reply
    was lost is sent again; a release that is on its way then ends the second lease together with the first. That is
    harmless, because nothing runs under a token that lease renewal has taken.
    """

    __slots__ = ("_lock", "_owner", "checked_at", "released", "renewed", "sent_at", "wants")

    def __init__(self, wants: Wants, sent_at: float) -> None:
        self.wants = wants
        self.sent_at = sent_at
        """Before the first request was sent: no lease of this claim is older."""
        self.checked_at = sent_at
        """When lease renewal last asked what was granted."""
        self.released: set[Lease] = set()
        """Leases that lease renewal has released, acknowledged by the store."""
        self.renewed: tuple[float, frozenset[Lease]] = (sent_at, frozenset())
        """When lease renewal last renewed leases of this claim, and which."""
        self._owner: object | None = None
        self._lock = threading.Lock()

    def take(self, owner: object) -> bool:
        """True for the first owner that asks, then and later."""
        with self._lock:
            if self._owner is None:
                self._owner = owner
            return self._owner is owner

    @property
    def is_taken(self) -> bool:
        return self._owner is not None

    def granted(self) -> Wants:
        """In a repeated exchange: asks for what was granted before, and for nothing new."""
        return Wants(self.wants.queues, 0, self.wants.token)


PLACES_PER_SLOT = 20
PLACES_MAX = 1_000
"""How many jobs wait in place at most, unless four times as many as there are slots is more."""


class WaitingPlaces:
    """The attempts that have waited in place. An attempt that waits takes a place and no slot. It continues in one of
    as many other slots, so that it holds up no job that has not begun.

    A place costs memory, and a thread if the handler is a plain function, so their number is bounded. A tenant uses at
    most half of the places that other tenants leave, and one attempt of each tenant continues in any case: a tenant
    whose budget is used up until tomorrow must not stop the jobs of others.
    """

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._places = max(4 * slots, min(PLACES_PER_SLOT * slots, PLACES_MAX))
        self._waits: dict[Attempt, int] = {}
        """How many calls of each attempt wait now; 0: it has continued."""
        self._used: Counter[str] = Counter()
        """Places by tenant."""
        self._continued: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._waits)

    def share(self, tenant: str) -> int:
        """How many places the tenant may use."""
        return (self._places - len(self._waits) + self._used[tenant]) // 2

    def enter(self, attempt: Attempt) -> bool:
        """A call of this attempt starts to wait. False: there is no place."""
        tenant = attempt.lease.tenant
        if attempt not in self._waits:
            if self._used[tenant] >= self.share(tenant):
                return False
            self._waits[attempt] = 0
            self._used[tenant] += 1
            self._continued[tenant] += 1
        if not self._waits[attempt]:
            self._continued[tenant] -= 1
        self._waits[attempt] += 1
        return True

    def may_leave(self, attempt: Attempt) -> bool:
        """Whether there is a slot in which the attempt continues."""
        is_free = self._continued.total() < self._slots or not self._continued[attempt.lease.tenant]
        return is_free or self._waits.get(attempt) != 1

    def leave(self, attempt: Attempt) -> None:
        """A call of this attempt waits no longer."""
        if attempt in self._waits:
            self._waits[attempt] -= 1
            self._continued[attempt.lease.tenant] += not self._waits[attempt]

    def forget(self, attempt: Attempt) -> None:
        """The attempt has ended."""
        waits, tenant = self._waits.pop(attempt, None), attempt.lease.tenant
        if waits is not None:
            self._used[tenant] -= 1
            self._continued[tenant] -= not waits
            if not self._used[tenant]:
                del self._used[tenant], self._continued[tenant]


class Slots:
    def __init__(
        self,
        environment: Environment,
        kinds: Mapping[str, Kind],
        runner: HandlerRunner,
        settlements: Settlements,
        count: int,
    ) -> None:
        self._environment = environment
        self._kinds = kinds
        self._runner = runner
        self._settlements = settlements
        self._count = count
        self._sync_running = 0
        self.places = WaitingPlaces(count)
        self._context = copy_context()
        self.claim: Claim | None = None
        self.prefetched: deque[Attempt] = deque()
        self.running: dict[JobId, Attempt] = {}
        self.lost = 0
        self.fault: BaseException | None = None
        """An error of leaseway itself, never of a handler: the worker must stop."""

    @property
    def free(self) -> int:
        # A thread that continues after its attempt has ended still takes a slot.
        abandoned = max(self._runner.threads.busy - self._sync_running, 0)
        return max(self._count + len(self.places) - len(self.running) - abandoned, 0)

    def count_waiting(self) -> int:
        """How many handlers wait for a limit or a budget. Also called from the thread of lease renewal."""
        return sum(attempt.is_waiting for attempt in self.running.copy().values())

    def enter_place(self, attempt: Attempt) -> bool:
        """Other jobs may use the slot of an attempt that starts to wait in place."""
        if self.running.get(attempt.lease.id) is not attempt or not self.places.enter(attempt):
            return False
        self.fill()
        self._settlements.wake()
        return True

    def may_leave_place(self, attempt: Attempt) -> bool:
        return self.places.may_leave(attempt)

    def leave_place(self, attempt: Attempt) -> None:
        self.places.leave(attempt)

    def is_idle(self) -> bool:
        return not self.running and not self.prefetched

    # -- leases that wait to start ----------------------------------------------------------------------------------

    def put(self, claim: Claim, claimed: Iterable[Attempt]) -> None:
        """The reply to a claim. If lease renewal took the claim before, the remaining leases are released, too."""
        attempts, (renewed_at, renewed) = list(claimed), claim.renewed
        for attempt in attempts if renewed else ():
            if attempt.lease in renewed:
                attempt.renewed_at = max(attempt.renewed_at, renewed_at)
        if claim.take(self):
            self.prefetched.extend(attempts)
        else:
            for attempt in attempts:
                if attempt.lease not in claim.released:
                    self._settlements.settle(attempt, Released())
                else:
                    self._settlements.drop(attempt)
        self.claim = None

    def fill(self) -> None:
        """Start prefetched jobs while slots are free."""
        now = self._environment.clock.monotonic()
        while self.free and (attempt := self._next()) is not None:
            if attempt.may_start(now):
                self._start(attempt)
            else:  # the loop was blocked until the lease was old
                self._settlements.settle(attempt, Released())

    def release_stale(self) -> None:
        """Release jobs that still wait for a slot after a third of their lease, so that a faster worker runs them."""
        now = self._environment.clock.monotonic()
        if not self.prefetched or now - self.prefetched[0].renewed_at < STALE_SHARE * LEASE_SECONDS_MIN:
            return
        fresh: list[Attempt] = []
        while (waiting := self._next()) is not None:
            if waiting.age(now) < STALE_SHARE:
                fresh.append(waiting)
            else:
                self._settlements.settle(waiting, Released())
        self.prefetched.extend(fresh)

    def release_prefetched(self) -> None:
        """Release everything that has not started."""
        while (waiting := self._next()) is not None:
            self._settlements.settle(waiting, Released())

    def _next(self) -> Attempt | None:
        """Take the first prefetched attempt. Lease renewal may do the same from its thread; each attempt is taken
        once."""
        try:
            return self.prefetched.popleft()
        except IndexError:
            return None

    # -- stopping handlers ------------------------------------------------------------------------------------------

    def cancel(self, job: JobId) -> None:
        if job in self.running:
            self.halt(self.running[job], Stop.CANCELLED)

    def halt(self, attempt: Attempt, why: Stop) -> None:
        """Stop this attempt, but not a later attempt of the same job that this worker has claimed meanwhile."""
        lease = attempt.lease
        if attempt.stop is not None or self.running.get(lease.id) is not attempt:
            return
        if why is Stop.LOST:
            self.lost += 1
            self._environment.events.emit("lease_lost", job=lease.id, kind=lease.kind)
        attempt.halt(why)

    def halt_all(self) -> None:
        for attempt in list(self.running.values()):
            self.halt(attempt, Stop.DRAIN)

    async def stop(self, seconds: float) -> list[Attempt]:
        """Stop every handler. Returns the attempts that did not end in time; their jobs are released anyway."""
        tasks = [attempt.task for attempt in self.running.values() if attempt.task is not None]
        self.halt_all()
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)
        stuck = list(self.running.values())
        for attempt in stuck:
            del self.running[attempt.lease.id]
            self.places.forget(attempt)
            self._settlements.settle(attempt, Released())
        return stuck

    # -- running ----------------------------------------------------------------------------------------------------

    def _start(self, attempt: Attempt) -> None:
        kind = self._kinds.get(attempt.lease.kind)
        attempt.is_sync = kind is not None and not kind.is_async
        self._sync_running += attempt.is_sync
        if attempt.lease.id in self.running:
            # This worker was suspended for longer than a lease and has claimed the same job again: the old attempt
            # ends.
            self.halt(old := self.running[attempt.lease.id], Stop.LOST)
            self.places.forget(old)
        self.running[attempt.lease.id] = attempt
        attempt.places = self
        # The worker is the parent of these tasks: it stops and awaits them when it leaves.
        attempt.task = asyncio.get_running_loop().create_task(self._run(attempt), context=self._context.copy())

    async def _run(self, attempt: Attempt) -> None:
        try:
            if (tracing := self._environment.tracing) is None:
                outcome = await self._runner.run(attempt)
            else:
                outcome = await run_traced(tracing, self._runner.run, attempt)
        except asyncio.CancelledError:
            self._remove(attempt)
            raise
        except BaseException as error:  # noqa: BLE001 - kept for the worker, which raises it
            self._remove(attempt)
            self.fault = error
            return
        if self._remove(attempt):
            self._settlements.settle(attempt, outcome)
            self.fill()
        else:
            self._settlements.drop(attempt)

    def _remove(self, attempt: Attempt) -> bool:
        """False: there is nothing to settle, because the job was released or this worker has claimed it again."""
        self._sync_running -= attempt.is_sync
        if self.running.get(attempt.lease.id) is not attempt:
            return False
        del self.running[attempt.lease.id]
        self.places.forget(attempt)
        return True

    async def report_progress(self) -> None:
        """Store the progress of running jobs."""
        while True:  # until it is cancelled
            await self._environment.clock.sleep(REPORT_SECONDS)
            changed = [each for each in self.running.values() if each.progress_is_new]
            if not changed:
                continue
            seal = self._environment.encryption.seal_progress
            reports = [
                ProgressReport(each.lease.id, each.lease.token, seal(each.lease, each.progress or ""))
                for each in changed
            ]
            for each in changed:
                each.progress_is_new = False
            with contextlib.suppress(TransientError):  # the next report replaces a lost one
                await self._environment.store.jobs.report(reports)
