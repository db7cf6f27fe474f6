"""The store of an app: opened at first use, replaced after `close`, and refused after a fork."""

import os
import threading
from collections.abc import Coroutine
from typing import Any, Self, TypeVar

from leaseway.domain.errors import UsageError, redact_url
from leaseway.ports.store import Store
from leaseway.ports.telemetry import Events
from leaseway.sync_portal import SyncPortal, refuse_running_loop
from leaseway.wiring import build_environment
from leaseway.worker.environment import Environment

T = TypeVar("T")


class StoreSession:
    """What `App` does with its store, besides jobs."""

    def __init__(self, url: str, key: str | None, limits: str | None, events: Events) -> None:
        self.url = url
        self._key = key
        """The API key, if the store is a service (https://…). None: the value of LEASEWAY_KEY."""
        self.limits_url = limits
        """Where limits are kept, if not in the store: redis://…"""
        self.events = events
        self._world = build_environment(url, limits, events, key)
        self._is_open = False
        self._opening = 0
        """The number of callers that are opening the store now."""
        self._pid = os.getpid()
        self._portal: SyncPortal | None = None
        self._portal_lock = threading.Lock()

    def move(self, url: str, events: Events | None = None, limits: str | None = None) -> None:
        """Use another store, other limits or another receiver of events. Call it before the store is opened."""
        if self._is_open:
            raise UsageError(f"the app has opened {redact_url(self.url)}; close it before moving to {redact_url(url)}")
        # An API key must not be sent to another service.
        self._key = self._key if url == self.url else None
        self.url = url
        self.limits_url = limits or self.limits_url
        self.events = events or self.events
        self._world = build_environment(url, self.limits_url, self.events, self._key)

    @property
    def world(self) -> Environment:
        """The ports that the app uses now: store, limiter, ledger, clock. `close` and `move` replace them."""
        return self._world

    async def store(self) -> Store:
        """The app's store. The first call opens it."""
        if self._pid != os.getpid():
            self._reset_after_fork()
        world = self._world
        if not self._is_open:
            self._opening += 1
            try:
                await world.store.open()
                self._is_open = world is self._world
            except BaseException:
                # The last caller that fails closes the store, because `close` does nothing for an app that is not open.
                if self._opening == 1 and not self._is_open:
                    await world.store.close()
                raise
            finally:
                self._opening -= 1
        return world.store

    def _reset_after_fork(self) -> None:
        if self._is_open:
            # SQLite tracks its file locks in memory, which a fork copies, but a fork does not copy the locks
            # themselves.
            raise UsageError(
                "the store was opened before this process was forked, and cannot be used in both processes; "
                "fork before you open it, or spawn processes instead"
            )
        self._world = build_environment(self.url, self.limits_url, self.events, self._key)
        self._pid, self._portal, self._portal_lock = os.getpid(), None, threading.Lock()

    async def close(self) -> None:
        """Close the store and the limiter. The next use opens them again."""
        if self._is_open:
            left = self._world
            # Before the first await: a submission meanwhile opens a new store instead of using the one that is closing.
            self._is_open = False
            if not self.url.startswith("memory:"):  # the memory store lives as long as the process
                self._world = build_environment(self.url, self.limits_url, self.events, self._key)
            await left.limiter.close()
            await left.store.close()

    async def __aenter__(self) -> Self:
        await self.store()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def sync(self, call: Coroutine[Any, Any, T]) -> T:
        """Run one of the async methods from code that is not async, and wait for its result."""
        try:
            refuse_running_loop()
        except UsageError:
            call.close()
            raise
        with self._portal_lock:  # several threads share one portal, and none uses a closed one
            if self._portal is None or self._pid != os.getpid():
                self._portal = SyncPortal()
            answer = self._portal.begin(call)
        return answer.result()

    def close_sync(self) -> None:
        """Like `close`, for code that is not async."""
        refuse_running_loop()
        try:
            self.sync(self.close())
        finally:
            with self._portal_lock:
                portal, self._portal = self._portal, None
            if portal is not None:
                portal.close()
