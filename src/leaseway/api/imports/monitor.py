"""running imports ─► [polled] ─► progress for routes and live events, and the end of each run

A run that was started over HTTP is finished by the service: its last shard is a job like any other, and the worker does
not know that it was the last one. So the service polls, and evaluates a run when all its shards have ended. Several
processes may do this at the same time: finishing a run twice changes nothing.

Whether a run has ended is a cheap query. The progress of a run is read only while a client asks for it, and once for
all clients.
"""

import asyncio
import logging
from collections import OrderedDict
from contextlib import suppress

from leaseway.api.imports.registry import ImportRegistry
from leaseway.api.schemas.imports import (
    ImportProgressDocument,
    ImportReportDocument,
    Pace,
    progress_document,
    report_document,
)
from leaseway.api.ttl_cache import TtlCache
from leaseway.domain.errors import LeasewayError
from leaseway.imports.domain.run_state import RunRow, RunState, ShardRow
from leaseway.imports.run.progress import RATE_SECONDS, ProgressTracker, RunSnapshot, tightest
from leaseway.imports.run.report import build_report, order_by_parent
from leaseway.imports.sinks.port import Sink
from leaseway.imports.sources.factory import source_limit
from leaseway.ports.clock import Clock
from leaseway.system import wall_clock_us
from leaseway.worker.environment import cancel_and_wait

log = logging.getLogger("leaseway.api")

REPORT_TTL_SECONDS = 10.0
REPORTS_MAX = 50
POLL_SECONDS = 1.0
DISCOVERY_SECONDS = 10.0
"""The interval in which runs that other processes have started are discovered."""
SHARDS_PER_SECOND = 2_000
"""A run with very many shards is polled less often: on average this many shards are read per second."""
PACE_SECONDS_MAX = 120.0
"""Two polls that are further apart say nothing about the present pace."""
INTEREST_SECONDS = 15.0
"""How long after the last request the progress of a run is still read."""
STALL_CHECK_SECONDS = 2.0
"""The interval in which the jobs of open shards are checked for failure."""
RUNS_DISCOVERED_MAX = 20
RUNS_KEPT_MAX = 50

RunName = tuple[str, str]
"""Source and run."""


class ImportReports:
    """Reports of runs. A report compares the whole table, so it is cached for some seconds."""

    def __init__(self, imports: ImportRegistry, clock: Clock) -> None:
        self._imports = imports
        ttl = {"ttl_seconds": REPORT_TTL_SECONDS, "negative_ttl_seconds": REPORT_TTL_SECONDS}
        self._reports = TtlCache[ImportReportDocument](self._load, clock, max_entries=REPORTS_MAX, **ttl)

    async def get(self, source: str, row: RunRow) -> ImportReportDocument:
        found = await self._reports.get(f"{source}\n{row.id}\n{row.state}{row.finished_at}")
        assert found is not None
        return found

    async def _load(self, name: str) -> ImportReportDocument:
        source, run, _ = name.split("\n")
        known, sink = self._imports.find(source), await self._imports.sink(source)
        row = await sink.runs.find(run)
        assert known is not None
        assert row is not None, "the caller has read it"
        return report_document(await build_report(sink, row, wall_clock_us()), known.spec.budget)


class MonitoredRun:
    """What is remembered of one run between two polls."""

    def __init__(self, progress: ProgressTracker) -> None:
        self.progress = progress
        self.lock = asyncio.Lock()
        self.polled_at = self.wanted_at = self.stall_checked_at = float("-inf")
        self.counts = (0, 0)
        """Rows and requests at the last poll."""
        self.document: ImportProgressDocument | None = None
        """None: there is no such run."""
        self.shards: list[ShardRow] = []
        """The shards at the last poll; kept while a client asks for them."""

    def is_fresh(self, now: float, poll_seconds: float) -> bool:
        shards = 0 if self.document is None else self.document.shards_total
        return now - self.polled_at < max(poll_seconds, shards / SHARDS_PER_SECOND) * 0.9

    def pace(self, now: float, snapshot: RunSnapshot) -> Pace | None:
        """Rows and requests per second. None: there is no recent poll to compare with."""
        seconds = now - self.polled_at
        if seconds < RATE_SECONDS:
            return snapshot.rows_per_second, snapshot.requests_per_second
        if seconds > PACE_SECONDS_MAX:
            return None
        return (snapshot.rows - self.counts[0]) / seconds, (snapshot.requests - self.counts[1]) / seconds


