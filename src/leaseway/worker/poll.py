"""store ─► [poll] ─► exchange: while slots are free, find out when an exchange would bring jobs.

A notification of the store ends the wait at once. Notifications may be lost, so the store is polled at intervals, too.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from leaseway.domain.errors import TransientError
from leaseway.domain.exchange import GRANT_MAX, Gate
from leaseway.domain.ids import SECOND_US, WorkerId
from leaseway.worker.environment import Environment, WorkerSettings, emit_unavailable, jitter, pause

EMPTY_POLL_SECONDS = 0.2
"""How often a worker that stops when all jobs are done checks whether they are. No notification tells it."""


class Poll:
    def __init__(
        self,
        worker: WorkerId,
        environment: Environment,
        settings: WorkerSettings,
        known_gates: Callable[[], Sequence[Gate]],
        all_done: Callable[[], Awaitable[bool]],
        wake: Callable[[], None],
    ) -> None:
        self._worker = worker
        self._environment = environment
        self._settings = settings
        self._known_gates = known_gates
        self._all_done = all_done
        self._wake = wake
        self._is_wanted = asyncio.Event()
        self.may_find_work = True
        """An exchange may bring jobs now."""
        self.found_nothing = False
        """The last exchange brought no job although a poll had seen one: other workers were faster, or more gates are
        closed than one exchange can name. The worker waits before it claims again."""
        self._trusts_notifications = True
        """A notification is followed by a claim without a poll, which saves a round trip. If such a claim finds
        nothing, because many workers heard the notification, the worker polls first until it finds work again."""
        self.is_empty = False
        """No unfinished job is left, and the worker was told to stop then."""

    def start(self) -> None:
        self._is_wanted.set()

    def learn(self, wanted: int, found: int) -> None:
        """From the reply to a claim. A full reply means that there may be more jobs; that of a service may be full with
        fewer jobs than were wanted."""
        self.may_find_work = found >= min(wanted, GRANT_MAX)
        self._trusts_notifications |= found > 0

    async def run(self) -> None:
        failures = 0
        while True:  # until it is cancelled
            await self._is_wanted.wait()
            try:
                wait_us = await self._environment.store.jobs.wait_us(self._settings.queues, self._known_gates())
                if wait_us == 0 and not self.found_nothing:
                    self._claim_soon()
                elif self._settings.until_empty and await self._all_done():
                    self._is_wanted.clear()
                    self.is_empty = True
                    self._wake()
                elif await self._notified(wait_us or None) and self._trusts_notifications:
                    self._trusts_notifications = False
                    self._claim_soon()
                self.found_nothing, failures = False, 0
            except TransientError as error:
                failures += 1
                emit_unavailable(self._environment, self._worker, "poll", failures, error)
                await pause(self._environment, failures)

    def _claim_soon(self) -> None:
        self._is_wanted.clear()
        self.may_find_work = True
        self._wake()

    async def _notified(self, wait_us: int | None) -> bool:
        """Wait for a notification, or until the next poll is due. True: a notification came."""
        poll_seconds = self._settings.poll_seconds
        if self._settings.until_empty:
            poll_seconds = min(poll_seconds, EMPTY_POLL_SECONDS)
        seconds = jitter(poll_seconds, self._environment.chance.random())
        if wait_us is not None:
            seconds = min(seconds, wait_us / SECOND_US)
        return await self._environment.store.notifications.wait(seconds)
