"""Open the sink of an import for reading. Needs no API key, sends no request and creates no file."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

from leaseway.cli.open_store import store_url
from leaseway.cli.options import CliSettings
from leaseway.domain.errors import StoreRefused, UsageError
from leaseway.domain.redact import redact_url
from leaseway.domain.validators import url_scheme
from leaseway.imports.domain.run_state import RunRow
from leaseway.imports.run import start
from leaseway.imports.run.assembly import find_attribute, load_module, load_sink, parquet_folder
from leaseway.imports.sinks.port import Sink
from leaseway.imports.spec.reader import Spec, list_resources, split_resource
from leaseway.wiring import sqlite_path

T = TypeVar("T")

RUNS_MAX = 1_000


class OpenedSink(NamedTuple):
    """Everything known about an import without its source."""

    name: str
    """As typed: a file or module:name."""
    spec: Spec
    sink: Sink
    spec_hash: str

    @property
    def source(self) -> str:
        return self.spec.source.name


def named(text: str) -> Path | str:
    """A file, a resource in a file (shop.toml#orders), or `module:name` of an importer."""
    path = Path(text)
    if path.is_file() or split_resource(path)[0].is_file():
        return path
    if ":" in text and not text.endswith(".toml"):
        return text
    if path.is_dir():
        raise UsageError(f"{text} is a folder; name the spec in it, a TOML file")
    raise UsageError(
        f"there is no spec {text} (no file {path.absolute()}); name a TOML file, or MODULE:NAME of an importer"
    )


def each_resource(text: str) -> list[str]:
    """The specs that a command runs one after another: all resources of a file, unless one is named."""
    found = named(text)
    return list_resources(found) if isinstance(found, Path) else [text]


def jobs_url(settings: CliSettings, text: str) -> str:
    """The URL of the jobs: from the option, the environment, the importer's app, or the default."""
    found = named(text)
    if isinstance(found, Path):
        return store_url(settings)
    module, _, attribute = found.partition(":")
    app = getattr(find_attribute(load_module(module), attribute), "app", None)
    return store_url(settings) if app is None else store_url(settings, app.url)


def look(text: str, question: Callable[[OpenedSink], Awaitable[T]]) -> T:
    """Run a query on a sink that exists."""
    found = OpenedSink(text, *load_sink(named(text)))
    refuse_missing(found)

    async def asked() -> T:
        await found.sink.open()
        try:
            return await question(found)
        finally:
            await found.sink.close()

    return asyncio.run(asked())


def refuse_missing(found: OpenedSink) -> None:
    """Opening a missing file would create it, and a typing error would look like an import without runs."""
    path = place_on_disk(found.spec.sink.url)
    if path is not None and not path.exists():
        raise StoreRefused(
            f"sink.url: there is nothing at {redact_url(found.spec.sink.url)} yet (no {path}); change to the folder "
            f"that contains it, or start with: leaseway import run {found.name}"
        )


def place_on_disk(url: str) -> Path | None:
    """The file or folder of a sink; None if it is a server."""
    match url_scheme(url):
        case "sqlite":
            return Path(sqlite_path(url)).absolute()
        case "parquet":
            return Path(parquet_folder(url)).absolute()
    return None


async def find_run(found: OpenedSink, run: str | None) -> RunRow:
    """The run with this id, or the last one."""
    return await start.find_run(found.sink, found.source, run, found.name)


async def last_run(found: OpenedSink) -> RunRow | None:
    return next(iter(await found.sink.runs.find_all(found.source, 1)), None)


def command(settings: CliSettings, verb: str, name: str, run: str | None = None, *more: str) -> str:
    """The command to type next."""
    words = ["leaseway import", verb, name, *(["--run", run] if run else []), *more]
    return " ".join([*words, *(["--store", redact_url(settings.store)] if settings.store else [])])
