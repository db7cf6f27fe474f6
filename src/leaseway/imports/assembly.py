"""Spec, or page function with options ─► source, sink and the task that all shard jobs share."""

import asyncio
import inspect
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from leaseway.domain.errors import UsageError
from leaseway.imports.domain.guards import Ceilings
from leaseway.imports.domain.shard import Cursor, Shard
from leaseway.imports.domain.splitting import split_shard
from leaseway.imports.load_object import find_attribute, load_module, refuse_path
from leaseway.imports.open_sink import sink_for_url
from leaseway.imports.rows import RowBuilder
from leaseway.imports.shard_job.page_writes import ShardTask
from leaseway.imports.sinks.port import Sink
from leaseway.imports.sources.factory import ImportSource, make_source
from leaseway.imports.sources.function import FunctionSource
from leaseway.imports.sources.port import RequestClient
from leaseway.imports.spec.importer_options import DeclaredImporter
from leaseway.imports.spec.reader import Spec, read_spec, spec_hash
from leaseway.worker.provider_http import Http, SyncHttp
from leaseway.worker.run_handler import HandlerThreads


class PageFunctionCaller:
    def __init__(self) -> None:
        self._threads = HandlerThreads()

    async def __call__(self, function: Callable[..., Any], given: dict[str, Any], http: RequestClient | None) -> Any:
        if http is not None:
            given = {**given, "http": PageFunctionHttp(http)}
        if is_async(function):
            return await function(**given)
        if http is not None:
            given = {**given, "http": SyncHttp(given["http"], asyncio.get_running_loop())}
        return await self._threads.run(partial(function, **given))


def is_async(function: Callable[..., Any]) -> bool:
    """Also handles callable objects and decorated functions."""
    inner = inspect.unwrap(function)
    return inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(getattr(inner, "__call__", None))  # noqa: B004


class PageFunctionHttp(Http):
    """The HTTP client given to a page function. It admits and counts the requests of the import."""

    def __init__(self, asker: RequestClient) -> None:
        self._asker = asker

    async def request(self, method: str, url: str, **options: Any) -> Any:
        return await self._asker.request(method, url, **options)


class ImportParts(NamedTuple):
    """The parts of one import."""

    path: Path
    """The TOML file, or `module:name` of an importer."""
    spec: Spec
    source: ImportSource
    sink: Sink
    task: ShardTask

    @property
    def queue(self) -> str:
        return queue_name(self.spec.source.name)


def queue_name(source: str) -> str:
    """Each source has its own queue, because its workers know only the shards of that source."""
    return f"imports:{source}"


def load_import(path: Path | str, environ: Mapping[str, str] = os.environ) -> ImportParts:
    """Load an import from a TOML file, or from an importer given as `module:name`."""
    if (found := find_importer(path)) is not None:
        return assemble_importer(found, path)
    path = Path(path)
    spec = read_spec(path.read_text("utf-8"), str(path))
    source, sink = make_source(spec, path.parent, environ), make_sink(spec)
    return ImportParts(path, spec, source, sink, make_shard_task(spec, source, sink))


def assemble_importer(found: DeclaredImporter, name: Path | str) -> ImportParts:
    source, sink = FunctionSource(*found, PageFunctionCaller()), make_sink(found.spec)
    return ImportParts(Path(name), found.spec, source, sink, make_shard_task(found.spec, source, sink))


def load_sink(path: Path | str) -> tuple[Spec, Sink, str]:
    """Spec, sink and spec hash, for reading. The source is not created, so its key is not needed."""
    found = find_importer(path)
    spec = read_spec(Path(path).read_text("utf-8"), str(path)) if found is None else found.spec
    return spec, make_sink(spec), spec_hash(spec)


def find_importer(name: Path | str) -> DeclaredImporter | None:
    """Returns None if the name is a file name."""
    module_name, colon, attribute = str(name).partition(":")
    if not colon or str(name).endswith(".toml") or Path(name).is_file():
        return None
    module = load_module(refuse_path(module_name, str(name), "MODULE:IMPORTER, for example shop:things"))
    found = getattr(find_attribute(module, attribute), "declared", None)
    if isinstance(found, DeclaredImporter):
        return found
    known = [
        each for each, value in vars(module).items() if isinstance(getattr(value, "declared", None), DeclaredImporter)
    ]
    names = ", ".join(f"{module_name}:{each}" for each in known)
    there = f"it has: {names}" if known else "the module has none; decorate the function with @app.importer(...)"
    raise UsageError(f"{name} is not an importer; {there}")


def make_sink(spec: Spec) -> Sink:
    columns = {name: column.type for name, column in spec.resource.columns.items()}
    return sink_for_url(spec.sink.url, spec.sink.table, columns)


def make_shard_task(spec: Spec, source: ImportSource, sink: Sink) -> ShardTask:
    guards = spec.resource.guards

    def parts(shard: Shard, cursor: Cursor | None, why: str, id_max: int | None) -> list[Shard]:
        return split_shard(shard, cursor, why, source.caps, id_max)

    return ShardTask(
        source=source,
        sink=sink,
        shape=RowBuilder(spec.resource).build,
        split=parts,
        key=source.record_key,
        is_ours=source.is_ours,
        page_limit=source.page_limit,
        key_name=repr(spec.resource.key),
        limit_min=spec.resource.page.limit_least,
        spec_hash=spec_hash(spec),
        bad_ratio_max=spec.resource.on_bad_row.max_ratio,
        on_bad_row=spec.resource.on_bad_row.policy,
        ceilings=Ceilings(pages=guards.pages_max, rows=guards.rows_max, size_bytes=guards.bytes_max),
        sweeps=spec.resource.deletes is not None and spec.resource.deletes.sweep is not None,
    )
