"""Where the rows of a table lie, in PostgreSQL."""

import re

import asyncpg

from leaseway.imports.sinks import run_tables
from leaseway.imports.sinks.postgres.tables import number_parameters
from leaseway.imports.sinks.row_map import GRID, decode_cells, postgres_names
from leaseway.imports.spec.geo_grid import RowMapPage, RowPosition

PLACE = re.compile(r"\((\d{1,10}),(\d{1,5})\)")
BEGINNING = "(0,0)"
ROWS_OF_A_BLOCK = 5
"""Rows come with their documents: some fill a block by three or four, small ones by fifty."""
BLOCKS = "SELECT pg_relation_size(CAST($1::text AS regclass)) / current_setting('block_size')::bigint"


async def read_row_map(
    connection: asyncpg.Connection,
    table: str,
    source: str,
    run: str,
    position: RowPosition,
    after: str,
    rows_max: int,
) -> RowMapPage:
    """`table`: as SQL takes it. A table of partitions has no blocks of its own, and no map."""
    begin = after or BEGINNING
    until = block_of(begin) + max(rows_max // ROWS_OF_A_BLOCK, 1)
    has_more = until < await connection.fetchval(BLOCKS, table)
    statement = number_parameters(run_tables.statements("postgres")["places"], postgres_names(position, table), "")
    values = {**GRID, "source": source, "run": run, "after": begin, "until": f"({until},0)"}
    lines = await connection.fetch(statement.text, *statement.of(values))
    last = max((line[-1] for line in lines), key=parse_ctid, default=begin)
    return RowMapPage(decode_cells(lines), f"({until},0)" if has_more else last, has_more)


def block_of(place: str) -> int:
    return parse_ctid(place)[0]


def parse_ctid(place: str) -> tuple[int, int]:
    found = PLACE.fullmatch(place)
    if found is None:
        raise ValueError(f"{place!r} is no place in a table")
    return int(found[1]), int(found[2])
