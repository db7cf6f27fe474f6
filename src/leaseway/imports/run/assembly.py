"""Spec, or page function with options ─► source, sink and the task that all shard jobs share.

Only the driver that the sink needs is imported. Errors name the field, module or object that is wrong.
"""

import asyncio
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from leaseway.domain.errors import StoreRefused, UsageError
from leaseway.domain.redact import Redactor, passwords_in
from leaseway.domain.validators import url_scheme
from leaseway.imports.domain.guards import Ceilings
from leaseway.imports.domain.page import ColumnType
from leaseway.imports.domain.partition import Cursor, Shard
from leaseway.imports.domain.splitting import split_shard
from leaseway.imports.rows import RowBuilder
from leaseway.imports.run.page_writes import ShardTask
from leaseway.imports.sinks.port import Sink
from leaseway.imports.sources.credentials import known_secrets
from leaseway.imports.sources.factory import ImportSource, make_source
from leaseway.imports.sources.function import FunctionSource
from leaseway.imports.sources.port import RequestClient
from leaseway.imports.spec.importer_options import DeclaredImporter
from leaseway.imports.spec.reader import Spec, read_spec_file, spec_hash
from leaseway.wiring import sqlite_path
from leaseway.worker.calls.provider_call import wait_in_thread
from leaseway.worker.context import SyncHttp
from leaseway.worker.provider_http import Http
from leaseway.worker.run_handler import HandlerThreads

MISSING = object()


def refuse_path(module: str, name: str, example: str = "MODULE:APP, for example tasks:app") -> str:
    if module.endswith(".py") or "/" in module:
        dotted = module.removeprefix("./").removesuffix(".py").replace("/", ".")
        raise UsageError(
            f"{name!r} is a path; write the module name as in an import statement: {name.replace(module, dotted)}"
        )
    if not all(part.isidentifier() for part in module.split(".")):
        raise UsageError(f"{name!r} is not a module name; write {example}")
    return module


def load_module(name: str) -> ModuleType:
    """Import the module with the current directory first in `sys.path`, as `python -m` does."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise UsageError(
                f"module {error.name!r} was not found in {here} or among the installed packages; "
                "change to the folder that contains it, or correct the name"
            ) from error
        raise UsageError(
            f"importing {name!r} failed: {error}{error_location(error)}; install the missing package"
        ) from error
    except (Exception, SystemExit) as error:
        what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise UsageError(f"importing {name!r} failed: {what}{error_location(error)}") from error


def error_location(error: BaseException) -> str:
    """The location of the error in the user's code, without the frames of the import machinery."""
    if isinstance(error, SyntaxError):
        return ""  # the message of a SyntaxError contains the location
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<frozen")]
    last = frames[-1]
    return f" ({Path(last.filename).name}, line {last.lineno})" if len(frames) > 1 else ""


def find_attribute(module: ModuleType, attribute: str) -> Any:
    """Returns `MISSING` if the attribute does not exist."""
    found: Any = module
    for part in attribute.split("."):
        found = getattr(found, part, MISSING)
    return found


KNOWN = (
    "sqlite:///data.db, postgresql://host/database, mongodb://host/database and parquet:///folder "
    "(four slashes for an absolute path)"
)


def sink_for_url(url: str, table: str, columns: Mapping[str, ColumnType]) -> Sink:
    """The sink is not open yet."""
    match url_scheme(url):
        case "sqlite":
            from leaseway.imports.sinks.sqlite.sink import SqliteSink

            return SqliteSink(sqlite_path(url), table, columns)
        case "postgresql":
            require_module("asyncpg", "PostgreSQL needs its driver", "postgres")
            from leaseway.imports.sinks.postgres.sink import PostgresSink

            return PostgresSink(url, table, columns)
        case "mongodb" | "mongodb+srv":
            require_module("pymongo", "MongoDB needs its driver", "mongodb")
            from leaseway.imports.sinks.mongodb import MongoSink

            return MongoSink(url, table, columns)
        case "parquet":
            require_module("pyarrow", "Parquet files need their library", "parquet")
            from leaseway.imports.sinks.parquet.sink import ParquetSink

            return ParquetSink(parquet_folder(url), table, columns)
        case scheme:
            raise StoreRefused(f"sink.url: {scheme}:// is not supported; supported are {KNOWN}")


def require_module(module: str, what: str, extra: str) -> None:
    if find_spec(module) is None:
        raise StoreRefused(f"sink.url: {what}; install it with: pip install 'leaseway[{extra}]'")


def parquet_folder(url: str) -> str:
    """parquet:///places is a relative path, parquet:////places is absolute, as with sqlite://."""
    path = url.removeprefix("parquet://")
    if not path.startswith("/") or path == "/":
        raise StoreRefused(
            f"sink.url: {url!r} does not contain a folder; write three slashes and a path: parquet:///places"
        )
    return path[1:]


class PageFunctionCaller:
    def __init__(self) -> None:
        self._threads = HandlerThreads()

    async def __call__(self, function: Callable[..., Any], given: dict[str, Any], http: RequestClient | None) -> Any:
        if http is not None:
            given = {**given, "http": PageFunctionHttp(http)}
        if is_async(function):
            return await function(**given)
        if http is not None:
            given = {**given, "http": SyncHttp(given["http"], partial(wait_in_thread, asyncio.get_running_loop()))}
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
    spec = read_spec_file(path)
    source, sink = make_source(spec, path.parent, environ), make_sink(spec)
    return ImportParts(path, spec, source, sink, make_shard_task(spec, source, sink, known_secrets(spec, environ)))


def assemble_importer(found: DeclaredImporter, name: Path | str) -> ImportParts:
    source, sink = FunctionSource(*found, PageFunctionCaller()), make_sink(found.spec)
    return ImportParts(Path(name), found.spec, source, sink, make_shard_task(found.spec, source, sink))


def load_sink(path: Path | str) -> tuple[Spec, Sink, str]:
    """Spec, sink and spec hash, for reading. The source is not created, so its key is not needed."""
    found = find_importer(path)
    spec = read_spec_file(path) if found is None else found.spec
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


def make_shard_task(spec: Spec, source: ImportSource, sink: Sink, secrets: Sequence[str] = ()) -> ShardTask:
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
        redactor=Redactor([*secrets, *passwords_in(spec.source.base_url), *passwords_in(spec.sink.url)]),
        sweeps=spec.resource.deletes is not None and spec.resource.deletes.sweep is not None,
    )
