"""What a worker is given: the ports it works through, its settings, and the rules for its pace; and what it reports."""

import asyncio
import math
from bisect import bisect_left
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

from msgspec import Struct

from leaseway.domain.encryption import NO_KEYS, Encryption
from leaseway.domain.errors import BadValue, TransientError, UsageError
from leaseway.domain.exchange import QUEUES_MAX
from leaseway.domain.history.rows import (
    CANCELLED,
    DEAD,
    DONE,
    FAILED,
    KEYS_MAX,
    OTHERS,
    RELEASED,
    ROWS_MAX,
    RUN,
    STARTED,
    TIMES_US,
    HistoryCell,
    HistoryKey,
    HistoryRow,
)
from leaseway.domain.ids import SECOND_US, WorkerId
from leaseway.domain.job import Lease, Settlement, State
from leaseway.domain.redact import NO_SECRETS, Redactor
from leaseway.domain.validators import check_int
from leaseway.domain.workers import KINDS_MAX, Heartbeat
from leaseway.ports.clock import Chance, Clock, Ids
from leaseway.ports.ledger import Ledger
from leaseway.ports.limiter import Limiter
from leaseway.ports.provider_requests import HttpTransport
from leaseway.ports.store import Store
from leaseway.ports.telemetry import Events, Tracing
from leaseway.worker.blobs import NO_BLOBS, JobBlobs

PREFETCH_SECONDS = 0.1
"""A worker leases jobs ahead only as far as it can start them within this time, and while the next exchange takes."""
EXCHANGE_SECONDS_MAX = 1.0
"""A store that hangs is no reason to lease more jobs."""
PREFETCH_ROOT = 5.0
"""Fast workers prefetch less in proportion: this factor times the square root of their rate. A worker that is ahead of
the others therefore does not get further ahead."""
STALE_SHARE = 1 / 3
"""A prefetched job that has not started after this share of its lease is released to other workers."""


IS_HOUSEKEEPING: ContextVar[bool] = ContextVar("leaseway_housekeeping", default=False)
"""Whether the current task only checks something at intervals. Virtual time does not stop for such timers."""


@contextmanager
def housekeeping() -> Iterator[None]:
    """Around waits that end early only to check something, in code that runs inside a handler."""
    token = IS_HOUSEKEEPING.set(True)
    try:
        yield
    finally:
        IS_HOUSEKEEPING.reset(token)


OPENED = '{"$'
"""How a text starts that is encrypted or in a blob store."""


def no_transport() -> HttpTransport:
    raise UsageError("this worker has no network for ctx.http")


class Environment(NamedTuple):
    """The ports through which a worker reaches everything outside it."""

    store: Store
    limiter: Limiter
    ledger: Ledger
    clock: Clock
    chance: Chance
    ids: Ids
    events: Events
    tracing: Tracing | None = None
    """None: tracing is off."""
    redactor: Redactor = NO_SECRETS
    """Removes secrets from errors before they are stored."""
    encryption: Encryption = NO_KEYS
    """Encrypts what jobs carry, if the app has a codec."""
    blobs: JobBlobs = NO_BLOBS
    """Keeps texts that are too large for the store, if the app has a blob store."""
    make_transport: Callable[[], HttpTransport] = no_transport
    """Makes what sends the requests of `ctx.http`; one per worker."""
    run_renewal: Callable[[Any], AbstractAsyncContextManager[None]] | None = None
    """Runs the lease renewal of a worker. None: in a thread; virtual time has no threads."""

    def opens(self, lease: Lease) -> bool:
        """Whether texts of this job are, or will be, encrypted or in the blob store."""
        is_on = self.encryption.is_on or self.blobs.is_on
        return is_on or lease.payload.startswith(OPENED) or (lease.cursor or "").startswith(OPENED)


