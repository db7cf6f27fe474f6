"""One server for the whole run, and a database of its own for each measurement."""

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit
from uuid import uuid4

from pymongo import MongoClient
from pymongo.write_concern import WriteConcern

from leaseway.bench.processes import TEXT, probed
from leaseway.domain.ids import JobId
from leaseway.domain.job import NewJob
from leaseway.stores.mongodb.documents import DONE, READY, Doc, render_job
from leaseway.stores.mongodb.lanes import BYTES, LaneChanges
from leaseway.stores.mongodb.schema import JOBS, LANE_CHANGES
from leaseway.testing.mongodb import MongoServer, mongodb_server

NUMBERS = itertools.count(1)
FILL_BATCH = 5_000
PAYLOAD = f'{{"text":"{TEXT}"}}'


@contextmanager
def benchmark_server() -> Iterator[MongoServer]:
    """MongoDB's defaults, one member: a write of the majority is in the journal."""
    with mongodb_server(durable=True) as server:
        yield server


@contextmanager
def new_database(server: MongoServer) -> Iterator[str]:
    """The URL of an empty database; dropped at the end."""
    name = f"bench_{next(NUMBERS)}"
    url = urlsplit(server.url)._replace(path=f"/{name}").geturl()
    try:
        yield url
    finally:
        with client_of(server.url) as client:
            client.drop_database(name)


def client_of(url: str) -> MongoClient[Doc]:
    return MongoClient(url)


def checkpoint(server: MongoServer) -> None:
    """So that each contestant pays for its own dirty pages only."""
    server.command({"fsync": 1})


def fill(url: str, count: int) -> None:
    """With jobs that are ready. The first creates the collections, and is one of them."""
    probed("submit_bulk", url, count - 1)


def fill_many(url: str, count: int, status: str = READY) -> None:
    """Write the documents of so many jobs and the counters of their lane directly, which is faster than submitting."""
    now, size = int(time.time() * 1e6), len(PAYLOAD)
    probed("submit_bulk", url, 1)
    with client_of(url) as client:
        database = client.get_default_database()
        jobs = database[JOBS].with_options(write_concern=WriteConcern(1))
        for first in range(0, count, FILL_BATCH):
            docs = [rendered(status, now) for _ in range(min(FILL_BATCH, count - first))]
            jobs.insert_many(docs, ordered=False, bypass_document_validation=True)
        changes = LaneChanges()
        changes.add(("default", "default", ""), status, count)
        changes.add(("default", "default", ""), BYTES, count * size)
        database[LANE_CHANGES].insert_many(doc | {"by": "bench"} for doc in changes.render(now))


def rendered(status: str, now: int) -> Doc:
    doc = new_document(now)
    if status == DONE:
        doc |= {"status": DONE, "attempts": 1, "fence": 1, "finished_at": now, "at": now, "last_token": uuid4().hex}
    return doc


def new_document(now: int) -> Doc:
    """A job of the benchmark as leaseway stores it."""
    job = NewJob(id=JobId(uuid4().hex), kind="noop", queue="default", payload=PAYLOAD)
    return render_job(job, now)


def server_version(server: MongoServer) -> str:
    return str(server.command({"buildInfo": 1})["version"])
