"""exchange ─► [run handler] ─► settle ─► exchange

The places in which handlers run. A lease comes from an exchange, waits on the shelf for a free slot, runs as a task,
and leaves as a settlement.

    claim     asked for, not answered: the keeper looks after it as long as the reply does not come
    shelf     leased, not started: a moment's work, never more than a lease covers
    running   handlers at work; the keeper renews their leases from outside this loop
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextvars import copy_context

import msgspec

from leaseway.domain.ids import JobId, Token
from leaseway.domain.job import Lease, Settlement, State
from leaseway.domain.kind import Kind, KindDefaults
from leaseway.domain.outcome import Failed, Outcome, Released, decide
from leaseway.domain.submission import LEASE_SECONDS_MIN
from leaseway.domain.worker_pacing import STALE_SHARE
from leaseway.worker.attempt import Attempt, Stop
from leaseway.worker.environment import Environment
from leaseway.worker.job_origins import traced
from leaseway.worker.lease_renewal import CLEAR_AFTER, Claim, age
from leaseway.worker.run_handler import HandlerRunner

UNKNOWN_KIND = KindDefaults()

Post = Callable[[Settlement], None]
End = Callable[[Attempt], None]


class Slots:
    def __init__(
        self, world: Environment, kinds: Mapping[str, Kind], runner: HandlerRunner, count: int, post: Post, end: End
    ) -> None:
        self._world = world
        self._kinds = kinds
        self._runner = runner
        self._count = count
        self._post = post
        self._end = end
        """Told of every job that leaves, whatever became of it."""
        self._plain = 0
        self.claim: Claim | None = None
        self.shelf: deque[Attempt] = deque()
        self.running: dict[JobId, Attempt] = {}
        self.settling: dict[tuple[JobId, Token], Attempt] = {}
        """Ended, and not yet known to the store: their leases must last until it answers."""
        self._context = copy_context()
        self.finished = 0
        self.lost = 0
        self.given_back = 0
        self.fault: BaseException | None = None
        """An error of our own, never a handler's: the worker must stop."""

    @property
    def free(self) -> int:
        # A thread that went on after its attempt had ended still takes a slot.
        abandoned = max(self._runner.threads.busy - self._plain, 0)
        return max(self._count - len(self.running) - abandoned, 0)

    @property
    def is_quiet(self) -> bool:
        return not self.running and not self.shelf

    def put(self, claim: Claim, claimed: Iterable[Attempt]) -> None:
        """The reply to a claim. If the keeper took the claim before it came, the rest of it goes back as well."""
        if claim.take(self):
            self.shelf.extend(claimed)
        else:
            for running in claimed:
                if running.lease not in claim.given_back:
                    self._settle(running, Released())
                else:
                    self._end(running)
        self.claim = None

    def fill(self) -> None:
        now = self._world.clock.monotonic()
        while self.free and (running := self._next()) is not None:
            if age(running, now) < CLEAR_AFTER:
                self._start(running)
            else:
                # The loop stood still for so long that the keeper would give it back, too: what is left of the lease
                # may not last until it is renewed.
                self._settle(running, Released())

    def return_stale(self) -> None:
        """What still waits for a slot after a good part of its lease belongs to somebody faster."""
        now = self._world.clock.monotonic()
        if not self.shelf or now - self.shelf[0].renewed_at < STALE_SHARE * LEASE_SECONDS_MIN:
            return
        fresh: list[Attempt] = []
        while (waiting := self._next()) is not None:
            if age(waiting, now) < STALE_SHARE:
                fresh.append(waiting)
            else:
                self._settle(waiting, Released())
        self.shelf.extend(fresh)

    def clear_shelf(self) -> None:
        """Give back everything that has not started."""
        while (waiting := self._next()) is not None:
            self._settle(waiting, Released())

    def _next(self) -> Attempt | None:
        """The first of the shelf. Whoever takes it owns it: the keeper may take from the other side of the loop."""
        try:
            return self.shelf.popleft()
        except IndexError:
            return None

    def cancel(self, job: JobId) -> None:
        if job in self.running:
            self.halt(self.running[job], Stop.CANCELLED)

    def halt(self, running: Attempt, why: Stop) -> None:
        """Stop this attempt, and not the next one, if the same job has come to us again meanwhile."""
        lease = running.lease
        if running.stop is not None or self.running.get(lease.id) is not running:
            return
        if why is Stop.LOST:
            self.lost += 1
            self._world.events.emit("lease_lost", job=lease.id, kind=lease.kind)
        running.halt(why)

    def halt_all(self) -> None:
        for running in list(self.running.values()):
            self.halt(running, Stop.DRAIN)

    async def stop(self, seconds: float) -> list[Attempt]:
        """Stop every handler; answer those that would not end within this time, given back all the same."""
        tasks = [running.task for running in self.running.values() if running.task is not None]
        self.halt_all()
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)
        stuck = list(self.running.values())
        for running in stuck:
            del self.running[running.lease.id]
            self._settle(running, Released())
        return stuck

    def _start(self, running: Attempt) -> None:
        kind = self._kinds.get(running.lease.kind)
        running.is_plain = kind is not None and not kind.is_async
        self._plain += running.is_plain
        if running.lease.id in self.running:
            # We were away for longer than a lease, and the same job has come to us again: the old attempt must end.
            self.halt(self.running[running.lease.id], Stop.LOST)
        self.running[running.lease.id] = running
        # The worker is the parent of these tasks: it stops and awaits them when it leaves.
        running.task = asyncio.get_running_loop().create_task(self._attempt(running), context=self._context.copy())

    async def _attempt(self, running: Attempt) -> None:
        try:
            if (tracing := self._world.tracing) is None:
                outcome = await self._runner.run(running)
            else:
                outcome = await traced(tracing, self._runner.run, running)
        except asyncio.CancelledError:
            self._remove(running)
            raise
        except BaseException as error:  # noqa: BLE001 - kept for the worker, which raises it
            self._remove(running)
            self.fault = error
            return
        if self._remove(running):
            self._settle(running, outcome)
            self.fill()
        else:
            self._end(running)

    def _remove(self, running: Attempt) -> bool:
        """False: it is not ours to settle, because it was given back or has come to us again."""
        self._plain -= running.is_plain
        if self.running.get(running.lease.id) is not running:
            return False
        del self.running[running.lease.id]
        return True

    def _settle(self, running: Attempt, outcome: Outcome) -> None:
        self._end(running)
        lease = running.lease
        kind = self._kinds.get(lease.kind)
        backoff = (UNKNOWN_KIND if kind is None else kind.defaults).backoff
        settlement = decide(lease, outcome, backoff, self._world.chance.random())
        if type(outcome) is Released:
            self.given_back += 1
        else:
            self.finished += 1
        if settlement is not None:
            if running.progress_is_new:
                settlement = msgspec.structs.replace(settlement, progress=running.progress)
            self.settling[lease.id, lease.token] = running
            self._post(settlement)
            if type(outcome) is Failed:
                self._tell_of_failure(lease, outcome.failure.code, settlement.state)

    def acknowledged(self, settlements: Iterable[Settlement]) -> None:
        for settlement in settlements:
            self.settling.pop((settlement.id, settlement.token), None)

    def _tell_of_failure(self, lease: Lease, code: str, state: State) -> None:
        facts = {"job": lease.id, "kind": lease.kind, "attempt": lease.attempts, "code": code, "state": state.value}
        self._world.events.emit("attempt_failed", **facts)
