"""exchange ─► run handler ─► [settle] ─► exchange

An `Attempt` is what the worker knows of a job that it holds. This is the way of its settlement, from the end of the
attempt to the store's acknowledgement:

    settle()        the attempt ended with an outcome; `domain.outcome.decide` turns it into a settlement
    outbox          the settlement waits for the next exchange, so that one transaction carries many
    is_due()        enough settlements wait, the first has waited long enough, or no other job is running
    take()          the worker's loop puts them into its next exchange, as many as one carries
    put_back()      the reply was lost; the same settlements are sent again, which has no second effect
    acknowledge()   the store answered: each settlement was accepted, or refused because its lease was lost

Until the acknowledgement the job's lease is still renewed (`unacknowledged`), because the store still counts it as
held.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from typing import Protocol

import msgspec

from leaseway.domain.encryption import SEALED_PREFIX
from leaseway.domain.errors import AttemptEnded, UsageError
from leaseway.domain.ids import SECOND_US, JobId, Token, WorkerId
from leaseway.domain.job import WAITING, Failure, Lease, NewJob, Settlement, State
from leaseway.domain.kind import Kind, KindDefaults
from leaseway.domain.limits.limit import PermitRequest
from leaseway.domain.outcome import Failed, Outcome, Released, count_fitting, decide, fail_for_child
from leaseway.domain.validators import encode_payload
from leaseway.worker.environment import Environment, WorkerSettings, WorkTally
from leaseway.worker.permit_queue import Permit

RELEASE_AFTER = 0.6
"""The age of a lease, as a share of its length, from which on a job that has not started is released. The rest of the
lease may not last until the first renewal."""
SAFE_UNTIL = 0.9
"""The age at which a lease that could not be renewed counts as lost. The store ends it later than that."""
LOGGED_ERROR_MAX = 300
"""Characters of an error in a log line. The whole message and the traceback are in the store."""


class Stop(Enum):
    """Why the worker stopped a handler."""

    CANCELLED = "the job was cancelled"
    LOST = "the lease is lost"
    DRAIN = "the worker is stopping"


class Places(Protocol):
    """Where attempts wait in place."""

    def enter_place(self, attempt: "Attempt") -> bool:
        """A call starts to wait for a long time. False: there is no place to wait."""
        ...

    def may_leave_place(self, attempt: "Attempt") -> bool:
        """Whether the attempt can continue after its wait."""
        ...

    def leave_place(self, attempt: "Attempt") -> None: ...


class Attempt:
    """One delivery of a job, from the claim to the settlement.

    Only the event loop changes it, except `renewed_at` and `stop`, which the thread of lease renewal may set.
    """

    __slots__ = (
        "_calls_begun",
        "_calls_saved",
        "_progress_fields",
        "_time_left",
        "_timeout",
        "_waits",
        "began_at",
        "calls",
        "children",
        "has_ended",
        "is_started",
        "is_sync",
        "lease",
        "origin",
        "permit",
        "places",
        "progress",
        "progress_is_new",
        "renewed_at",
        "run_seconds",
        "stop",
        "task",
        "tenant_permit",
        "timed_out",
        "waits_for_loop",
        "waits_until",
    )

    def __init__(self, lease: Lease, sent_at: float) -> None:
        self.lease = lease
        self.renewed_at = sent_at
        """On the worker's monotonic clock, from before the request was sent: never later than the store's view."""
        self.task: asyncio.Task[None] | None = None
        self.stop: Stop | None = None
        self.timed_out = False
        self.began_at: float | None = None
        """When its handler was called, on the worker's monotonic clock."""
        self.run_seconds: float | None = None
        self.calls = 0
        """Calls that may have reached a provider since the last checkpoint. A restart would repeat them."""
        self.places: Places | None = None
        """Where it waits in place. None: anywhere."""
        self._calls_begun = self._calls_saved = 0
        self._timeout: asyncio.Timeout | None = None
        self._time_left = 0.0
        self._waits = 0
        self._progress_fields: dict[str, object] = {}
        self.progress: str | None = None
        self.progress_is_new = False
        self.is_sync = False
        """The handler is a plain function that runs in a thread."""
        self.waits_until = 0.0
        """When the last wait in place may end, by the worker's clock: it asks again before, at intervals."""
        self.waits_for_loop = 0
        """Calls of its thread that wait for the event loop."""
        self.is_started = False
        self.has_ended = False
        """The handler returned or was stopped, so its context accepts nothing more."""
        self.children: list[NewJob] = []
        self.permit: Permit | None = None
        """The permit that admitted the job; its first call uses it."""
        self.origin: str | None = None
        """The trace context of its submission, if tracing is on."""
        self.tenant_permit: PermitRequest | None = None
        """The place that the job takes under its tenant's concurrency limit until it ends."""

    def age(self, now: float) -> float:
        """The age of the lease as a share of its length, by the worker's clock."""
        return (now - self.renewed_at) * SECOND_US / self.lease.lease_us

    def may_start(self, now: float) -> bool:
        """Whether the handler may begin. The process may have been frozen, or its loop blocked, for longer than the
        lease lasts, so this is asked right before the handler's first line."""
        return self.stop is None and not self.timed_out and self.age(now) < RELEASE_AFTER

    def is_lost(self, now: float) -> bool:
        return self.stop is Stop.LOST or self.age(now) >= SAFE_UNTIL

    def refuse_if_ended(self, verb: str) -> None:
        """Raise `AttemptEnded` if a task or thread uses the context although its handler has returned."""
        if self.has_ended:
            raise AttemptEnded(
                f"job {self.lease.id}: ctx.{verb} was used after attempt {self.lease.attempts} had ended; "
                "await everything that uses the context before the handler returns"
            )

    @property
    def is_out_of_time(self) -> bool:
        """Whether the timeout of its handler is over."""
        return self._timeout is not None and self._timeout.expired()

    def halt(self, why: Stop) -> None:
        """Ask the handler to stop. The first reason counts."""
        if self.stop is None:
            self.stop = why
            # A task that is cancelled before its first step would end without an outcome. Such a task checks `stop`.
            if self.is_started and self.task is not None:
                self.task.cancel()

    def report(self, done: float, total: float | None, message: str | None) -> None:
        self._report(done=done, total=total, message=message)

    def _report(self, **fields: object) -> None:
        merged = {**self._progress_fields, **fields}
        self.progress = encode_payload(
            {name: value for name, value in merged.items() if name != WAITING or value}, "progress"
        )
        self._progress_fields, self.progress_is_new = merged, True

    # -- calls that a restart would repeat --------------------------------------------------------------------------

    def count_call(self) -> int:
        """A call to a provider may leave now. Returns its number."""
        self._calls_begun += 1
        self.calls += 1
        return self._calls_begun

    def uncount_call(self, number: int) -> None:
        """The provider did not process the call, so a restart would not repeat it."""
        if number > self._calls_saved:
            self.calls -= 1

    @contextlib.contextmanager
    def saving_calls(self) -> Iterator[None]:
        """Around a write after which a restart repeats none of the calls that were made before."""
        begun = self._calls_begun
        yield
        self._calls_saved, self.calls = begun, self._calls_begun - begun

    # -- waiting for a limit or a budget ----------------------------------------------------------------------------

    @contextlib.contextmanager
    def limited_to(self, timeout: asyncio.Timeout) -> Iterator[None]:
        """The timeout of the handler, while it runs."""
        self._timeout = timeout
        try:
            yield
        finally:
            self._timeout = None

    @property
    def is_waiting(self) -> bool:
        """A call of the handler waits for a permit or a hold."""
        return self._waits > 0

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Stop the timeout meanwhile: it bounds the work of a handler, not the time for which it is made to wait."""
        self._waits += 1
        if self._waits == 1:
            self._stop_timeout()
        try:
            yield
        finally:
            self._waits -= 1
            if not self._waits:
                self._continue_timeout()

    def enter_place(self) -> bool:
        return self.places is None or self.places.enter_place(self)

    def may_leave_place(self) -> bool:
        return self.places is None or self.places.may_leave_place(self)

    @contextlib.contextmanager
    def waiting_in_place(self, why: str) -> Iterator[None]:
        """A long wait, after which the handler continues where it is, once it has entered a place. Other jobs use its
        slot, and the reason is stored with the progress of the job."""
        self._report(**{WAITING: why})
        try:
            yield
        finally:
            if self.places is not None:
                self.places.leave_place(self)
            self._report(**{WAITING: None})

    def _stop_timeout(self) -> None:
        if self._timeout is not None and not self._timeout.expired() and (when := self._timeout.when()) is not None:
            self._time_left = when - asyncio.get_running_loop().time()
            self._timeout.reschedule(None)

    def _continue_timeout(self) -> None:
        if self._timeout is not None and not self._timeout.expired() and self._timeout.when() is None:
            self._timeout.reschedule(asyncio.get_running_loop().time() + self._time_left)


UNKNOWN_KIND = KindDefaults()


class Settlements:
    def __init__(
        self,
        worker: WorkerId,
        environment: Environment,
        kinds: Mapping[str, Kind],
        settings: WorkerSettings,
        end: Callable[[Attempt], None],
    ) -> None:
        self._worker = worker
        self._environment = environment
        self._kinds = kinds
        self._batch = settings.settle_batch
        self._linger_seconds = settings.settle_linger_seconds
        self._end = end
        """Called for every attempt that leaves the worker, whatever its outcome: it frees what the attempt held."""
        self._outbox: list[Settlement] = []
        self._waiting_since = 0.0
        self._one_parent = False
        """Whether an exchange contains at most one job with children, to find the one that the store refuses."""
        self.unacknowledged: dict[tuple[JobId, Token], Attempt] = {}
        self.wake: Callable[[], None] = lambda: None
        """Called when the worker's loop may have to send an exchange."""
        self.is_idle: Callable[[], bool] = lambda: True
        """Tells whether no job is running or prefetched."""
        self.finished = 0
        """Attempts that ended since the worker's rate was last measured."""
        self.tally = WorkTally(worker)
        self.released = 0
        self.accepted = 0
        self.refused = 0

    def __len__(self) -> int:
        return len(self._outbox)

    # -- an attempt ends --------------------------------------------------------------------------------------------

    def settle(self, attempt: Attempt, outcome: Outcome) -> None:
        self._end(attempt)
        if attempt.began_at is not None:
            attempt.run_seconds = self._environment.clock.monotonic() - attempt.began_at
        lease = attempt.lease
        kind = self._kinds.get(lease.kind)
        backoff = (UNKNOWN_KIND if kind is None else kind.defaults).backoff
        settlement = decide(lease, outcome, backoff, self._environment.chance.random())
        if type(outcome) is Released:
            self.released += 1
        else:
            self.finished += 1
        if settlement is not None:
            if attempt.progress_is_new:
                progress = self._environment.encryption.seal_progress(lease, attempt.progress or "")
                settlement = msgspec.structs.replace(settlement, progress=progress)
            self.unacknowledged[lease.id, lease.token] = attempt
            self._post(settlement)
            if type(outcome) is Failed:
                self._log_failure(lease, outcome.failure, settlement.state)

    def drop(self, attempt: Attempt) -> None:
        """The attempt ended, and there is nothing to settle: its lease belongs to another attempt, or was released."""
        self._end(attempt)

    def _log_failure(self, lease: Lease, failure: Failure, state: State) -> None:
        is_sealed = failure.message.startswith(SEALED_PREFIX)
        error = "(encrypted)" if is_sealed else self._environment.redactor.line(failure.message, LOGGED_ERROR_MAX)
        facts: dict[str, object] = {
            "job": lease.id,
            "kind": lease.kind,
            "attempt": lease.attempts,
            "code": failure.code,
        }
        self._environment.events.emit("attempt_failed", **facts, state=state.value, error=error)

    # -- the outbox -------------------------------------------------------------------------------------------------

    def _post(self, settlement: Settlement) -> None:
        was_empty = not self._outbox
        if was_empty:
            self._waiting_since = self._environment.clock.monotonic()
        self._outbox.append(settlement)
        if was_empty or self.is_due():
            self.wake()

    def is_due(self) -> bool:
        """Whether settlements must be sent now."""
        return bool(self._outbox) and (self.is_idle() or len(self._outbox) >= self._batch or self.seconds_left() <= 0)

    def seconds_left(self) -> float:
        """How much longer the first settlement may wait for others."""
        return self._waiting_since + self._linger_seconds - self._environment.clock.monotonic()

    # -- the exchange -----------------------------------------------------------------------------------------------

    def take(self) -> tuple[Settlement, ...]:
        """As much of the outbox as one exchange carries, for the exchange that is sent now."""
        outbox, later = self._outbox, list[Settlement]()
        if self._one_parent:
            later = [settlement for settlement in outbox if settlement.children][1:]
            outbox, self._one_parent = [each for each in outbox if each not in later], bool(later)
        fitting = count_fitting(outbox)
        self._outbox = outbox[fitting:] + later
        return tuple(outbox[:fitting])

    def put_back(self, settlements: tuple[Settlement, ...]) -> None:
        """The exchange was not answered. Sending a settlement again has no second effect."""
        self._outbox[:0] = settlements

    def put_back_refused(self, settlements: tuple[Settlement, ...], error: UsageError) -> None:
        """The store refused the whole exchange, which a child can cause. Parents are sent one by one, and the job whose
        child is refused fails with the error; the worker and its other jobs go on."""
        parents = [settlement for settlement in settlements if settlement.children]
        if not parents:
            raise error
        self._one_parent = len(parents) > 1
        if not self._one_parent:
            failed = fail_for_child(parents[0], str(error))
            settlements = tuple(failed if each is parents[0] else each for each in settlements)
            assert failed.failure is not None
            self._log_failure(self.unacknowledged[failed.id, failed.token].lease, failed.failure, failed.state)
        self.put_back(settlements)

    def acknowledge(self, settlements: Iterable[Settlement], lost: tuple[JobId, ...]) -> None:
        """The store answered. It refused the settlements of the jobs in `lost`, whose leases had ended before."""
        count, refused = 0, frozenset(lost)
        for settlement in settlements:
            attempt = self.unacknowledged.pop((settlement.id, settlement.token), None)
            count += 1
            if attempt is not None and settlement.id not in refused:
                self.tally.add(attempt.lease, settlement, attempt.run_seconds)
        self.accepted += count - len(lost)
        self.refused += len(lost)
        for job in lost:
            self._environment.events.emit("settlement_refused", worker=self._worker, job=job)
