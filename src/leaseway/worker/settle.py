"""exchange ─► run handler ─► [settle] ─► exchange

The way of a settlement, from the end of an attempt to the store's acknowledgement:

    settle()        the attempt ended with an outcome; `domain.outcome.decide` turns it into a settlement
    outbox          the settlement waits for the next exchange, so that one transaction carries many
    is_due()        enough settlements wait, the first has waited long enough, or no other job is running
    take()          the worker's loop puts all of them into its next exchange
    put_back()      the reply was lost; the same settlements are sent again, which has no second effect
    acknowledge()   the store answered: each settlement was accepted, or refused because its lease was lost

Until the acknowledgement the job's lease is still renewed (`unacknowledged`), because the store still counts it as
held.
"""

from collections.abc import Callable, Iterable, Mapping

import msgspec

from leaseway.domain.ids import JobId, Token, WorkerId
from leaseway.domain.job import Lease, Settlement, State
from leaseway.domain.kind import Kind, KindDefaults
from leaseway.domain.outcome import Failed, Outcome, Released, decide
from leaseway.worker.attempt import Attempt
from leaseway.worker.environment import Environment, WorkerSettings

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
        self.unacknowledged: dict[tuple[JobId, Token], Attempt] = {}
        self.wake: Callable[[], None] = lambda: None
        """Called when the worker's loop may have to send an exchange."""
        self.is_idle: Callable[[], bool] = lambda: True
        """Tells whether no job is running or prefetched."""
        self.finished = 0
        """Attempts that ended since the worker's rate was last measured."""
        self.released = 0
        self.accepted = 0
        self.refused = 0

    def __len__(self) -> int:
        return len(self._outbox)

    # -- an attempt ends --------------------------------------------------------------------------------------------

    def settle(self, attempt: Attempt, outcome: Outcome) -> None:
        self._end(attempt)
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
                settlement = msgspec.structs.replace(settlement, progress=attempt.progress)
            self.unacknowledged[lease.id, lease.token] = attempt
            self._post(settlement)
            if type(outcome) is Failed:
                self._log_failure(lease, outcome.failure.code, settlement.state)

    def drop(self, attempt: Attempt) -> None:
        """The attempt ended, and there is nothing to settle: its lease belongs to another attempt, or was released."""
        self._end(attempt)

    def _log_failure(self, lease: Lease, code: str, state: State) -> None:
        self._environment.events.emit(
            "attempt_failed", job=lease.id, kind=lease.kind, attempt=lease.attempts, code=code, state=state.value
        )

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
        """Everything in the outbox, for the exchange that is sent now."""
        taken, self._outbox = tuple(self._outbox), []
        return taken

    def put_back(self, settlements: tuple[Settlement, ...]) -> None:
        """The exchange was not answered. Sending a settlement again has no second effect."""
        self._outbox[:0] = settlements

    def acknowledge(self, settlements: Iterable[Settlement], lost: tuple[JobId, ...]) -> None:
        """The store answered. It refused the settlements of the jobs in `lost`, whose leases had ended before."""
        count = 0
        for settlement in settlements:
            self.unacknowledged.pop((settlement.id, settlement.token), None)
            count += 1
        self.accepted += count - len(lost)
        self.refused += len(lost)
        for job in lost:
            self._environment.events.emit("settlement_refused", worker=self._worker, job=job)
