"""exchange ─► [run handler] ─► settle ─► exchange

The slots in which handlers run. A lease comes from an exchange, waits for a free slot, runs as a task, and ends as a
settlement.

    claim        sent, not answered yet; lease renewal watches it until the reply arrives
    prefetched   leased, not started: about a tenth of a second of work
    running      handlers at work; lease renewal extends their leases from its own thread
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping
from contextvars import copy_context

from leaseway.domain.ids import JobId
from leaseway.domain.kind import LEASE_SECONDS_MIN, Kind
from leaseway.domain.outcome import Released
from leaseway.worker.attempt import Attempt, Claim, Stop
from leaseway.worker.environment import STALE_SHARE, Environment
from leaseway.worker.run_handler import HandlerRunner, run_traced
from leaseway.worker.settle import Settlements

RELEASE_AFTER = 0.6
"""The age of a lease, as a share of its length, from which on a job that has not started is released."""


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
        return max(self._count - len(self.running) - abandoned, 0)

    def is_idle(self) -> bool:
        return not self.running and not self.prefetched

    # -- leases that wait to start ----------------------------------------------------------------------------------

    def put(self, claim: Claim, claimed: Iterable[Attempt]) -> None:
        """The reply to a claim. If lease renewal took the claim before, the remaining leases are released, too."""
        if claim.take(self):
            self.prefetched.extend(claimed)
        else:
            for attempt in claimed:
                if attempt.lease not in claim.released:
                    self._settlements.settle(attempt, Released())
                else:
                    self._settlements.drop(attempt)
        self.claim = None

    def fill(self) -> None:
        """Start prefetched jobs while slots are free."""
        now = self._environment.clock.monotonic()
        while self.free and (attempt := self._next()) is not None:
            if attempt.age(now) < RELEASE_AFTER:
                self._start(attempt)
            else:
                # The loop was blocked until the lease was old. The rest of it may not last until the first renewal.
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
            self.halt(self.running[attempt.lease.id], Stop.LOST)
        self.running[attempt.lease.id] = attempt
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
        return True