class WorkerSettings(Struct, frozen=True, kw_only=True):
    queues: tuple[str, ...] = ("default",)
    concurrency: int = 20
    grace_seconds: float = 30.0
    """How long running jobs may continue after the first signal to stop."""
    poll_seconds: float = 1.0
    """The longest time between two polls of the store when no notification arrives."""
    settle_batch: int = 500
    settle_linger_seconds: float = 0.005
    """How long a settlement waits for others to join its transaction, if other jobs are running."""
    until_empty: bool = False
    keep_us: int = 7 * 86_400 * SECOND_US
    """Finished jobs older than this are pruned."""
    key_keep_us: int = 7 * 86_400 * SECOND_US
    version: str = ""
    """Of the package, for the list of workers."""

    def __post_init__(self) -> None:
        check_int("concurrency", self.concurrency, 1, 10_000)
        if not self.queues:
            raise BadValue("queues", "must name at least one queue")
        if len(self.queues) > QUEUES_MAX:
            raise BadValue("queues", f"must be at most {QUEUES_MAX:,} (are {len(self.queues):,}); start more workers")
        if not 0 <= self.grace_seconds <= 86_400:
            raise BadValue("grace", f"must be between 0 and 86,400 seconds (is {self.grace_seconds})")
        if not 0.01 <= self.poll_seconds <= 60:
            raise BadValue("poll", f"must be between 0.01 and 60 seconds (is {self.poll_seconds})")


class WorkerSummary(NamedTuple):
    """What a worker did between its start and its end."""

    settled: int
    lost: int
    """Attempts whose lease ended before they did: another worker runs these jobs."""
    released: int
    """Jobs that were given back without using an attempt."""
    is_clean: bool
    """Every lease was settled or released, so no job has to wait until its lease expires."""


SETTLED_AS = {State.DONE: DONE, State.FAILED: DEAD, State.CANCELLED: CANCELLED, State.PENDING: RELEASED}
"""The counters of the history. A job that runs again counts as released; if its attempt failed, as failed, too."""


class WorkTally:
    """What the worker did since its last report to the history. Its loop adds; the thread of lease renewal may take."""

    def __init__(self, worker: WorkerId) -> None:
        self._worker = worker
        self._cells: dict[tuple[str, str, str], tuple[dict[str, int], dict[int, int]]] = {}
        self._flushes = 0

    def add(self, lease: Lease, settlement: Settlement, run_seconds: float | None) -> None:
        """One attempt whose settlement the store accepted. None: its handler was not called."""
        cell = self._cells.get((lease.tenant, lease.queue, lease.kind))
        counts, times = cell or self._new_cell(HistoryKey(lease.tenant, lease.queue, lease.kind))
        settled_as = SETTLED_AS[settlement.state]
        counts[settled_as] = counts.get(settled_as, 0) + 1
        if settlement.failure is not None:
            counts[FAILED] = counts.get(FAILED, 0) + 1
        if run_seconds is not None:
            counts[STARTED] = counts.get(STARTED, 0) + 1
            bucket = min(bisect_left(TIMES_US, run_seconds * SECOND_US), len(TIMES_US) - 1)
            times[bucket] = times.get(bucket, 0) + 1

    def _new_cell(self, key: HistoryKey) -> tuple[dict[str, int], dict[int, int]]:
        if len(self._cells) >= ROWS_MAX - KEYS_MAX:
            key = HistoryKey(key.tenant if len(self._cells) < ROWS_MAX - 1 else OTHERS, OTHERS, OTHERS)
        return self._cells.setdefault(key, ({}, {}))

    def take(self) -> list[HistoryRow]:
        """The rows of everything since the last time, under new ids."""
        cells, self._cells = self._cells, {}
        self._flushes += 1
        return [
            HistoryRow(
                id=f"{self._worker}/{self._flushes}/{number}", tenant=tenant, queue=queue, kind=kind,
                cell=HistoryCell(counts, {RUN: times} if times else {}),
            )
            for number, ((tenant, queue, kind), (counts, times)) in enumerate(cells.items())
        ]  # fmt: skip


def describe_worker(
    worker: WorkerId,
    settings: WorkerSettings,
    kinds: Iterable[str],
    used: int,
    waiting: int,
    is_draining: bool,
    uptime_seconds: float,
) -> Heartbeat:
    """What a worker reports of itself. Its id names host and process: see `ports.clock.Ids`."""
    host, _, rest = worker.partition(":")
    pid = rest.partition(":")[0]
    return Heartbeat(
        worker=worker,
        host=host,
        pid=int(pid) if pid.isdecimal() else 0,
        version=settings.version,
        queues=settings.queues,
        kinds=tuple(sorted(kinds)[:KINDS_MAX]),
        slots=settings.concurrency,
        used=used,
        waiting=waiting,
        is_draining=is_draining,
        uptime_us=round(uptime_seconds * SECOND_US),
    )


