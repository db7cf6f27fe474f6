"""a folder of specs ─► [the imports that a service knows] ─► routes

Clients name an import, and never bring one along: what is asked for, with which key, and where rows go is decided by
who starts the service. A spec is read once, when the service starts.

A run that was started here is cut into shards and closed at its end by the service (`import_watch`). The shards are
jobs, and done by workers that know the spec: `leaseway import work SPEC`.
"""

import asyncio
import os
from pathlib import Path
from typing import NamedTuple

from leaseway.api.errors import Problem
from leaseway.app import App
from leaseway.domain.errors import TransientError, UsageError
from leaseway.imports.assembly import Parts, sink_only, task_of
from leaseway.imports.domain.run_state import RunMode, RunRow, RunState, ShardState
from leaseway.imports.plan.forecast import Forecast, forecast
from leaseway.imports.plan.plan import Plan, history_of
from leaseway.imports.plan.probe_source import plan_of
from leaseway.imports.progress.report import is_used_up
from leaseway.imports.run.dead_shards import are_given_up, is_idle
from leaseway.imports.run.start import ShardJob, finish, refuse_other_spec, shard_job, start, submit_open
from leaseway.imports.sinks.port import Sink
from leaseway.imports.sources.factory import source_of
from leaseway.imports.spec.geo_grid import Position, position_of
from leaseway.imports.spec.reader import Spec
from leaseway.system import wall_clock_us

SPECS_MAX = 200
OPEN = (ShardState.WAITING, ShardState.RUNNING)
ASK_SECONDS_MAX = 12.0
"""A source that says nothing about itself for longer was asked in vain. Browsers wait a little longer than that."""


class Known(NamedTuple):
    path: Path
    spec: Spec
    sink: Sink
    """Open from the first look on, as long as the service."""
    position: Position | None
    """Where its rows say on which place of the globe they lie."""


class Wish(NamedTuple):
    """What somebody who starts a run said about it."""

    run: str | None = None
    mode: RunMode | None = None
    requests_max: int | None = None
    seats: int = 0


class Imports:
    """Of one service."""

    def __init__(self, folder: Path, url: str, limits: str | None) -> None:
        self._known = known_in(folder)
        # Of its own: the kinds of imports are not those that the service checks submissions against.
        self._app = App(url, limits=limits)
        self._made: dict[str, tuple[Parts, ShardJob]] = {}
        self._open: set[str] = set()
        self._opening = {name: asyncio.Lock() for name in self._known}
        self._starting = {name: asyncio.Lock() for name in self._known}

    @property
    def names(self) -> list[str]:
        return sorted(self._known)

    def named(self, source: str) -> Known | None:
        return self._known.get(source)

    async def sink(self, source: str) -> Sink:
        sink = self._known[source].sink
        if source not in self._open:
            async with self._opening[source]:  # opened once
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
        """Asks the source what it knows about itself. Nothing is written."""
        parts, _ = await self._parts(source)
        plan = await planned(parts, mode)
        return plan, forecast(plan, parts.source.limit, parts.source.page_limit, parts.spec.budget)

    async def start(self, source: str, wish: Wish) -> RunRow:
        now = wall_clock_us()
        id_ = wish.run or f"{source}-{now // 1_000}"
        parts, job = await self._parts(source)
        async with self._starting[source]:  # who starts twice finds the first
            if await parts.sink.run(id_) is not None:
                raise UsageError(f"run: there is a run {id_} already; resume it, or give another name")
            plan = await planned(parts, wish.mode)
            return await start(parts, job, id_, plan, now, seats=wish.seats, requests_max=wish.requests_max)

    async def resume(self, source: str, row: RunRow, requests_max: int | None) -> int:
        """How many shards are open."""
        parts, job = await self._parts(source)
        async with self._starting[source]:
            refuse_other_spec(parts, row)
            await give(parts, row, requests_max)
            return await submit_open(parts, job, row.id)

    async def finish(self, source: str, run: str) -> RunState:
        """Say what has become of it. Again and again, if need be."""
        parts, _ = await self._parts(source)
        return await finish(parts, run)

    async def is_abandoned(self, source: str, run: str) -> bool:
        """Whether nobody will go on with the shards that are left, unless the run is resumed."""
        store = await self._app.store()
        if not await is_idle(store, source):
            return False
        rows = await (await self.sink(source)).shards(run)
        keys = {row.shard.key for row in rows if row.state in OPEN}
        return bool(keys) and await are_given_up(store, source, run, keys)

    async def _parts(self, source: str) -> tuple[Parts, ShardJob]:
        """The source is made when something is to be asked of it: a look needs no key."""
        await self.sink(source)
        if source not in self._made:
            path, spec, sink, _ = self._known[source]
            chosen = source_of(spec, path.parent, os.environ)
            parts = Parts(path, spec, chosen, sink, task_of(spec, chosen, sink))
            self._made[source] = parts, shard_job(self._app, parts)
        return self._made[source]


async def planned(parts: Parts, mode: RunMode | None) -> Plan:
    name = parts.spec.source.name
    history = await history_of(parts.sink, name, parts.task.spec_hash)
    try:
        async with asyncio.timeout(ASK_SECONDS_MAX):
            return await plan_of(parts, history, mode)
    except (TimeoutError, TransientError) as error:
        # Not the store's fault. The error's own words may hold the address with a key in it.
        detail = f"source {name}: it cannot be asked now; try again, and look at source.base_url in {parts.path.name}"
        raise Problem(503, "source_unavailable", detail, headers={"Retry-After": "5"}) from error


async def give(parts: Parts, row: RunRow, requests_max: int | None) -> None:
    """What was said counts. Without it the budget stays, unless it is used up and the spec has a larger one."""
    budget, wanted = parts.spec.budget, requests_max
    if wanted is None and is_used_up(row) and budget is not None:
        wanted = budget.requests_max
    most = row.requests_max if wanted is None else wanted
    if most is not None and row.requests >= most:
        raise UsageError(
            f"run {row.id}: has used {row.requests:,} of {most:,} requests; give it more with requests_max, for "
            f"example {2 * row.requests}"
        )
    if wanted is not None:
        await parts.sink.set_budget(row.id, wanted)


def known_in(folder: Path) -> dict[str, Known]:
    if not folder.is_dir():
        raise UsageError(f"--imports: there is no folder {folder}")
    paths = sorted(folder.glob("*.toml"))
    if len(paths) > SPECS_MAX:
        raise UsageError(f"--imports: {folder} has {len(paths):,} specs; at most {SPECS_MAX} are served")
    found: dict[str, Known] = {}
    for path in paths:
        spec, sink, _ = sink_only(path)
        name = spec.source.name
        if name in found:
            raise UsageError(f"--imports: {path.name} and {found[name].path.name} both name the source {name!r}")
        found[name] = Known(path, spec, sink, position_of(spec.resource))
    return found
