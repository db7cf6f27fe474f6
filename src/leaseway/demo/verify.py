"""Counts again: from the rows in the table, from the provider's own rows and from its journal.

    missing     the provider has the row, the table does not
    extra       the table has the row, the provider does not
    doubled     the table has the row more than once
    different   the row differs from the provider's
    refused     a request that was answered with 429

Every row must have been written once: the count of inserts must equal the number of rows.
"""

import json
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

import click

from leaseway.demo.spec import TABLE, Files

NAMED_MAX = 5
SECOND_NS = 1_000_000_000
TOO_MANY = 429
OK = 200
POSTGRES = ("postgresql", "postgres")
MONGODB = ("mongodb", "mongodb+srv")
QUERY = f"SELECT external_id, stamp, title, country, latitude, longitude FROM {TABLE}"
FIELDS = ("stamp", "title", "country", "latitude", "longitude")

Row = Sequence[Any]
"""The id, stamp, title, country, latitude and longitude."""

Place = tuple[int, str | None, int | None, float, float]
"""Timestamp, title, country, latitude and longitude."""


class JournaledRequest(NamedTuple):
    """One request in the provider's journal."""

    at_ns: int
    status: int
    path: str


class DemoVerdict(NamedTuple):
    places: int
    rows: int
    inserted: int
    """As leaseway counted them."""
    missing: tuple[int, ...]
    extra: tuple[int, ...]
    doubled: tuple[int, ...]
    different: tuple[int, ...]
    limit: int
    requests: int
    refused: int
    most_in_a_second: int
    requests_per_second: float
    pages_again: int
    """Pages that were requested, answered, and requested again."""

    @property
    def is_clean(self) -> bool:
        wrong = (self.missing, self.extra, self.doubled, self.different)
        return not any(wrong) and not self.refused and self.most_in_a_second <= self.limit and self.is_exact

    @property
    def is_exact(self) -> bool:
        return self.inserted == self.rows


def judge(
    truth: Mapping[int, Place],
    rows: Sequence[tuple[int, Place]],
    journal: Sequence[JournaledRequest],
    limit: int,
    inserted: int,
) -> DemoVerdict:
    found, times = dict(rows), Counter(number for number, _ in rows)
    return DemoVerdict(
        places=len(truth),
        rows=len(rows),
        inserted=inserted,
        missing=tuple(sorted(truth.keys() - found.keys())),
        extra=tuple(sorted(found.keys() - truth.keys())),
        doubled=tuple(sorted(number for number, count in times.items() if count > 1)),
        different=tuple(sorted({number for number, place in rows if number in truth and truth[number] != place})),
        limit=limit,
        requests=len(journal),
        refused=sum(asked.status == TOO_MANY for asked in journal),
        most_in_a_second=most_within([asked.at_ns for asked in journal], SECOND_NS),
        requests_per_second=requests_per_second(journal),
        pages_again=again(journal),
    )


def judge_files(files: Files, limit: int, inserted: int) -> DemoVerdict:
    truth = {number: parse_place(values) for number, *values in json.loads(files.truth.read_bytes())}
    journal = [JournaledRequest(*line) for line in json.loads(files.journal.read_bytes())]
    with stored_rows(files.sink_url) as found:
        rows = [(int(number), parse_place(values)) for number, *values in found]
    return judge(truth, rows, journal, limit, inserted)


def check_url(url: str) -> str:
    if urlsplit(url).scheme not in (*POSTGRES, *MONGODB):
        raise click.BadParameter(
            "begin the URL with postgresql:// or mongodb://; without --store, the demo uses SQLite files",
            param_hint="--store",
        )
    return url


@contextmanager
def stored_rows(url: str) -> Iterator[Iterator[Row]]:
    """The imported rows as the database holds them. Read without leaseway's sink, so that nothing of it is trusted."""
    scheme = urlsplit(url).scheme
    if scheme in MONGODB:
        with from_mongodb(url) as rows:
            yield rows
    elif scheme in POSTGRES:
        with from_postgres(url) as rows:
            yield rows
    else:
        path = Path(url.removeprefix("sqlite:///"))
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
            yield iter(connection.execute(QUERY))


@contextmanager
def from_postgres(url: str) -> Iterator[Iterator[Row]]:
    import psycopg

    with psycopg.connect(url) as connection:
        yield iter(connection.execute(QUERY))


@contextmanager
def from_mongodb(url: str) -> Iterator[Iterator[Row]]:
    from pymongo import MongoClient
    from pymongo.database import Database

    client: MongoClient[dict[str, Any]]
    with MongoClient(url) as client:
        database: Database[dict[str, Any]] = client.get_default_database()
        found = database[TABLE].find({}, FIELDS)
        yield ((doc["_id"]["external_id"], *(doc.get(name) for name in FIELDS)) for doc in found)


def parse_place(values: Sequence[Any]) -> Place:
    stamp, title, country, latitude, longitude = values
    return stamp, title, country, latitude, longitude


def most_within(times_ns: Iterable[int], window_ns: int) -> int:
    """The maximum number of these times in any window of this length. Two times exactly that far apart are not in one
    window.
    """
    ordered_ns = sorted(times_ns)
    most, oldest = 0, 0
    for newest, at_ns in enumerate(ordered_ns):
        while ordered_ns[oldest] <= at_ns - window_ns:
            oldest += 1
        most = max(most, newest - oldest + 1)
    return most


def requests_per_second(journal: Sequence[JournaledRequest]) -> float:
    """From the first page to the last one."""
    times_ns = [asked.at_ns for asked in journal if is_page(asked)]
    return (len(times_ns) - 1) * SECOND_NS / max(max(times_ns) - min(times_ns), 1) if times_ns else 0.0


def again(journal: Sequence[JournaledRequest]) -> int:
    answered = Counter(asked.path for asked in journal if asked.status == OK and is_page(asked))
    return answered.total() - len(answered)


def is_page(asked: JournaledRequest) -> bool:
    """Whether it is a page, and not one of the requests for a single row that confirm an end and are repeated on
    purpose.
    """
    url = urlsplit(asked.path)
    return url.path.endswith("/poi") and parse_qs(url.query).get("maxresults") != ["1"]


def named(numbers: Sequence[int]) -> str:
    """The first few, as examples."""
    shown = ", ".join(map(str, numbers[:NAMED_MAX]))
    return f"{shown} …" if len(numbers) > NAMED_MAX else shown
