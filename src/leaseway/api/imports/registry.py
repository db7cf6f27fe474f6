"""folder of specs ─► [the imports of the service] ─► routes

Clients refer to an import by name and cannot send one. The options of the service decide which source is called,
with which credentials, and where rows are written. Specs are read once, when the service starts.

The service plans a run, submits its shards as jobs, and finishes the run (`monitor`). The jobs run in workers that have
the spec: `leaseway import work SPEC`.
"""

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from leaseway.api.errors import Problem
from leaseway.app import App
from leaseway.domain.errors import UsageError
from leaseway.imports.domain.run_state import RunMode, RunRow, RunState, ShardState
from leaseway.imports.run.assembly import ImportParts, load_sink, make_shard_task
from leaseway.imports.run.finish_run import finish_run
from leaseway.imports.run.plan import Forecast, Plan, SourceUnavailable, make_forecast, make_plan
from leaseway.imports.run.shard_jobs import ImportJobs, have_all_failed, is_stalled, register_jobs
from leaseway.imports.run.start import NewRun, resume, start
from leaseway.imports.sinks.port import Sink
from leaseway.imports.sinks.row_map import RowPosition, find_position
from leaseway.imports.sources.factory import make_source
from leaseway.imports.spec.reader import Spec, list_resources

SPECS_MAX = 200
OPEN = (ShardState.WAITING, ShardState.RUNNING)
PROBE_SECONDS_MAX = 12.0
"""How long a source may take to report about itself. Browsers wait a little longer than that."""


class KnownImport(NamedTuple):
    path: Path
    spec: Spec
    sink: Sink
    """Opened on first use, and closed with the service."""
    position: RowPosition | None
    """The columns with the coordinates of a row; None: rows have no coordinates."""


class ImportRegistry:
    """The imports of one service."""

    def __init__(self, folder: Path, url: str, limits: str | None) -> None:
        self._known = read_specs(folder)
        # A separate app, because submissions must not be checked against the kinds of imports.
        self._app = App(url, limits=limits)
        self._made: dict[str, tuple[ImportParts, ImportJobs]] = {}
        self._open: set[str] = set()
        self._opening = {name: asyncio.Lock() for name in self._known}
        self._starting = {name: asyncio.Lock() for name in self._known}

    @property
    def names(self) -> list[str]:
        return sorted(self._known)

    def find(self, source: str) -> KnownImport | None:
        return self._known.get(source)

    async def sink(self, source: str) -> Sink:
        sink = self._known[source].sink
        if source not in self._open:
            async with self._opening[source]:
                if source not in self._open:
                    await sink.open()
                    self._open.add(source)
        return sink

    async def close(self) -> None:
        for source in self._open:
            await self._known[source].sink.close()
        self._open.clear()
        await self._app.close()

    # -- verbs ------------------------------------------------------------------------------------------------------

    async def plan(self, source: str, mode: RunMode | None) -> tuple[Plan, Forecast]:
        """Probe the source and plan a run. Nothing is written."""
        parts, _ = await self._parts(source)
        with source_errors(parts):
            plan = await make_plan(parts, mode, PROBE_SECONDS_MAX)
        return plan, make_forecast(plan, parts.source.limit, parts.source.page_limit, parts.spec.budget)

    async def start(self, source: str, new: NewRun) -> RunRow:
        parts, jobs = await self._parts(source)
        async with self._starting[source]:  # of two requests with one name, the second finds the run of the first
            with source_errors(parts):
                return await start(parts, jobs, new, PROBE_SECONDS_MAX)

    async def resume(self, source: str, row: RunRow, requests_max: int | None) -> int:
        """Resume a run. Returns how many shards are open."""
        parts, jobs = await self._parts(source)
        async with self._starting[source]:
            return await resume(parts, jobs, row, requests_max)

    async def finish(self, source: str, run: str) -> RunState:
        """Evaluate a run that has ended, and store its state. Can be repeated."""
        parts, _ = await self._parts(source)
        return await finish_run(parts, run)

    async def is_abandoned(self, source: str, run: str) -> bool:
        """Whether the jobs of all open shards have failed, so that the run cannot progress unless it is resumed."""
        store = await self._app.store()
        if not await is_stalled(store, source):
            return False
        rows = await (await self.sink(source)).shards.find_all(run)
        left = [row for row in rows if row.state in OPEN]
        return bool(left) and await have_all_failed(store, source, run, left)

    async def _parts(self, source: str) -> tuple[ImportParts, ImportJobs]:
        """The source is opened on first use, because reading the state of runs needs no credentials."""
        await self.sink(source)
        if source not in self._made:
            path, spec, sink, _ = self._known[source]
            chosen = make_source(spec, path.parent, os.environ)
            parts = ImportParts(path, spec, chosen, sink, make_shard_task(spec, chosen, sink))
            self._made[source] = parts, register_jobs(self._app, parts)
        return self._made[source]


@contextmanager
def source_errors(parts: ImportParts) -> Iterator[None]:
    try:
        yield
    except SourceUnavailable as error:
        # Not the store's fault. The text of the error may contain a URL with a key, so it is not passed on.
        detail = (
            f"source {parts.spec.source.name}: cannot be reached; try again, and check source.base_url in "
            f"{parts.path.name}"
        )
        raise Problem(503, "source_unavailable", detail, headers={"Retry-After": "5"}) from error


def read_specs(folder: Path) -> dict[str, KnownImport]:
    if not folder.is_dir():
        raise UsageError(f"--imports: there is no folder {folder}")
    paths = [Path(each) for path in sorted(folder.glob("*.toml")) for each in list_resources(path)]
    if len(paths) > SPECS_MAX:
        raise UsageError(f"--imports: {folder} has {len(paths):,} specs; at most {SPECS_MAX} are served")
    found: dict[str, KnownImport] = {}
    for path in paths:
        spec, sink, _ = load_sink(path)
        name = spec.source.name
        if name in found:
            raise UsageError(f"--imports: {path.name} and {found[name].path.name} both name the source {name!r}")
        found[name] = KnownImport(path, spec, sink, find_position(spec.resource))
    return found
