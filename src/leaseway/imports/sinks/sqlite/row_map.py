"""Where the rows of a table lie, in an SQLite file."""

import re
import sqlite3

from leaseway.imports.sinks import run_tables
from leaseway.imports.sinks.row_map import GRID, decode_cells, sqlite_names
from leaseway.imports.spec.geo_grid import RowMapPage, RowPosition
from leaseway.stores.sqlite.connection import Work


def read_row_map(
    table: str, source: str, run: str, position: RowPosition, after: str, rows_max: int
) -> Work[RowMapPage]:
    begin = int(after or 0)
    names = sqlite_names(position, table)
    # In one pass: names that users gave are not read again.
    sql = re.sub(
        r":(?:latitude|longitude|table)\b", lambda found: names[found[0]], run_tables.statements("sqlite")["places"]
    )
    values = {**GRID, "source": source, "run": run, "after": begin, "rows_max": rows_max}

    def work(connection: sqlite3.Connection) -> RowMapPage:
        try:
            lines = connection.execute(sql, values).fetchall()
        except sqlite3.OperationalError as error:
            if "_rowid_" not in str(error):
                raise
            return RowMapPage([], after, has_more=False)  # somebody's own table, WITHOUT ROWID: it has no such order
        last = max((place for _, _, place in lines), default=begin)
        return RowMapPage(decode_cells(lines), str(last), has_more=sum(count for _, count, _ in lines) >= rows_max)

    return work
