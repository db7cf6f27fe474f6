"""The store of an app: opened at first use, replaced after `close`, and refused after a fork.

Code that is not async calls the store through a portal: an event loop in a thread.
"""

import asyncio
import os
import threading
from collections.abc import Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, Self, TypeVar

from leaseway.aes_gcm import AesGcm
from leaseway.domain.encryption import Codec
from leaseway.domain.errors import BadValue, UsageError
from leaseway.domain.redact import Redactor, passwords_in, redact_url
from leaseway.domain.validators import in_schema, parse_texts
from leaseway.ports.job_store import TransactionalSubmission
from leaseway.ports.store import Store
from leaseway.ports.telemetry import Events
from leaseway.wiring import build_environment
from leaseway.worker.environment import Environment

T = TypeVar("T")

IN_THREAD = (
    "submit_in_sync() would block the event loop that is running here; use `await app.submit_in()` with an async "
    "connection, or run this code in a thread: a plain function of your framework, or asyncio.to_thread()"
)


def check_settings(texts: Mapping[str, object], events: object, codec: object) -> None:
    """Refuse objects of another type now, instead of when the first job is submitted or fails."""
    for name, text in texts.items():
        if text is not None and not isinstance(text, str):
            raise BadValue(name, f"must be a text (is {type(text).__name__})")
    for name, value, methods in (("events", events, EVENT_METHODS), ("codec", codec, CODEC_METHODS)):
        if value is not None and (isinstance(value, type) or not all(hasattr(value, each) for each in methods)):
            raise BadValue(name, f"must be an object with {', '.join(methods)} (is {value!r})")


EVENT_METHODS, CODEC_METHODS = ("emit",), ("encrypt", "decrypt", "fingerprint")


class StoreSession:
    """What `App` does with its store, besides jobs."""

    def __init__(
        self,
        url: str,
        key: str | None,
        limits: str | None,
        events: Events,
        secrets: Iterable[str] = (),
        codec: Codec | None = None,
        schema: str | None = None,
        blobs: str | None = None,
    ) -> None:
        check_settings({"url": url, "key": key, "limits": limits, "schema": schema, "blobs": blobs}, events, codec)
        secrets = parse_texts("secrets", secrets)
        self._schema = schema
        """The schema of stores in PostgreSQL, unless their URL names one."""
        self.url = in_schema(url, schema)
        self._key = key
        """The API key, if the store is a service (https://…). None: the value of LEASEWAY_KEY."""
        self.limits_url = limits and in_schema(limits, schema)
        """Where limits are kept, if not in the store: redis://…"""
        self.events = events
        self.redactor = Redactor([*secrets, *passwords_in(url), *passwords_in(limits), key or ""], os.environ)
        """Removes the secrets of this process from errors before they are stored."""
        self._blobs_url = blobs
        self._codec = AesGcm.from_environment() if codec is None else codec
        self._world = self._build()
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
        url = in_schema(url, self._schema)
        self._key = self._key if url == self.url else None
        self.url = url
        self.limits_url = in_schema(limits, self._schema) if limits else self.limits_url
        self.events = events or self.events
        self.redactor.add([*passwords_in(url), *passwords_in(limits)])
        self._world = self._build()

    def _build(self) -> Environment:
        return build_environment(
            self.url, self.limits_url, self.events, self._key, self.redactor, self._codec, self._blobs_url
        )

    @property
    def world(self) -> Environment:
        """The ports that the app uses now: store, limiter, ledger, clock. `close` and `move` replace them."""
        return self._world

    @contextmanager
    def using(self, world: Environment) -> Iterator[None]:
        """For tests: use these ports, whose store is open and in memory, until the end of the block."""
        before = self.url, self._world, self._is_open
        self.url, self._world, self._is_open = "memory://", world, True
        try:
            yield
        finally:
            self.url, self._world, self._is_open = before

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

    async def _transactional(self) -> TransactionalSubmission:
        if self._world.store.transactional is None:  # do not open a store that is refused
            raise refuse_transaction(self.url)
        opened = (await self.store()).transactional
        assert opened is not None
        return opened

    def _reset_after_fork(self) -> None:
        if self._is_open:
            # SQLite tracks its file locks in memory, which a fork copies, but a fork does not copy the locks
            # themselves.
            raise UsageError(
                "the store was opened before this process was forked, and cannot be used in both processes; "
                "fork before you open it, or spawn processes instead"
            )
        self._world = self._build()
        self._pid, self._portal, self._portal_lock = os.getpid(), None, threading.Lock()

    async def close(self) -> None:
        """Close the store and the limiter. The next use opens them again."""
        if self._is_open:
            left = self._world
            # Before the first await: a submission meanwhile opens a new store instead of using the one that is closing.
            self._is_open = False
            if not self.url.startswith("memory:"):  # the memory store lives as long as the process
                self._world = self._build()
            await left.limiter.close()
            await left.blobs.close()
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


def refuse_transaction(url: str) -> UsageError:
    reason = "this store cannot take part in your transaction"
    if url.startswith("sqlite"):
        reason = (
            "the store is an SQLite file of its own, and a transaction of SQLite is not atomic across two files "
            "(in WAL mode, a crash can keep your change and lose the job)"
        )
    return UsageError(f"{reason}; use PostgreSQL or MongoDB, or submit after your commit, with a key")


# -- calls from code that is not async --------------------------------------------------------------------------------

WOULD_BLOCK = "this would block the event loop that is running here; await the call without _sync instead"


class SyncPortal:
    """An event loop in a thread, for callers that have none."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner(
            loop_factory=asyncio.new_event_loop
        )  # does not touch the event loop of this thread
        self._loop = self._runner.get_loop()
        self._is_closing = asyncio.Event()
        self._calls: set[Future[Any]] = set()
        self._thread = threading.Thread(target=self._run, name="leaseway-sync", daemon=True)
        self._thread.start()

    def begin(self, call: Coroutine[Any, Any, T]) -> "Future[T]":
        answer = asyncio.run_coroutine_threadsafe(call, self._loop)
        self._calls.add(answer)
        answer.add_done_callback(self._calls.discard)
        return answer

    def close(self) -> None:
        """Call it after the last `begin`. Calls of other threads still get their answers; this call does not wait for
        them."""
        self._loop.call_soon_threadsafe(self._is_closing.set)
        if all(call.done() for call in self._calls.copy()):
            self._thread.join()

    def _run(self) -> None:
        with self._runner:
            self._runner.run(self._until_closed())

    async def _until_closed(self) -> None:
        await self._is_closing.wait()
        for call in self._calls.copy():
            await asyncio.wait([asyncio.wrap_future(call)])


def refuse_running_loop(message: str = WOULD_BLOCK) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise UsageError(message)
