"""Like `sql_sink_worker`, for MongoDB and Parquet: python -m tests.imports.document_sink_worker PLACE FENCE"""

import asyncio
import sys
from pathlib import Path

from tests.imports.mongodb_fixtures import MongoPlace
from tests.imports.parquet_fixtures import ParquetPlace
from tests.imports.sql_sink_worker import ROWS

from leaseway.testing.sink_contract.fixtures import LOW, RUN, bad, page, row


async def work(address: str, fence: int) -> None:
    place = MongoPlace(address) if address.startswith("mongodb:") else ParquetPlace(Path(address))
    sink = place.sink()
    await sink.open()
    begun = await sink.shards.begin(RUN.id, LOW.key, fence)
    assert begun is not None
    number = begun.pages
    while True:  # until it is killed
        some = [row(one, title="x" * 500) for one in range(number * ROWS, (number + 1) * ROWS)]
        sent = page(some, number or None, number + 1, fence, bad=[bad(number)], size_bytes=ROWS, page_hash=str(number))
        assert await sink.shards.write(sent) is not None
        number += 1
        print(number, flush=True)


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1], int(sys.argv[2])))
