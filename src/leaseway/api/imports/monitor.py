"""runs that are under way ─► [looked at] ─► progress for routes and live events, and the end of the run

Nobody else ends a run that was started over HTTP: its last shard is a job like the others, and who did it does not know
that it was the last. So the service looks, now and then, and says what has become of a run when all shards have ended.
Several processes may do so: to say it twice changes nothing.

Whether a run has ended is a small question. How far it has come is asked only while somebody wants to know, and for all
of them at once.
"""

import asyncio
import logging
from collections import OrderedDict
from contextlib import suppress
from typing import Any

from leaseway.api.imports.registry import Imports
from leaseway.api.schemas.import_serializers import Pace, progress_json, report_json
from leaseway.api.ttl_cache import Remembered
from leaseway.domain.errors import LeasewayError
from leaseway.imports.domain.run_state import RunRow, RunState, ShardRow
from leaseway.imports.progress.progress import RATE_SECONDS, ProgressTracker, RunSnapshot, tightest
from leaseway.imports.progress.report import build_report, order_by_parent
from leaseway.imports.sinks.port import Sink
from leaseway.imports.sources.factory import source_limit
from leaseway.ports.clock import Clock
from leaseway.system import wall_clock_us

BELIEF_SECONDS = 10.0
REPORTS_MAX = 50


class ImportReports:
    """Of one service."""

    def __init__(self, imports: Imports, clock: Clock) -> None:
        self._imports = imports
        bounds = {"seconds": BELIEF_SECONDS, "absent_seconds": BELIEF_SECONDS}
        self._reports = Remembered[dict[str, Any]](self._made, clock, most=REPORTS_MAX, **bounds)

    async def of(self, source: str, row: RunRow) -> dict[str, Any]:
        found = await self._reports.get(f"{source}\n{row.id}\n{row.state}{row.finished_at}")
        assert found is not None
        return found

    async def _made(self, name: str) -> dict[str, Any]:
        source, run, _ = name.split("\n")
        known, sink = self._imports.named(source), await self._imports.sink(source)
        row = await sink.run(run)
        assert known is not None
        assert row is not None, "it was there a moment ago"
        document = report_json(await build_report(sink, row, wall_clock_us()), known.spec.budget)
        # A run may have very many; they have a list of their own.
        return {name: value for name, value in document.items() if name != "by_shard"}


log = logging.getLogger("leaseway.api")

LOOK_SECONDS = 1.0
SEEK_SECONDS = 10.0
"""Between two looks for runs that somebody else has started."""
SHARDS_PER_SECOND = 2_000
"""So many are looked at in a second of the service's life: a run of very many is looked at more rarely."""
PACE_SECONDS_MAX = 120.0
"""Two looks that lie farther apart say nothing about how fast it is now."""
WANTED_SECONDS = 15.0
"""So long after the last question, somebody may still want to know."""
DOUBT_SECONDS = 2.0
"""Between two looks whether anybody will go on with its shards."""
RUNS_SOUGHT = 20
KEPT_MAX = 50

Name = tuple[str, str]
"""Source and run."""


class Watched:
    """What is remembered of one run, from look to look."""

    def __init__(self, watching: ProgressTracker) -> None:
        self.watching = watching
        self.turn = asyncio.Lock()
        self.looked_at = self.wanted_at = self.doubted_at = float("-inf")
        self.counts = (0, 0)
        """Rows and requests at the last look."""
        self.document: dict[str, Any] | None = None
        """None: there is no such run."""
        self.shards: list[ShardRow] = []
        """As they were at the last look; kept while somebody wants to know."""

    def is_fresh(self, now: float, look_seconds: float) -> bool:
        shards = 0 if self.document is None else self.document["shards_total"]
        return bool(now - self.looked_at < max(look_seconds, shards / SHARDS_PER_SECOND) * 0.9)

    def pace(self, now: float, snapshot: RunSnapshot) -> Pace | None:
        """Rows and requests a second. None: nobody has looked before."""
        seconds = now - self.looked_at
        if seconds < RATE_SECONDS:
            return snapshot.rows_per_second, snapshot.requests_per_second
        if seconds > PACE_SECONDS_MAX:
            return None
        return (snapshot.rows - self.counts[0]) / seconds, (snapshot.requests - self.counts[1]) / seconds


