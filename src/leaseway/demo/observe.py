"""What the provider and the store report, read from outside: leaseway's own counters are under test."""

import http.client
import json
import sqlite3
from pathlib import Path
from types import TracebackType
from urllib.parse import urlsplit

from leaseway.demo.spec import Files

ANSWER_SECONDS_MAX = 30.0


def collect(url: str, files: Files) -> None:
    """Write the provider's own rows and its journal to the folder, for `verify`."""
    files.truth.write_bytes(asked(url, "/_admin/rows"))
    files.journal.write_bytes(asked(url, "/_admin/journal"))


def places_at(url: str) -> int:
    """The number of rows that the provider has."""
    return int(json.loads(asked(url, "/_admin"))["rows"])


def asked(url: str, path: str) -> bytes:
    provider = http.client.HTTPConnection(urlsplit(url).netloc, timeout=ANSWER_SECONDS_MAX)
    try:
        provider.request("GET", path)
        answer = provider.getresponse()
        body = answer.read()
    finally:
        provider.close()
    if answer.status != http.HTTPStatus.OK:
        raise RuntimeError(f"the provider answered {path} with {answer.status}")
    return body


class Leases:
    """Which process holds which shards. Reads snapshots on a connection of its own, so it blocks no writer."""

    def __init__(self, store: Path) -> None:
        self._connection = sqlite3.connect(f"{store.absolute().as_uri()}?mode=ro", uri=True)

    def __enter__(self) -> "Leases":
        return self

    def held(self) -> dict[int, set[str]]:
        """Keys of shards by the process id of the owner, which is the middle part of its name."""
        shards: dict[int, set[str]] = {}
        found = self._connection.execute("SELECT owner, payload ->> 'shard' FROM jobs WHERE stage = 2")
        for owner, shard in found:
            shards.setdefault(int(owner.split(":")[-2]), set()).add(shard)
        return shards

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._connection.close()
