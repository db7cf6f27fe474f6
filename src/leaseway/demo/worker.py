"""One worker process of the demo: does what `leaseway import work` does, and ends with the demo."""

import asyncio
import os
import sys
import threading
from pathlib import Path

from leaseway.app import App
from leaseway.imports.assembly import load_import
from leaseway.imports.run.shard_jobs import register_jobs

CONCURRENCY = 4


def end_with_parent() -> None:
    """Exit when stdin is closed: the parent holds the other end, so it closes however the parent died."""
    os.read(0, 1)
    os._exit(1)


def main(spec: str, store_url: str) -> None:
    threading.Thread(target=end_with_parent, daemon=True).start()
    parts = load_import(Path(spec))
    app = App(store_url)
    register_jobs(app, parts)
    asyncio.run(parts.sink.open())
    app.work(queues=[parts.queue], until_empty=True, concurrency=CONCURRENCY, grace=2)


if __name__ == "__main__":
    main(*sys.argv[1:])
