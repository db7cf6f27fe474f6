"""Notifications that there may be work: from this process at once, from others by a change stream.

A change stream is a hint. It needs the right to watch a collection, and a majority of the set; without either, workers
find jobs when they poll. While the stream is open, a poll that found nothing is trusted for FORECAST_SECONDS: what
could bring work earlier is a change of a lane, except a pause, a closed lane or a lease of another process. A task
follows the stream while a worker waits, and a while longer, because opening a stream costs more than keeping it.
"""

import asyncio
import time

from pymongo.asynchronous.change_stream import AsyncChangeStream

from leaseway.domain.errors import LeasewayError
from leaseway.stores.mongodb.database import JobDatabase
from leaseway.stores.mongodb.documents import PENDING, Doc
from leaseway.stores.mongodb.schema import LANE_CHANGES

LINGER_SECONDS = 30.0
"""How long a stream is followed after the last wait."""
AWAIT_MS_MAX = 5_000
"""How long the server waits for a change before it answers. A stream that is not needed ends after this time."""
RETRY_SECONDS = 5.0
CANCEL_AGAIN_SECONDS = 2.0
FORECAST_SECONDS = 4.0
"""How long a process that follows the stream trusts that there is nothing to do."""


class MongoNotifications:
    def __init__(self, database: JobDatabase) -> None:
        self._database = database
        self._local = database.local
        self._waited_at = 0.0
        self._follower: asyncio.Task[None] | None = None

    async def wait(self, seconds: float) -> bool:
        self._follow()
        with self._local.waiting() as event:
            try:
                async with asyncio.timeout(seconds):
                    return await event.wait()
            except TimeoutError:
                return False
            finally:
                self._waited_at = time.monotonic()

    def _follow(self) -> None:
        """One task for all event loops of this process. It belongs to the loop that needed it first."""
        self._waited_at = time.monotonic()
        follower = self._follower
        if follower is None or follower.done() or follower.get_loop().is_closed():
            self._follower = asyncio.get_running_loop().create_task(self._follow_changes())

    async def _follow_changes(self) -> None:
        while self._is_needed():
            try:
                await self._read_stream()
            except LeasewayError:  # an election, or a user without the right to watch
                await asyncio.sleep(RETRY_SECONDS)

    async def _read_stream(self) -> None:
        more = [{f"fullDocument.counts.{status}": {"$gt": 0}} for status in PENDING]
        inserted = {"operationType": "insert", "$or": more, "fullDocument.by": {"$ne": self._database.name}}
        fields = {"$project": {"ready": "$fullDocument.counts.ready"}}
        async with self._database.connections.calling(is_long=True) as database:
            stream = await database[LANE_CHANGES].watch([{"$match": inserted}, fields], max_await_time_ms=AWAIT_MS_MAX)
            try:
                async with stream:
                    await self._read_changes(stream)
            finally:
                self._database.is_followed = False

    async def _read_changes(self, stream: AsyncChangeStream[Doc]) -> None:
        while self._is_needed() and stream.alive:
            change = await stream.try_next()
            if not self._database.is_followed:  # the stream begins here; what was changed before is not in it
                self._local.expire_forecasts()
                self._database.is_followed = True
            if change is None:
                continue
            if change.get("ready", 0) > 0:
                self._local.notify()
            else:
                self._local.expire_forecasts()

    def _is_needed(self) -> bool:
        return self._local.is_awaited or time.monotonic() < self._waited_at + LINGER_SECONDS

    async def close(self) -> None:
        """The task of another event loop ends with that loop. A write of pymongo may swallow a cancellation."""
        follower, self._follower = self._follower, None
        if follower is None or follower.get_loop() is not asyncio.get_running_loop():
            return
        while not follower.done():
            follower.cancel()
            await asyncio.wait([follower], timeout=CANCEL_AGAIN_SECONDS)