class Prefetch:
    """How many jobs to lease beyond the free slots, as learned from the jobs that finished and the exchanges."""

    def __init__(self, now: float) -> None:
        self._finished_per_second = 0.0
        self._exchange_seconds = 0.0
        self._measured_at = now

    @property
    def count(self) -> int:
        """If an exchange takes long, because the store is far away or busy, its jobs must last until the next one is
        answered."""
        rate, ahead_seconds = self._finished_per_second, PREFETCH_SECONDS + self._exchange_seconds
        return int(min(rate * ahead_seconds, PREFETCH_ROOT * math.sqrt(rate)))

    def learn(self, finished: int, exchange_seconds: float, now: float) -> bool:
        """`finished`: the jobs since the rate was last measured. True: it was measured now."""
        self._exchange_seconds = smoothed(self._exchange_seconds, min(exchange_seconds, EXCHANGE_SECONDS_MAX))
        elapsed = now - self._measured_at
        if elapsed < PREFETCH_SECONDS:  # over a shorter time, a few jobs that end together would look like a high rate
            return False
        self._finished_per_second = smoothed(self._finished_per_second, finished / elapsed)
        self._measured_at = now
        return True


def smoothed(before: float, now: float) -> float:
    """Follow a falling value at once and a rising one by halves, because leasing too many jobs costs more than leasing
    too few."""
    return now if now < before else (before + now) / 2


def jitter(seconds: float, chance: float) -> float:
    """Spread a wait over its second half, so that processes that started together do not poll together."""
    return seconds * (0.5 + chance / 2)


def retry_delay_seconds(failures: int, chance: float) -> float:
    """The pause before the next call to a store that failed this many times in a row."""
    return jitter(min(0.05 * 2 ** min(failures, 10), 2.0), chance)


async def pause(environment: Environment, failures: int) -> None:
    """Wait before the next call to a store that failed this many times in a row."""
    await environment.clock.sleep(retry_delay_seconds(failures, environment.chance.random()))


def emit_unavailable(
    environment: Environment, worker: WorkerId, doing: str, failures: int, error: TransientError
) -> None:
    environment.events.emit("store_unavailable", worker=worker, doing=doing, failures=failures, error=error)


# -- cancellation -----------------------------------------------------------------------------------------------------
# A library may swallow a cancellation. `asyncio.wait_for` of Python 3.11 does if its call ends at the same moment, and
# pymongo writes with it. What runs until it is cancelled would go on for ever.

CANCEL_AGAIN_SECONDS = 2.0


class SwallowedCancels:
    """For a loop that runs until its task is cancelled."""

    def __init__(self) -> None:
        self._known = 0

    def start(self) -> None:
        """Cancellations from before are known: the task may be about to end because of one."""
        self._known = count_cancels()

    def check(self) -> None:
        """Raises CancelledError if the task was cancelled since `start` and goes on nevertheless."""
        if count_cancels() > self._known:
            raise asyncio.CancelledError


def count_cancels() -> int:
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


class RepeatedCancel:
    """Cancels tasks that run until they are cancelled, again and again until `close`."""

    def __init__(self, tasks: Iterable[asyncio.Task[Any]]) -> None:
        self._tasks, self._loop = list(tasks), asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._cancel()

    def _cancel(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._timer = self._loop.call_later(CANCEL_AGAIN_SECONDS, self._cancel)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


async def cancel_and_wait(*tasks: asyncio.Task[Any] | None) -> None:
    """End tasks that run until they are cancelled. How they ended is not raised."""
    running = [task for task in tasks if task is not None]
    cancels = RepeatedCancel(running)
    try:
        await asyncio.gather(*running, return_exceptions=True)
    finally:
        cancels.close()


@asynccontextmanager
async def running_beside(steps: Iterable[Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    """Run these beside the body until it ends, however it ends. An error in one of them ends the body and is raised."""
    ending = ExitStack()
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(step) for step in steps]
            try:
                yield
            finally:
                ending.callback(RepeatedCancel(tasks).close)
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    finally:
        ending.close()
