"""What all cases share: sizes, the provider, and when a result is invalid."""

import subprocess
import time
from collections.abc import Callable
from typing import NamedTuple

from benchmarks.imports.ours import RUN_SECONDS_MAX
from benchmarks.imports.provider import Provider

SQLITE, POSTGRESQL = "SQLite", "PostgreSQL"
WORKERS = 2
"""The default number of workers of `leaseway import run`."""
LOOK_SECONDS = 0.05


class Size(NamedTuple):
    repeats: int = 2
    rows: int | None = None
    """None: all places."""
    tried_rows: int = 30_000
    bare_pages: int = 200
    setups: int = 4
    limited_page_rows: int = 50
    """Few enough that the import does not end before its rate is known."""
    limited_seconds: float = 31.0
    warm_seconds: float = 8.0


FULL = Size()
QUICK = Size(
    repeats=1, rows=6_000, tried_rows=2_000, bare_pages=6, setups=1, limited_page_rows=10, limited_seconds=3.0,
    warm_seconds=1.0,
)  # fmt: skip


class Place(NamedTuple):
    """What all cases share."""

    it: Provider
    postgres_url: str
    has_dlt: bool


def refuse_missing(place: Place, count: int) -> None:
    if count != place.it.rows:
        raise RuntimeError(f"{count:,} rows have come, and {place.it.rows:,} were there")


def wait_until(is_so: Callable[[], bool], process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + RUN_SECONDS_MAX
    while not is_so():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"{process.args!r} was to be looked at half done, and has ended or hangs")
        time.sleep(LOOK_SECONDS)