class ImportWatch:
    """Of one service."""

    def __init__(self, imports: Imports, clock: Clock, stopping: asyncio.Event) -> None:
        self._imports = imports
        self._clock = clock
        self._stopping = stopping
        self.look_seconds = LOOK_SECONDS
        self._watched: OrderedDict[Name, Watched] = OrderedDict()
        self._running: dict[Name, None] = {}
        self._closing: dict[Name, asyncio.Task[None]] = {}
        self._heard_at = self._sought_at = float("-inf")
        self._troubles: set[str] = set()
        self.reports = ImportReports(imports, clock)
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def open(self) -> None:
        # The service is its parent, and ends it when it closes.
        self._task = asyncio.get_running_loop().create_task(self._watch())

    async def close(self) -> None:
        tasks = [*([self._task] if self._task else []), *self._closing.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- telling ----------------------------------------------------------------------------------------------------

    async def progress(self, source: str, run: str) -> dict[str, Any] | None:
        """How far it has come, a second ago at most. None: there is no such run."""
        watched = self._of((source, run))
        watched.wanted_at = self._clock.monotonic()
        if not watched.is_fresh(watched.wanted_at, self.look_seconds):
            async with watched.turn:  # who comes second finds the answer of the first
                if not watched.is_fresh(self._clock.monotonic(), self.look_seconds):
                    await self._look((source, run), watched)
        return watched.document

    async def shards(self, source: str, run: str) -> list[ShardRow] | None:
        """Of the same look as its progress: there may be a hundred thousand, and their list has many pages."""
        if await self.progress(source, run) is None:
            return None
        watched = self._of((source, run))
        if not watched.shards:
            async with watched.turn:
                await self._look((source, run), watched)
        return watched.shards

    def began(self, source: str, run: str) -> None:
        """It was started or resumed here: nobody waits until it is found."""
        self._running[source, run] = None
        self._woken.set()
        self._of((source, run)).looked_at = float("-inf")

    def documents(self) -> list[dict[str, Any]]:
        """What the last looks have found, for those who listen."""
        self._heard_at = self._clock.monotonic()
        return [watched.document for watched in self._watched.values() if watched.document is not None]

    def _of(self, name: Name) -> Watched:
        watched = self._watched.get(name)
        if watched is None:
            known = self._imports.named(name[0])
            limit = None if known is None else source_limit(known.spec)
            watched = self._watched[name] = Watched(
                ProgressTracker(tightest(limit.definition.rates) if limit else None)
            )
        self._watched.move_to_end(name)
        while len(self._watched) > KEPT_MAX:
            self._watched.popitem(last=False)
        return watched

    # -- looking ----------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        while not self._stopping.is_set():
            began = self._clock.monotonic()
            if began - self._sought_at >= SEEK_SECONDS:
                await self._seek()
            for name in list(self._running):
                await self._turn(name)
            with suppress(TimeoutError):
                async with asyncio.timeout(self.look_seconds):
                    await self._woken.wait()
            self._woken.clear()

    async def _seek(self) -> None:
        for source in self._imports.names:
            try:
                sink = await self._imports.sink(source)
                found = await sink.runs(source, RUNS_SOUGHT, state=RunState.RUNNING)
            except Exception as error:  # noqa: BLE001 - one sink that is away must not hide the others
                self._trouble(source, error)
                continue
            self._troubles.discard(source)
            self._running.update(((source, row.id), None) for row in found)
        self._sought_at = self._clock.monotonic()

    async def _turn(self, name: Name) -> None:
        source, now = name[0], self._clock.monotonic()
        try:
            sink = await self._imports.sink(source)
            if await self._is_over(name, sink):
                self._close(name)
            watched = self._of(name)
            if now - max(self._heard_at, watched.wanted_at) < WANTED_SECONDS and not watched.is_fresh(
                now, self.look_seconds
            ):
                async with watched.turn:
                    await self._look(name, watched)
        except Exception as error:  # noqa: BLE001 - one run that cannot be seen must not hide the others
            self._trouble(source, error)

    async def _is_over(self, name: Name, sink: Sink) -> bool:
        """No shard is open, or all that are were given up: their jobs have failed for good."""
        source, run = name
        if not await sink.open_shards(run):
            return True
        watched, now = self._of(name), self._clock.monotonic()
        if now - watched.doubted_at < DOUBT_SECONDS:
            return False
        watched.doubted_at = now
        return await self._imports.is_abandoned(source, run)

    async def _look(self, name: Name, watched: Watched) -> None:
        source, run = name
        began = self._clock.monotonic()
        known, sink = self._imports.named(source), await self._imports.sink(source)
        row = await sink.run(run)
        if known is None or row is None or row.source != source:
            watched.document, watched.looked_at = None, began
            self._running.pop(name, None)
            return
        shards = await sink.shards(run)
        snapshot = watched.watching.seen(began, row, shards)
        pace = watched.pace(began, snapshot)
        watched.document = progress_json(row, shards, known.spec.budget, snapshot, pace)
        watched.shards = order_by_parent(shards)
        watched.looked_at, watched.counts = began, (snapshot.rows, snapshot.requests)
        self._forget_shards(began)

    def _forget_shards(self, now: float) -> None:
        for watched in self._watched.values():
            if now - watched.wanted_at > WANTED_SECONDS:
                watched.shards = []

    # -- the end ----------------------------------------------------------------------------------------------------

    def _close(self, name: Name) -> None:
        """Apart from the looking: it may compare the run with a large table."""
        closing = self._closing.get(name)
        if closing is None or closing.done():
            self._closing[name] = asyncio.get_running_loop().create_task(self._closed(name))

    async def _closed(self, name: Name) -> None:
        source, run = name
        try:
            row = await (await self._imports.sink(source)).run(run)
            if row is not None and row.state is RunState.RUNNING:
                await self._imports.finish(source, run)
            self._running.pop(name, None)
            if name in self._watched:
                async with self._watched[name].turn:
                    await self._look(name, self._watched[name])
        except Exception as error:  # noqa: BLE001 - tried again with the next look
            self._trouble(source, error)
        finally:
            self._closing.pop(name, None)

    def _trouble(self, source: str, error: Exception) -> None:
        """Said once: it is the same trouble every second."""
        if source not in self._troubles:
            shown = None if isinstance(error, LeasewayError) else error
            log.warning("import %s: cannot look: %s", source, error, exc_info=shown)
        self._troubles.add(source)
