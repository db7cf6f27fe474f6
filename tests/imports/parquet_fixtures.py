"""A folder of Parquet files, and a way to read them without the sink."""

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from tests.imports.sql_sink_fixtures import TABLE, Columns

from leaseway.domain.ids import Instant
from leaseway.imports.sinks.parquet.sink import RUN_TABLES, ParquetSink
from leaseway.system import wall_clock_us
from leaseway.testing.sink_contract.fixtures import COLUMNS


class ParquetPlace:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def sink(
        self, now_us: Callable[[], Instant] | None = None, table: str = TABLE, columns: Columns = COLUMNS
    ) -> ParquetSink:
        return ParquetSink(str(self.folder), table, columns, now_us or wall_clock_us)

    def files(self) -> list[Path]:
        """The rows as a reader of the files finds them."""
        return sorted((self.folder / TABLE).glob("*.parquet"))

    def all_files(self) -> list[str]:
        return sorted(path.name for path in (self.folder / TABLE).iterdir())

    def versions(self) -> list[dict[str, Any]]:
        found = [pq.read_table(path, partitioning=None) for path in self.files()]
        lines = [line for table in found for line in plain(table).to_pylist()]
        return sorted(lines, key=lambda line: line["leaseway_version"])

    async def rows(self) -> dict[str, dict[str, Any]]:
        return {line["external_id"]: shown(line) for line in self.versions()}

    async def delete(self, external_id: str, at: Instant) -> None:
        with closing(sqlite3.connect(self.folder / RUN_TABLES, isolation_level=None)) as connection:
            connection.execute(f'UPDATE "{TABLE}" SET deleted_at = ? WHERE external_id = ?', (at, external_id))


def plain(table: pa.Table) -> pa.Table:
    """Instants as numbers, because Python's dates have a smaller range than Parquet's."""
    fields = [
        pa.field(field.name, pa.int64() if pa.types.is_timestamp(field.type) else field.type) for field in table.schema
    ]
    return table.cast(pa.schema(fields))


def shown(line: dict[str, Any]) -> dict[str, Any]:
    texts = [name for name, kind in {**COLUMNS, "document": "json"}.items() if kind == "json"]
    read = {name: json.loads(line[name]) for name in texts if line[name] is not None}
    return {name: value for name, value in {**line, **read}.items() if name != "leaseway_version"}
