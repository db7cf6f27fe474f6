"""An import that is one function: what `@app.importer` makes of it.

plan ─► run ─► status, from Python; the same from the command line, as `leaseway import run module:name`
"""

import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from leaseway.domain.errors import BadValue, NoSuchJob, UsageError
from leaseway.imports.assembly import Parts, parts_of_function
from leaseway.imports.domain.run_state import RunMode, RunRow, RunState, ShardRow
from leaseway.imports.plan.plan import Plan, history_of
from leaseway.imports.plan.probe_source import plan_of
from leaseway.imports.run.start import (
    Host,
    ShardJob,
    check_run,
    finish,
    queue_of,
    refuse_other_spec,
    shard_job,
    start,
    submit_open,
)
from leaseway.imports.spec.importer_options import Declared
from leaseway.system import wall_clock_us
from leaseway.worker.loop import WorkerSummary

T = TypeVar("T")

WORKERS = 4


class Home(Host, Protocol):
    """As much of an app as an importer needs."""

    async def run_worker(self, worker: Any = None, **settings: Any) -> WorkerSummary: ...
    def sync(self, call: Coroutine[Any, Any, T]) -> T: ...


class Progress(NamedTuple):
    """How far a run has come."""

    run: RunRow
    shards: Sequence[ShardRow]

    @property
    def state(self) -> RunState:
        return self.run.state

    @property
    def rows(self) -> int:
        return sum(each.rows for each in self.shards)


class Importer:
    """A function that fetches one page. Calling it fetches one, here and now: good for tests."""

    def __init__(self, app: Home, declared: Declared) -> None:
        self.app = app
        self.declared = declared
        self.name = declared.spec.source.name
        self.__wrapped__ = declared.function
        self.__doc__ = declared.function.__doc__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.declared.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<importer {self.name}>"

    @cached_property
    def parts(self) -> Parts:
        return parts_of_function(self.declared, address_of(self.declared.function))

    @cached_property
    def _job(self) -> ShardJob:
        return shard_job(self.app, self.parts)

    # -- the three verbs --

    async def plan(self, mode: RunMode | str | None = None) -> Plan:
        """What will be asked for: everything, or what has changed since the last run. Nothing is written."""

        async def made() -> Plan:
            history = await history_of(self.parts.sink, self.name, self.parts.task.spec_hash)
            return await plan_of(self.parts, history, wanted)

        wanted = parse_mode(mode)
        return await self._with_sink(made)

    async def run(
        self, workers: int = WORKERS, *, run: str | None = None, mode: RunMode | str | None = None, resume: bool = False
    ) -> Progress:
        """Import, in this process, with as many shards at once as there are `workers`. Other processes can help:
        `leaseway import work module:name`. With `resume`, the last run goes on, or the one that is named."""

        async def ran() -> Progress:
            id_ = await (self._resumed(run) if resume else self._started(run, wanted, workers))
            await self.app.run_worker(queues=[queue_of(self.parts)], until_empty=True, concurrency=workers)
            await finish(self.parts, id_)
            return await self._progress(id_)

        wanted = parse_mode(mode)
        return await self._with_sink(ran)

    async def status(self, run: str | None = None) -> Progress:
        """Of the last run, or of the one that is named."""
        return await self._with_sink(lambda: self._progress(run))

    def plan_sync(self, mode: RunMode | str | None = None) -> Plan:
        return self.app.sync(self.plan(mode))

    def run_sync(self, workers: int = WORKERS, **options: Any) -> Progress:
        return self.app.sync(self.run(workers, **options))

    def status_sync(self, run: str | None = None) -> Progress:
        return self.app.sync(self.status(run))

    # -- inside --

    async def _started(self, run: str | None, mode: RunMode | None, workers: int) -> str:
        now = wall_clock_us()
        id_ = run or f"{self.name}-{now // 1_000}"
        check_run(id_)
        if await self.parts.sink.run(id_) is not None:
            raise UsageError(f"there is a run {id_} already; go on with it by resume=True, or give another name")
        history = await history_of(self.parts.sink, self.name, self.parts.task.spec_hash)
        await start(self.parts, self._job, id_, await plan_of(self.parts, history, mode), now, seats=workers)
        return id_

    async def _resumed(self, run: str | None) -> str:
        found = await self._found(run)
        refuse_other_spec(self.parts, found)
        await submit_open(self.parts, self._job, found.id)
        return found.id

    async def _progress(self, run: str | None) -> Progress:
        found = await self._found(run)
        return Progress(found, await self.parts.sink.shards(found.id))

    async def _found(self, run: str | None) -> RunRow:
        sink = self.parts.sink
        runs = await sink.runs(self.name)
        found = next(iter(runs), None) if run is None else await sink.run(run)
        if found is None or found.source != self.name:
            known = ", ".join(row.id for row in runs) or "none yet"
            raise NoSuchJob(f"there is no run {run or 'of ' + self.name}; there are: {known}")
        return found

    async def _with_sink(self, question: Callable[[], Awaitable[T]]) -> T:
        await self.parts.sink.open()
        try:
            return await question()
        finally:
            await self.parts.sink.close()


def parse_mode(mode: RunMode | str | None) -> RunMode | None:
    if mode is not None and mode not in list(RunMode):
        raise BadValue("mode", f"must be {' or '.join(RunMode)} (is {mode!r})")
    return None if mode is None else RunMode(mode)


def address_of(function: Callable[..., Any]) -> str:
    """As it is named on the command line."""
    module = str(getattr(function, "__module__", ""))
    if module == "__main__":
        module = Path(getattr(sys.modules[module], "__file__", None) or module).stem
    return f"{module}:{getattr(function, '__qualname__', type(function).__name__)}"
