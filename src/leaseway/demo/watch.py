"""What the screen shows, read while the fleet works: from the store's file, and from the provider."""

import http.client
import json
import sqlite3
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from leaseway.demo.provider import HOST

CALL_SECONDS_MAX = 5.0


class Sight(NamedTuple):
    """One look."""

    done: int = 0
    leased: int = 0
    held: dict[int, int] = {}  # noqa: RUF012 - never changed
    """Leases by the process id of their owner."""
    taken_back: int = 0
    requests: dict[int, int] = {}  # noqa: RUF012 - never changed
    """By the number of the worker."""
    repeated: int = 0


class Watch:
    """Reading blocks no writer: a connection of its own, on snapshots."""

    def __init__(self, store: Path, port: int) -> None:
        self._connection = sqlite3.connect(f"{store.absolute().as_uri()}?mode=ro", uri=True)
        self._provider = http.client.HTTPConnection(HOST, port, timeout=CALL_SECONDS_MAX)

    def __enter__(self) -> "Watch":
        return self

    def look(self) -> Sight:
        (done, leased) = self._connection.execute("SELECT sum(done), sum(leased) FROM lanes").fetchone()
        expired = "SELECT count(*) FROM errors WHERE code = 'lease_expired'"
        (taken_back,) = self._connection.execute(expired).fetchone()
        self._provider.request("GET", "/seen")
        seen = json.loads(self._provider.getresponse().read())
        requests = {int(number): count for number, count in seen["requests"].items()}
        return Sight(done or 0, leased or 0, self.held(), taken_back, requests, seen["repeated"])

    def held(self) -> dict[int, int]:
        """Leases by owner. An owner's name has its process id in the middle."""
        found = self._connection.execute("SELECT owner, count(*) FROM jobs WHERE stage = 2 GROUP BY owner")
        return {int(owner.split(":")[-2]): count for owner, count in found}

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._provider.close()
        self._connection.close()
