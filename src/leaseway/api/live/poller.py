"""snapshot ─► change log ─► [poller ─► subscribers] ─► delivery: polls while there are subscribers, and wakes them.

One poll serves all subscribers of a process. A notification from the store makes the next poll come earlier. With many
subscribers the poll interval grows, and they are woken in small groups, so that other requests are served in between.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import Context
from itertools import islice
from typing import Literal

from leaseway.api.live.change_log import MARGIN_US, OPERATOR_KINDS, ChangeLog, EventBatch, PollResult, View
from leaseway.api.live.snapshot import TENANT_KINDS, PolledJobs, SnapshotReader, StoreReading
from leaseway.api.schemas.imports import ImportProgressDocument
from leaseway.api.settings import LiveSettings
from leaseway.domain.errors import LeasewayError
from leaseway.domain.ids import SECOND_US, Instant, JobId
from leaseway.domain.lane import share
from leaseway.worker.environment import Environment, cancel_and_wait

EndReason = Literal["expired", "lifetime", "slow", "stopping", "disconnected", "invalid_message"]
"""expired: its credential is no longer valid. lifetime: it has been connected for the maximum time. slow: it does not
receive frames in time. stopping: the service shuts down. invalid_message: it sent a message that is not supported."""


class Subscriber:
    """What one subscriber has received.

    There is no queue. A subscriber keeps the sequence number up to which it has received changes, and reads from the
    change log what has changed since: a slow subscriber receives fewer updates, not later and later ones.
    """

    def __init__(self, tenant: str, view: View, received: Instant | None) -> None:
        self.tenant = tenant
        """The tenant whose subscribers are counted."""
        self.view = view
        self.received = received
        self.follows: tuple[JobId, ...] = ()
        self.is_new = True
        self.end_reason: EndReason | None = None
        self._woken = asyncio.Event()
        self._log: ChangeLog | None = None

    def wake(self, log: ChangeLog) -> None:
        self._log, self.is_new = log, False
        self._woken.set()

    def end(self, reason: EndReason) -> None:
        self.end_reason = self.end_reason or reason
        self._woken.set()

    async def wait_for_poll(self, seconds: float) -> bool:
        """Whether a poll that is recent enough for this subscriber was made within this time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        return not self.is_new

    async def next(self, seconds: float) -> EventBatch | None:
        """The changes that it lacks, as soon as there are some; an empty batch after this time. None: it must end."""
        try:
            async with asyncio.timeout(seconds):
                while True:  # until there are changes for this subscriber
                    await self._woken.wait()
                    self._woken.clear()
                    if self.end_reason is not None:
                        return None
                    batch = self._read()
                    if batch.frames:
                        return batch
        except TimeoutError:
            return EventBatch(self.received or 0)

    def _read(self) -> EventBatch:
        assert self._log is not None
        batch = self._log.since(self.view, self.received)
        self.received = batch.seq
        return batch


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
        self._followed: dict[str, Counter[JobId]] = {}
        """The followed jobs of each tenant, and how many subscribers follow them."""
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
            # The service owns the task and cancels it when it closes. It reads for all tenants.
            self._task = asyncio.get_running_loop().create_task(self._run(), context=Context())

    def remove(self, subscriber: Subscriber) -> None:
        self._subscribers.discard(subscriber)
        self.follow(subscriber, ())
        self._left_at = self._world.clock.monotonic()

    def follow(self, subscriber: Subscriber, ids: Sequence[JobId]) -> bool:
        """False: the subscribers of this tenant together would follow too many jobs."""
        followed = self._followed.get(subscriber.tenant, Counter())
        added = {id_ for id_ in ids if id_ not in followed}
        if added and len(followed) + len(added) > self._settings().tenant_followed_max:
            return False
        followed.subtract(subscriber.follows)
        subscriber.follows = tuple(dict.fromkeys(ids))
        followed.update(subscriber.follows)
        if followed := +followed:
            self._followed[subscriber.tenant] = followed
        else:
            self._followed.pop(subscriber.tenant, None)
        return True

    def count(self, tenant: str | None = None) -> int:
        if tenant is None:
            return len(self._subscribers)
        return sum(subscriber.tenant == tenant for subscriber in self._subscribers)

    async def close(self) -> None:
        self._end_all()
        await cancel_and_wait(self._task)

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
            polled_at = clock.monotonic()
            has_changed = self.log.record(result._replace(is_late=polled_at - began > MARGIN_US / SECOND_US))
        except Exception as error:  # noqa: BLE001 - a failed poll must not end the stream
            self._report_failure(error)
            return False
        self._is_failing, self._polled_at = False, polled_at
        return has_changed

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
        """Followed jobs, as many as one poll reads. Tenants get equal shares, and the jobs of a tenant take turns."""
        shares = share(self._settings().followed_per_poll, {name: len(ids) for name, ids in self._followed.items()})
        return [id_ for tenant, count in shares.items() for id_ in self._take_turns(tenant, count)]

    def _take_turns(self, tenant: str, count: int) -> list[JobId]:
        """The next followed jobs of a tenant. They move to the end."""
        followed = self._followed[tenant]
        chosen = list(islice(followed, count))
        if len(chosen) < len(followed):
            for id_ in chosen:
                followed[id_] = followed.pop(id_)
        return chosen

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
