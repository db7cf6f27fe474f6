"""huey on SQLite, by its own consumer: no-op tasks with an argument of 200 bytes.

    python -m benchmarks.huey_peer FILE COUNT '{"worker_type": "thread", "workers": 1, …}'

Tasks are enqueued without fsync, which is not measured. Then a consumer runs until the queue is empty: its best case,
since its last tasks need not have ended.
"""

import contextlib
import json
import logging
import sqlite3
import sys
import time
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from leaseway.bench.processes import TEXT

LOOK_SECONDS = 0.005


class Setup(NamedTuple):
    """One way to run huey."""

    worker_type: str
    workers: int
    fsync: bool = True
    driver: str = "sqlite3"

    def __str__(self) -> str:
        durability = "fsync" if self.fsync else "no fsync"
        return f"worker_type={self.worker_type}, workers={self.workers}, {self.driver}, {durability}"


def setups(fsync: bool = True) -> list[Setup]:
    """What a user of huey would try. Greenlets need gevent and share one connection, as threads do."""
    drivers = ["sqlite3", *(["cysqlite"] if find_spec("cysqlite") else [])]
    shapes = [("thread", 1), ("thread", 2), ("thread", 4), ("process", 1), ("process", 2), ("process", 4)]
    return [Setup(*shape, fsync=fsync, driver=driver) for driver in drivers for shape in shapes]


def huey_at(file: Path, setup: Setup, fsync: bool) -> tuple[Any, Any]:
    """An instance and its task. Results are off: only the queue is stored."""
    kind = "CySqliteHuey" if setup.driver == "cysqlite" else "SqliteHuey"
    instance = getattr(import_module("huey"), kind)("bench", filename=str(file), fsync=fsync, results=False)

    @instance.task()  # type: ignore[untyped-decorator]
    def noop(text: str) -> None:
        pass

    return instance, noop


def drain(file: Path, count: int, setup: Setup) -> float:
    instance, noop = huey_at(file, setup, fsync=False)
    for _ in range(count):
        noop(TEXT)
    instance.storage.close()
    instance, _ = huey_at(file, setup, fsync=setup.fsync)
    consumer = instance.create_consumer(
        workers=setup.workers, worker_type=setup.worker_type, periodic=False, initial_delay=0.01, max_delay=0.1
    )
    with contextlib.closing(sqlite3.connect(file)) as look:
        started_at = time.perf_counter()
        consumer.start()
        while look.execute("SELECT 1 FROM task LIMIT 1").fetchone():
            time.sleep(LOOK_SECONDS)
        seconds = time.perf_counter() - started_at
    consumer.stop(graceful=True)
    return seconds


def main(file: str, count: str, setup: str) -> None:
    logging.disable(logging.ERROR)
    seconds = drain(Path(file), int(count), Setup(**json.loads(setup)))
    print(json.dumps({"count": int(count), "seconds": seconds}))


if __name__ == "__main__":
    main(*sys.argv[1:])
