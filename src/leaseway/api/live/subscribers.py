"""lookout ─► [listener] ─► session: what one of those who watch has been told.

There is no queue. A listener knows the number up to which it was told, and asks the board for what differs since: who
is slow is told less often, not later and later.
"""

import asyncio
from contextlib import suppress
from typing import Literal

from leaseway.api.live.change_log import Batch, Board, View
from leaseway.domain.ids import Instant, JobId

Why = Literal["expired", "old", "slow", "stopping", "left", "unruly"]
"""Why it ended: its credential is over; it has been here for long; it did not take what it was sent; the service stops;
it went; it said what nobody understands."""


class Listener:
    def __init__(self, tenant: str, view: View, told: Instant | None) -> None:
        self.tenant = tenant
        """Whose it is, for counting."""
        self.view = view
        self.told = told
        self.follows: tuple[JobId, ...] = ()
        self.is_new = True
        self.why: Why | None = None
        self._news = asyncio.Event()
        self._board: Board | None = None

    def wake(self, board: Board) -> None:
        self._board, self.is_new = board, False
        self._news.set()

    def end(self, why: Why) -> None:
        self.why = self.why or why
        self._news.set()

    async def seen(self, seconds: float) -> bool:
        """Whether a look has been made that counts for it, within this time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._news.wait()
        return not self.is_new

    async def next(self, seconds: float) -> Batch | None:
        """What it lacks, as soon as there is something; after this time a batch without frames. None: it shall end."""
        try:
            async with asyncio.timeout(seconds):
                while True:  # until there is news for this listener
                    await self._news.wait()
                    self._news.clear()
                    if self.why is not None:
                        return None
                    batch = self._told()
                    if batch.frames:
                        return batch
        except TimeoutError:
            return Batch(self.told or 0)

    def _told(self) -> Batch:
        assert self._board is not None
        batch = self._board.since(self.view, self.told)
        self.told = batch.seq
        return batch
