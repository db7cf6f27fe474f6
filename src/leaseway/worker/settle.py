"""exchange ─► run handler ─► [settle] ─► exchange

Settlements wait here for the next exchange, and for each other: one transaction carries many, as long as nobody
waits for it in vain.
"""

from leaseway.domain.job import Settlement
from leaseway.domain.worker_pacing import WorkerSettings
from leaseway.ports.clock import Clock


class Outbox:
    def __init__(self, clock: Clock, settings: WorkerSettings) -> None:
        self._clock = clock
        self._batch = settings.settle_batch
        self._linger_seconds = settings.settle_linger_seconds
        self._waiting: list[Settlement] = []
        self._since = 0.0

    def __len__(self) -> int:
        return len(self._waiting)

    def post(self, settlement: Settlement) -> None:
        if not self._waiting:
            self._since = self._clock.monotonic()
        self._waiting.append(settlement)

    def put_back(self, settlements: tuple[Settlement, ...]) -> None:
        self._waiting[:0] = settlements

    def is_due(self, *, is_quiet: bool) -> bool:
        """By count, by time, or because nothing else is running that it could wait for."""
        return bool(self._waiting) and (is_quiet or len(self._waiting) >= self._batch or self.seconds_left() <= 0)

    def seconds_left(self) -> float:
        return self._since + self._linger_seconds - self._clock.monotonic()

    def take(self) -> tuple[Settlement, ...]:
        taken, self._waiting = tuple(self._waiting), []
        return taken
