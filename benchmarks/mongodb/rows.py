"""Rows for the sink: written page by page, as an import does.

python -m benchmarks.mongodb.rows URL COUNT
"""

import asyncio
import json
import sys
import time

from leaseway.imports.domain.page import ColumnType, Row
from leaseway.imports.domain.partition import make_shard
from leaseway.imports.domain.run_state import RunRow
from leaseway.imports.sinks.mongodb import MongoSink
from leaseway.imports.sinks.port import PageWrite

PAGE = 1_000
COLUMNS = {"title": ColumnType.TEXT, "latitude": ColumnType.REAL, "longitude": ColumnType.REAL}
RUN = RunRow(id="run-1", source="bench", spec_hash="hash-1", started_at=0)
SHARD = make_shard("bench", "all", {})


def new_rows(count: int) -> list[Row]:
    return [new_row(number) for number in range(count)]


def new_row(number: int) -> Row:
    values = {"title": f"place {number}", "latitude": number % 90 + 0.5, "longitude": number % 180 + 0.25}
    document = json.dumps({"id": number, **values, "address": {"street": "x" * 60, "town": "y" * 20}})
    return Row(external_id=str(number), stamp=0, content_hash=f"{number:032x}", document=document, values=values)


async def write(url: str, count: int) -> None:
    sink = MongoSink(url, "places", COLUMNS)
    await sink.open()
    await sink.runs.start(RUN, [SHARD])
    await sink.shards.begin(RUN.id, SHARD.key, 1)
    rows = new_rows(count)
    started_at = time.perf_counter()
    for first in range(0, count, PAGE):
        before = {"after": first} if first else None
        page = PageWrite(
            run=RUN.id, shard=SHARD.key, fence=1, before=before, after={"after": first + PAGE},
            rows=rows[first : first + PAGE],
        )  # fmt: skip
        assert await sink.shards.write(page) is not None
    seconds = time.perf_counter() - started_at
    assert await sink.rows.count() == count
    await sink.close()
    print(json.dumps({"count": count, "seconds": seconds}))


if __name__ == "__main__":
    asyncio.run(write(sys.argv[1], int(sys.argv[2])))
