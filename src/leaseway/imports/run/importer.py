"""An import that is one function: what `@app.importer` returns.

plan ─► run ─► status, from Python; the same on the command line with `leaseway import run module:name`
"""

import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from leaseway.domain.errors import BadValue
from leaseway.imports.domain.run_state import RunMode, RunRow, RunState, ShardRow
from leaseway.imports.run.assembly import ImportParts, assemble_importer
from leaseway.imports.run.finish_run import finish_run
from leaseway.imports.run.plan import Plan, make_plan
from leaseway.imports.run.shard_jobs import ImportHost, ImportJobs, register_jobs
from leaseway.imports.run.start import NewRun, find_run, resume, start
from leaseway.imports.spec.importer_options import DeclaredImporter
from leaseway.worker.environment import WorkerSummary

T = TypeVar("T")

WORKERS = 4


class ImporterHost(ImportHost, Protocol):
    """The part of an app that importers use."""

    async def run_worker(self, worker: Any = None, **settings: Any) -> WorkerSummary: ...
    def sync(self, call: Coroutine[Any, Any, T]) -> T: ...


class ImportProgress(NamedTuple):
    """How far a run is."""

    run: RunRow
    shards: Sequence[ShardRow]

    @property
    def state(self) -> RunState:
        return self.run.state

    @property
    def rows(self) -> int:
        return sum(each.rows for each in self.shards)


class Importer:
    """A page function. Calling the importer calls the function directly, which is useful in tests."""

    def __init__(self, app: ImporterHost, declared: DeclaredImporter) -> None:
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
    def parts(self) -> ImportParts:
        return assemble_importer(self.declared, importer_name(self.declared.function))

    @cached_property
    def _jobs(self) -> ImportJobs:
        return register_jobs(self.app, self.parts)

    async def plan(self, mode: RunMode | str | None = None) -> Plan:
        """What the next run would read: everything, or the changes since the last run. Writes nothing."""
        wanted = parse_mode(mode)
        return await self._with_sink(lambda: make_plan(self.parts, wanted))

    async def run(
        self,
        workers: int = WORKERS,
        *,
        run: str | None = None,
        mode: RunMode | str | None = None,
        resume: bool = False,
        requests_max: int | None = None,
    ) -> ImportProgress:
        """Run the import in this process, with up to `workers` shards at once.

        Other processes can take part: `leaseway import work module:name`. With `resume`, continue the run named `run`,
        or the latest one. `requests_max` is the run's budget of requests; None keeps the budget of the run or the spec.
        """

        async def work() -> ImportProgress:
            name = await (self._resume(run, requests_max) if resume else self._start(new))
            await self.app.run_worker(queues=[self.parts.queue], until_empty=True, concurrency=workers)
            await finish_run(self.parts, name)
            return await self._progress(name)

        new = NewRun(run, parse_mode(mode), requests_max, concurrency=workers)
        return await self._with_sink(work)

    async def status(self, run: str | None = None) -> ImportProgress:
        """The progress of the run named `run`, or of the latest one."""
        return await self._with_sink(lambda: self._progress(run))

    def plan_sync(self, mode: RunMode | str | None = None) -> Plan:
        return self.app.sync(self.plan(mode))

    def run_sync(self, workers: int = WORKERS, **options: Any) -> ImportProgress:
        return self.app.sync(self.run(workers, **options))

    def status_sync(self, run: str | None = None) -> ImportProgress:
        return self.app.sync(self.status(run))

    async def _start(self, new: NewRun) -> str:
        return (await start(self.parts, self._jobs, new)).id

    async def _resume(self, run: str | None, requests_max: int | None) -> str:
        found = await find_run(self.parts.sink, self.name, run, self.parts.path)
        await resume(self.parts, self._jobs, found, requests_max)
        return found.id

    async def _progress(self, run: str | None) -> ImportProgress:
        found = await find_run(self.parts.sink, self.name, run, self.parts.path)
        return ImportProgress(found, await self.parts.sink.shards.find_all(found.id))

    async def _with_sink(self, work: Callable[[], Awaitable[T]]) -> T:
        await self.parts.sink.open()
        try:
            return await work()
        finally:
            await self.parts.sink.close()


def parse_mode(mode: RunMode | str | None) -> RunMode | None:
    if mode is not None and mode not in list(RunMode):
        raise BadValue("mode", f"must be {' or '.join(RunMode)} (is {mode!r})")
    return None if mode is None else RunMode(mode)


def importer_name(function: Callable[..., Any]) -> str:
    """The name for the command line."""
    module = str(getattr(function, "__module__", ""))
    if module == "__main__":
        module = Path(getattr(sys.modules[module], "__file__", None) or module).stem
    return f"{module}:{getattr(function, '__qualname__', type(function).__name__)}"