class ImportMonitor:
    """The runs of one service's imports."""

    def __init__(self, imports: ImportRegistry, clock: Clock, stopping: asyncio.Event) -> None:
        self._imports = imports
        self._clock = clock
        self._stopping = stopping
        self.poll_seconds = POLL_SECONDS
        self._runs: OrderedDict[RunName, MonitoredRun] = OrderedDict()
        self._running: dict[RunName, None] = {}
        self._finishing: dict[RunName, asyncio.Task[None]] = {}
        self._listened_at = self._discovered_at = float("-inf")
        self._failing: set[str] = set()
        self.reports = ImportReports(imports, clock)
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def open(self) -> None:
        # The service owns the task and cancels it when it closes.
        self._task = asyncio.get_running_loop().create_task(self._poll())

    async def close(self) -> None:
        await cancel_and_wait(self._task, *self._finishing.values())

    # -- reading ----------------------------------------------------------------------------------------------------

    async def progress(self, source: str, run: str) -> ImportProgressDocument | None:
        """The progress, at most a second old. None: there is no such run."""
        monitored = self._run((source, run))
        monitored.wanted_at = self._clock.monotonic()
        if not monitored.is_fresh(monitored.wanted_at, self.poll_seconds):
            async with monitored.lock:  # a second request finds the result of the first
                if not monitored.is_fresh(self._clock.monotonic(), self.poll_seconds):
                    await self._read_progress((source, run), monitored)
        return monitored.document

    async def shards(self, source: str, run: str) -> list[ShardRow] | None:
        """The shards of the same poll as the progress. There may be a hundred thousand, so pages share one poll."""
        if await self.progress(source, run) is None:
            return None
        monitored = self._run((source, run))
        if not monitored.shards:
            async with monitored.lock:
                await self._read_progress((source, run), monitored)
        return monitored.shards

    def add_run(self, source: str, run: str) -> None:
        """Monitor a run that was started or resumed here, without waiting until it is discovered."""
        self._running[source, run] = None
        self._woken.set()
        self._run((source, run)).polled_at = float("-inf")

    def documents(self) -> list[ImportProgressDocument]:
        """The progress of all monitored runs, for the live stream."""
        self._listened_at = self._clock.monotonic()
        return [monitored.document for monitored in self._runs.values() if monitored.document is not None]

    def _run(self, name: RunName) -> MonitoredRun:
        monitored = self._runs.get(name)
        if monitored is None:
            known = self._imports.find(name[0])
            limit = None if known is None else source_limit(known.spec)
            monitored = self._runs[name] = MonitoredRun(
                ProgressTracker(tightest(limit.definition.rates) if limit else None)
            )
        self._runs.move_to_end(name)
        while len(self._runs) > RUNS_KEPT_MAX:
            self._runs.popitem(last=False)
        return monitored

    # -- polling ----------------------------------------------------------------------------------------------------

    async def _poll(self) -> None:
        while not self._stopping.is_set():
            began = self._clock.monotonic()
            if began - self._discovered_at >= DISCOVERY_SECONDS:
                await self._discover()
            for name in list(self._running):
                await self._poll_run(name)
            with suppress(TimeoutError):
                async with asyncio.timeout(self.poll_seconds):
                    await self._woken.wait()
            self._woken.clear()

    async def _discover(self) -> None:
        for source in self._imports.names:
            try:
                sink = await self._imports.sink(source)
                found = await sink.runs.find_all(source, RUNS_DISCOVERED_MAX, state=RunState.RUNNING)
            except Exception as error:  # noqa: BLE001 - a sink that does not respond must not hide the others
                self._report_failure(source, error)
                continue
            self._failing.discard(source)
            self._running.update(((source, row.id), None) for row in found)
        self._discovered_at = self._clock.monotonic()

    async def _poll_run(self, name: RunName) -> None:
        source, now = name[0], self._clock.monotonic()
        try:
            sink = await self._imports.sink(source)
            if await self._has_ended(name, sink):
                self._start_finishing(name)
            monitored = self._run(name)
            if now - max(self._listened_at, monitored.wanted_at) < INTEREST_SECONDS and not monitored.is_fresh(
                now, self.poll_seconds
            ):
                async with monitored.lock:
                    await self._read_progress(name, monitored)
        except Exception as error:  # noqa: BLE001 - a run that cannot be read must not hide the others
            self._report_failure(source, error)

    async def _has_ended(self, name: RunName, sink: Sink) -> bool:
        """No shard is open, or the jobs of all open shards have failed."""
        source, run = name
        if not await sink.shards.count_open(run):
            return True
        monitored, now = self._run(name), self._clock.monotonic()
        if now - monitored.stall_checked_at < STALL_CHECK_SECONDS:
            return False
        monitored.stall_checked_at = now
        return await self._imports.is_abandoned(source, run)

    async def _read_progress(self, name: RunName, monitored: MonitoredRun) -> None:
        source, run = name
        began = self._clock.monotonic()
        known, sink = self._imports.find(source), await self._imports.sink(source)
        row = await sink.runs.find(run)
        if known is None or row is None or row.source != source:
            monitored.document, monitored.polled_at = None, began
            self._running.pop(name, None)
            return
        shards = await sink.shards.find_all(run)
        snapshot = monitored.progress.update(began, row, shards)
        pace = monitored.pace(began, snapshot)
        monitored.document = progress_document(row, shards, known.spec.budget, snapshot, pace)
        monitored.shards = order_by_parent(shards)
        monitored.polled_at, monitored.counts = began, (snapshot.rows, snapshot.requests)
        self._drop_shards(began)

    def _drop_shards(self, now: float) -> None:
        for monitored in self._runs.values():
            if now - monitored.wanted_at > INTEREST_SECONDS:
                monitored.shards = []

    # -- finishing ----------------------------------------------------------------------------------------------------

    def _start_finishing(self, name: RunName) -> None:
        """In a task of its own, because it may compare the run with a large table."""
        finishing = self._finishing.get(name)
        if finishing is None or finishing.done():
            self._finishing[name] = asyncio.get_running_loop().create_task(self._finish(name))

    async def _finish(self, name: RunName) -> None:
        source, run = name
        try:
            row = await (await self._imports.sink(source)).runs.find(run)
            if row is not None and row.state is RunState.RUNNING:
                await self._imports.finish(source, run)
            self._running.pop(name, None)
            if name in self._runs:
                async with self._runs[name].lock:
                    await self._read_progress(name, self._runs[name])
        except Exception as error:  # noqa: BLE001 - tried again with the next poll
            self._report_failure(source, error)
        finally:
            self._finishing.pop(name, None)

    def _report_failure(self, source: str, error: Exception) -> None:
        """Log a failure once, because it repeats every second."""
        if source not in self._failing:
            shown = None if isinstance(error, LeasewayError) else error
            log.warning("import %s: cannot be polled: %s", source, error, exc_info=shown)
        self._failing.add(source)
