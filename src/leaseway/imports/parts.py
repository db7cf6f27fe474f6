"""A spec ─► its source, its sink, and the task that the jobs of its shards have in common."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from leaseway.domain.errors import StoreRefused
from leaseway.domain.imports.guards import Ceilings
from leaseway.domain.imports.rows import Moulds
from leaseway.domain.imports.shard import Cursor, Shard
from leaseway.domain.imports.spec import Spec, read_spec, spec_hash
from leaseway.domain.imports.splitting import split
from leaseway.flows.importing import Importing
from leaseway.ports.sink import Sink
from leaseway.sources.chosen import source_of
from leaseway.sources.files import FileSource
from leaseway.sources.http_json import JsonSource
from leaseway.wiring import sqlite_path


class Parts(NamedTuple):
    """All that one import is made of."""

    path: Path
    spec: Spec
    source: JsonSource | FileSource
    sink: Sink
    task: Importing


def parts_of(path: Path, environ: Mapping[str, str] = os.environ) -> Parts:
    spec = read_spec(path.read_text("utf-8"), str(path))
    source, sink = source_of(spec, path.parent, environ), sink_of(spec)
    return Parts(path, spec, source, sink, task_of(spec, source, sink))


def sink_of(spec: Spec) -> Sink:
    url, table = spec.sink.url, spec.sink.table
    columns = {name: column.type for name, column in spec.resource.columns.items()}
    match urlsplit(url).scheme:
        case "sqlite":
            from leaseway.sinks.sqlite import SqliteSink

            return SqliteSink(sqlite_path(url), table, columns)
        case "postgresql" | "postgres":
            from leaseway.sinks.postgres import PostgresSink

            return PostgresSink(url, table, columns)
        case scheme:
            raise StoreRefused(
                f"sink.url: {scheme}:// is no sink; there are sqlite:///data.db and postgresql://host/db"
            )


def task_of(spec: Spec, source: JsonSource | FileSource, sink: Sink) -> Importing:
    guards = spec.resource.guards

    def parts(shard: Shard, cursor: Cursor | None, why: str) -> list[Shard]:
        return split(shard, cursor, why, source.caps)

    return Importing(
        source=source,
        sink=sink,
        shape=Moulds(spec.resource).rows_of,
        split=parts,
        key=source.key_of,
        is_ours=source.is_ours,
        page_limit=source.page_limit,
        key_name=repr(spec.resource.key),
        limit_min=spec.resource.page.limit_least,
        spec_hash=spec_hash(spec),
        bad_ratio_max=spec.resource.on_bad_row.max_ratio,
        on_bad_row=spec.resource.on_bad_row.policy,
        ceilings=Ceilings(pages=guards.pages_max, rows=guards.rows_max, size_bytes=guards.bytes_max),
    )
