"""`leaseway import run` as a user types it: a spec, a job store, a sink, and worker processes."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, NamedTuple

import psycopg

from benchmarks.imports.provider import PAGE_ROWS, Provider
from leaseway.imports.domain.run_state import ShardRow
from leaseway.imports.run.assembly import load_import
from leaseway.testing.fake_open_charge_map import API_KEY

SHARD_IDS = 20_000
"""Ids per shard: the same ranges for all contestants."""
RUN_SECONDS_MAX = 300

SPEC = """
version = 1
[source]
name = "ocm"
base_url = "{url}/v3"
auth = {{ header = "X-API-Key", env = "OCM_API_KEY" }}
limits = [{limits}]
[resource]
path = "/poi"
params = {{ compact = true, verbose = false }}
key = "ID"
stamp = {{ field = "DateLastStatusUpdate", granularity = "1m", lag = "0s" }}
volatile = ["IsRecentlyVerified", "DateLastVerified"]
partition = {{ by = "id_range", size = {shard_ids}, upper = "/system/status#$.maxPOIId" }}
[resource.page]
cursor = "keyset"
param = "greaterthanid"
start = 0
limit_param = "maxresults"
limit = {page_rows}
fixed = {{ sortby = "id_asc" }}
[resource.columns]
title = {{ path = "AddressInfo.Title", type = "text" }}
country = {{ path = "AddressInfo.CountryID", type = "integer" }}
latitude = {{ path = "AddressInfo.Latitude", type = "real" }}
longitude = {{ path = "AddressInfo.Longitude", type = "real" }}
updated = {{ path = "DateLastStatusUpdate", type = "timestamp" }}
[sink]
url = "{sink}"
table = "poi"
"""


class Import(NamedTuple):
    """One import in its own folder or database."""

    spec: Path
    store: str
    sink: str

    def command(self, verb: str, run: str, workers: int, *more: str) -> list[str]:
        words = [verb, str(self.spec), "--run", run, "--workers", str(workers), "--store", self.store, *more]
        return [sys.executable, "-m", "leaseway.cli", "import", *words]

    def rows(self) -> int:
        return rows_in(self.sink, "poi", "external_id")

    def shards(self, run: str) -> list[ShardRow]:
        os.environ["OCM_API_KEY"] = API_KEY
        sink = load_import(self.spec).sink

        async def found() -> list[ShardRow]:
            await sink.open()
            try:
                return await sink.shards.find_all(run)
            finally:
                await sink.close()

        return asyncio.run(found())


class Asked(NamedTuple):
    """What differs between the cases."""

    limits: Sequence[str] = ()
    page_rows: int = PAGE_ROWS
    shard_ids: int = SHARD_IDS


def import_in(folder: Path, it: Provider, postgres_url: str | None = None, asked: Asked = Asked()) -> Import:  # noqa: B008
    sink = postgres_url or f"sqlite:///{folder}/rows.db"
    store = postgres_url or f"sqlite:///{folder}/jobs.db"
    text = SPEC.format(
        url=it.url,
        limits=", ".join(f'"{limit}"' for limit in asked.limits),
        shard_ids=asked.shard_ids,
        page_rows=asked.page_rows,
        sink=sink,
    )
    (folder / "spec.toml").write_text(text, "utf-8")
    return Import(folder / "spec.toml", store, sink)


def run_seconds(command: Sequence[str]) -> float:
    """From the start of the command to its end."""
    began = time.monotonic()
    with TemporaryFile() as said, started(command, said) as process:
        process.wait(RUN_SECONDS_MAX)
        seconds = time.monotonic() - began
        if process.returncode:
            said.seek(0)
            text = said.read().decode(errors="replace")[-2_000:]
            raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}: {text}")
    return seconds


@contextmanager
def started(command: Sequence[str], said: IO[bytes] | int = subprocess.DEVNULL) -> Iterator["subprocess.Popen[bytes]"]:
    """In a process group of its own, which ends with the block. Output goes to a file, because a pipe could fill up."""
    environ = {**os.environ, "OCM_API_KEY": API_KEY}
    with subprocess.Popen(command, env=environ, stdout=said, stderr=said, start_new_session=True) as process:
        try:
            yield process
        finally:
            kill_all(process)


def kill_all(process: "subprocess.Popen[bytes]") -> None:
    """The process and all its children."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return  # all of them have ended


def rows_in(address: str, table: str, key: str) -> int:
    """The number of distinct rows. More rows than keys would be duplicates."""
    question = f"SELECT count(*), count(DISTINCT {key}) FROM {table}"
    if address.startswith("sqlite:///"):
        with closing(sqlite3.connect(address.removeprefix("sqlite:///"))) as file:
            count, distinct = file.execute(question).fetchone()
    else:
        with psycopg.connect(address) as connection:
            count, distinct = connection.execute(question.encode()).fetchone() or (0, 0)
    if count != distinct:
        raise RuntimeError(f"{table}: {count:,} rows have only {distinct:,} keys")
    return int(count)
