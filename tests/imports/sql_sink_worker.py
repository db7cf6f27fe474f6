"""A worker that writes pages until it is killed: python -m tests.imports.sql_sink_worker PLACE FENCE

It prints the number of each page that it knows to be written.
"""

import asyncio
import sys
from pathlib import Path

from tests.imports.sql_sink_fixtures import PostgresPlace, SqlitePlace

from leaseway.testing.sink_contract.fixtures import COLUMNS, LOW, RUN, bad, page, row

ROWS = 50


async def work(address: str, fence: int) -> None:
    place = PostgresPlace(address) if address.startswith("postgresql:") else SqlitePlace(Path(address))
    sink = place.sink(columns=COLUMNS)
    await sink.open()
    begun = await sink.shards.begin(RUN.id, LOW.key, fence)
    assert begun is not None
    number = begun.pages
    while True:  # until it is killed
        ids = range(number * ROWS, (number + 1) * ROWS)
        some = [row(one, title="x" * 500) for one in ids]
        sent = page(
            some, number or None, number + 1, fence, bad=[bad(number)], size_bytes=ROWS, page_hash=str(number),
            remembers=True,
        )  # fmt: skip
        assert await sink.shards.write(sent) is not None
        number += 1
        print(number, flush=True)


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1], int(sys.argv[2])))
