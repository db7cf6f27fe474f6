"""snapshot ─► change log ─► [poller] ─► subscribers: polls while there are subscribers, and wakes them.

One poll serves all subscribers of a process. A notification from the store makes the next poll come earlier. With many
subscribers the poll interval grows, and they are woken in small groups, so that other requests are served in between.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress

from leaseway.api.live.change_log import MARGIN_US, OPERATOR_KINDS, ChangeLog, PollResult
from leaseway.api.live.settings import LiveSettings
from leaseway.api.live.snapshot import TENANT_KINDS, PolledJobs, SnapshotReader, StoreReading
from leaseway.api.live.subscribers import Subscriber
from leaseway.api.schemas.imports import ImportProgressDocument
from leaseway.domain.errors import LeasewayError
from leaseway.domain.ids import SECOND_US, JobId
from leaseway.worker.environment import Environment

log = logging.getLogger("leaseway.api")

GROUP = 25
"""Subscribers that are woken at once."""
FRESH_SECONDS = 1.0
"""A new subscriber does not receive an older poll."""
NOTIFICATION_SHARE = 0.5
"""The part of the poll interval that passes before a notification has an effect."""
FAILURE_SECONDS = 1.0


class Poller:
    """For one process and its event loop."""

    def __init__(
        self,
        world: Environment,
        stopping: asyncio.Event,
        settings: Callable[[], LiveSettings],
        imports: Callable[[], list[ImportProgressDocument]] = list,
    ) -> None:
        self.log = ChangeLog()
        self._world = world
        self._reader = SnapshotReader(world, imports)
        self._stopping = stopping
        self._settings = settings
        self._subscribers: set[Subscriber] = set()
        self._followed: Counter[JobId] = Counter()
        self._followed_offset = 0
        self._task: asyncio.Task[None] | None = None
        self._polled_at = self._left_at = self._shared_at = float("-inf")
        self._is_failing = False

    # -- subscribers ------------------------------------------------------------------------------------------------

    def add(self, subscriber: Subscriber) -> None:
        self._subscribers.add(subscriber)
        is_fresh = self._world.clock.monotonic() - self._polled_at < FRESH_SECONDS
        if (
            is_fresh
            and not self.log.is_behind(subscriber.received)
            and (not subscriber.view.is_operator or self._has_shared())
        ):
            subscriber.wake(self.log)
        if self._task is None or self._task.done():
            # The service owns the task and cancels it when it closes.
            self._task = asyncio.get_running_loop().create_task(self._run())

    def remove(self, subscriber: Subscriber) -> None:
        self._subscribers.discard(subscriber)
        self.follow(subscriber, ())
        self._left_at = self._world.clock.monotonic()

    def follow(self, subscriber: Subscriber, ids: Sequence[JobId]) -> bool:
        """False: all subscribers together would follow too many jobs."""
        added = [id_ for id_ in ids if id_ not in self._followed]
        if added and len(self._followed) + len(added) > self._settings().followed_max:
            return False
        self._followed.subtract(subscriber.follows)
        subscriber.follows = tuple(dict.fromkeys(ids))
        self._followed.update(subscriber.follows)
        self._followed = +self._followed
        return True

    def count(self, tenant: str | None = None) -> int:
        if tenant is None:
            return len(self._subscribers)
        return sum(subscriber.tenant == tenant for subscriber in self._subscribers)

    async def close(self) -> None:
        self._end_all()
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    # -- polling ----------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while not self._stopping.is_set() and self._is_needed():
            began = self._world.clock.monotonic()
            has_changed = await self._poll()
            await self._wake_subscribers(has_changed)
            await self._pause(self._world.clock.monotonic() - began, heeds_notifications=not has_changed)
        if self._stopping.is_set():
            self._end_all()

    def _is_needed(self) -> bool:
        left_seconds = self._world.clock.monotonic() - self._left_at
        return bool(self._subscribers) or left_seconds < self._settings().linger_seconds

    async def _poll(self) -> bool:
        clock = self._world.clock
        began = clock.monotonic()
        try:
            reading = await self._reader.read(self._selection())
            result = await self._with_shared(reading)
        except Exception as error:  # noqa: BLE001 - a failed poll must not end the stream
            self._report_failure(error)
            return False
        self._is_failing, self._polled_at = False, clock.monotonic()
        is_late = self._polled_at - began > MARGIN_US / SECOND_US
        return self.log.record(result._replace(is_late=is_late))

    async def _with_shared(self, reading: StoreReading) -> PollResult:
        """Adds limits and budgets if operators have subscribed."""
        result = PollResult(reading.now, reading.observations, TENANT_KINDS, reading.missing)
        now = self._world.clock.monotonic()
        is_wanted = any(subscriber.view.is_operator for subscriber in self._subscribers)
        if not is_wanted or now - self._shared_at < self._settings().shared_seconds:
            return result
        shared = await self._reader.read_shared()
        self._shared_at = now
        return result._replace(
            observations=[*reading.observations, *shared], complete_kinds=TENANT_KINDS | OPERATOR_KINDS
        )

    def _has_shared(self) -> bool:
        return self._world.clock.monotonic() - self._shared_at < FRESH_SECONDS + self._settings().shared_seconds

    def _selection(self) -> PolledJobs:
        settings = self._settings()
        part = 10 if len(self._subscribers) > settings.crowd else 1
        return PolledJobs(
            settings.newest // part, settings.ended // part, settings.unfinished // part, self._next_followed()
        )

    def _next_followed(self) -> list[JobId]:
        """Followed jobs, as many as one poll reads; polls take turns."""
        followed, count = list(self._followed), self._settings().followed_per_poll
        if len(followed) <= count:
            return followed
        self._followed_offset = (self._followed_offset + count) % len(followed)
        return (followed * 2)[self._followed_offset : self._followed_offset + count]

    def _report_failure(self, error: Exception) -> None:
        """Log a failure once, because it repeats five times per second."""
        if not self._is_failing:
            known = isinstance(error, LeasewayError)
            log.warning("live: poll failed: %s", error, exc_info=None if known else error)
        self._is_failing = True

    # -- waking -----------------------------------------------------------------------------------------------------

    async def _wake_subscribers(self, has_changed: bool) -> None:
        if self._is_failing:
            return
        for number, subscriber in enumerate(list(self._subscribers)):
            if has_changed or subscriber.is_new:
                subscriber.wake(self.log)
                if number % GROUP == GROUP - 1:
                    await self._world.clock.sleep(0)

    async def _pause(self, took_seconds: float, *, heeds_notifications: bool) -> None:
        """Notifications shorten the pause in quiet times only: while changes are frequent, they would double the
        number of polls."""
        settings = self._settings()
        interval = max(settings.poll_seconds, len(self._subscribers) * settings.subscriber_seconds)
        # On a store that responds slowly, polls must leave it time for other requests.
        seconds = max(interval - took_seconds, took_seconds * settings.idle_share / (1 - settings.idle_share))
        if self._is_failing:
            seconds = max(seconds, FAILURE_SECONDS)
        is_quiet = heeds_notifications and not self._is_failing
        notified_seconds = settings.poll_seconds * NOTIFICATION_SHARE if is_quiet else 0.0
        with suppress(TimeoutError):
            async with asyncio.timeout(max(seconds - notified_seconds, 0)):
                await self._stopping.wait()
        if notified_seconds and not self._stopping.is_set():
            with suppress(LeasewayError):
                await self._world.store.notifications.wait(notified_seconds)

    def _end_all(self) -> None:
        for subscriber in self._subscribers:
            subscriber.end("stopping")
