"""sights ─► board ─► [lookout] ─► listeners: looks while somebody listens, and wakes those who do.

One look serves all listeners of a process. A hint of the store makes the next look come earlier. With many listeners
looks become rarer, and the listeners are woken in small groups, so that whoever submits a job meanwhile does not wait
for all of them.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress

from leaseway.api.live.change_log import MARGIN_US, Board, Look
from leaseway.api.live.settings import Bounds
from leaseway.api.live.snapshot import OWN_KINDS, SHARED_KINDS, Seen, Sights, Wanted
from leaseway.api.live.subscribers import Listener
from leaseway.api.schemas.imports import ImportProgressDocument
from leaseway.domain.errors import LeasewayError
from leaseway.domain.ids import SECOND_US, JobId
from leaseway.worker.environment import Environment

log = logging.getLogger("leaseway.api")

GROUP = 25
"""Listeners that are woken at once."""
FRESH_SECONDS = 1.0
"""What was seen before that is not shown to somebody new."""
HINT_SHARE = 0.5
"""Of the time between two looks, so much passes before a hint counts."""
TROUBLE_SECONDS = 1.0


class Lookout:
    """Of one process and its loop."""

    def __init__(
        self,
        world: Environment,
        stopping: asyncio.Event,
        bounds: Callable[[], Bounds],
        imports: Callable[[], list[ImportProgressDocument]] = list,
    ) -> None:
        self.board = Board()
        self._world = world
        self._sights = Sights(world, imports)
        self._stopping = stopping
        self._bounds = bounds
        self._listeners: set[Listener] = set()
        self._followed: Counter[JobId] = Counter()
        self._turn = 0
        self._looking: asyncio.Task[None] | None = None
        self._looked_at = self._left_at = self._shared_at = float("-inf")
        self._is_troubled = False

    # -- listeners --------------------------------------------------------------------------------------------------

    def join(self, listener: Listener) -> None:
        self._listeners.add(listener)
        is_fresh = self._world.clock.monotonic() - self._looked_at < FRESH_SECONDS
        if (
            is_fresh
            and not self.board.is_ahead(listener.told)
            and (not listener.view.is_operator or self._has_shared())
        ):
            listener.wake(self.board)
        if self._looking is None or self._looking.done():
            # The service is its parent, and ends it when it closes.
            self._looking = asyncio.get_running_loop().create_task(self._look_on())

    def leave(self, listener: Listener) -> None:
        self._listeners.discard(listener)
        self.follow(listener, ())
        self._left_at = self._world.clock.monotonic()

    def follow(self, listener: Listener, ids: Sequence[JobId]) -> bool:
        """False: all listeners together follow too many."""
        added = [id_ for id_ in ids if id_ not in self._followed]
        if added and len(self._followed) + len(added) > self._bounds().followed_max:
            return False
        self._followed.subtract(listener.follows)
        listener.follows = tuple(dict.fromkeys(ids))
        self._followed.update(listener.follows)
        self._followed = +self._followed
        return True

    def count(self, tenant: str | None = None) -> int:
        if tenant is None:
            return len(self._listeners)
        return sum(listener.tenant == tenant for listener in self._listeners)

    async def close(self) -> None:
        self._end_all()
        if self._looking is not None:
            self._looking.cancel()
            with suppress(asyncio.CancelledError):
                await self._looking

    # -- looking ----------------------------------------------------------------------------------------------------

    async def _look_on(self) -> None:
        while not self._stopping.is_set() and self._is_needed():
            began = self._world.clock.monotonic()
            is_different = await self._look()
            await self._tell(is_different)
            await self._pause(self._world.clock.monotonic() - began, heeds_hints=not is_different)
        if self._stopping.is_set():
            self._end_all()

    def _is_needed(self) -> bool:
        left_seconds = self._world.clock.monotonic() - self._left_at
        return bool(self._listeners) or left_seconds < self._bounds().linger_seconds

    async def _look(self) -> bool:
        clock = self._world.clock
        began = clock.monotonic()
        try:
            seen = await self._sights.look(self._wanted())
            look = await self._with_shared(seen)
        except Exception as error:  # noqa: BLE001 - who watches must not be left alone by one look that went wrong
            self._trouble(error)
            return False
        self._is_troubled, self._looked_at = False, clock.monotonic()
        is_late = self._looked_at - began > MARGIN_US / SECOND_US
        return self.board.look(look._replace(is_late=is_late))

    async def _with_shared(self, seen: Seen) -> Look:
        look = Look(seen.now, seen.sightings, OWN_KINDS, seen.missing)
        now = self._world.clock.monotonic()
        is_wanted = any(listener.view.is_operator for listener in self._listeners)
        if not is_wanted or now - self._shared_at < self._bounds().shared_seconds:
            return look
        shared = await self._sights.look_at_shared()
        self._shared_at = now
        return look._replace(sightings=[*seen.sightings, *shared], whole=OWN_KINDS | SHARED_KINDS)

    def _has_shared(self) -> bool:
        return self._world.clock.monotonic() - self._shared_at < FRESH_SECONDS + self._bounds().shared_seconds

    def _wanted(self) -> Wanted:
        bounds = self._bounds()
        part = 10 if len(self._listeners) > bounds.crowd else 1
        return Wanted(bounds.newest // part, bounds.ended // part, bounds.again // part, self._due())

    def _due(self) -> list[JobId]:
        """Followed jobs, as many as one look takes, in turn."""
        followed, most = list(self._followed), self._bounds().follow_look
        if len(followed) <= most:
            return followed
        self._turn = (self._turn + most) % len(followed)
        return (followed * 2)[self._turn : self._turn + most]

    def _trouble(self, error: Exception) -> None:
        """Said once: it is the same trouble five times a second."""
        if not self._is_troubled:
            known = isinstance(error, LeasewayError)
            log.warning("live: cannot look: %s", error, exc_info=None if known else error)
        self._is_troubled = True

    # -- telling ----------------------------------------------------------------------------------------------------

    async def _tell(self, is_different: bool) -> None:
        if self._is_troubled:
            return
        for number, listener in enumerate(list(self._listeners)):
            if is_different or listener.is_new:
                listener.wake(self.board)
                if number % GROUP == GROUP - 1:
                    await self._world.clock.sleep(0)

    async def _pause(self, took_seconds: float, *, heeds_hints: bool) -> None:
        """Hints are for quiet times: where something changes all the time, they would only double the looks."""
        bounds = self._bounds()
        seconds = max(bounds.look_seconds, len(self._listeners) * bounds.listener_seconds) - took_seconds
        # On a store that answers slowly, what looks would take from others counts more.
        seconds = max(seconds, took_seconds * bounds.idle_share / (1 - bounds.idle_share))
        if self._is_troubled:
            seconds = max(seconds, TROUBLE_SECONDS)
        hinted_seconds = bounds.look_seconds * HINT_SHARE if heeds_hints and not self._is_troubled else 0.0
        with suppress(TimeoutError):
            async with asyncio.timeout(max(seconds - hinted_seconds, 0)):
                await self._stopping.wait()
        if hinted_seconds and not self._stopping.is_set():
            with suppress(LeasewayError):
                await self._world.store.notifications.wait(hinted_seconds)

    def _end_all(self) -> None:
        for listener in self._listeners:
            listener.end("stopping")
