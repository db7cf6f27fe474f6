"""poller ─► [subscriber] ─► delivery: what one subscriber has received.

There is no queue. A subscriber keeps the sequence number up to which it has received changes, and reads from the change
log what has changed since: a slow subscriber receives fewer updates, not later and later ones.
"""

import asyncio
from contextlib import suppress
from typing import Literal

from leaseway.api.live.change_log import ChangeLog, EventBatch, View
from leaseway.domain.ids import Instant, JobId

EndReason = Literal["expired", "lifetime", "slow", "stopping", "disconnected", "invalid_message"]
"""expired: its credential is no longer valid. lifetime: it has been connected for the maximum time. slow: it does not
receive frames in time. stopping: the service shuts down. invalid_message: it sent a message that is not supported."""


class Subscriber:
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
