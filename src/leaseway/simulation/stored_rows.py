"""The rows of the database file, read without the code of the store, which the oracles must not trust."""

import sqlite3
from typing import NamedTuple

from leaseway.domain.ids import Instant, JobId

READY, SCHEDULED, LEASED, DONE, FAILED, CANCELLED = range(6)
STAGES = ("ready", "scheduled", "leased", "done", "failed", "cancelled")


class StoredRow(NamedTuple):
    id: JobId
    lane: int
    stage: int
    kind: str
    run_at: Instant
    attempts: int
    attempts_max: int
    fence: int
    lease_us: int
    token: str | None
    last_token: str | None
    owner: str | None
    until: Instant | None
    cancel_requested: int
    last_error_code: str | None
    cursor: str | None
    progress: str | None
    result: str | None

    @property
    def is_final(self) -> bool:
        return self.stage > LEASED


Rows = dict[JobId, StoredRow]

SELECT_JOBS = f"SELECT {', '.join(StoredRow._fields)} FROM jobs ORDER BY seq"
SELECT_LANES = "SELECT id, ready, scheduled, leased, done, failed, cancelled FROM lanes"


class StoredRows:
    """The jobs in the file, read again only after a write."""

    def __init__(self, path: str) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._version = -1
        self.rows: Rows = {}

    def refresh(self) -> list[JobId]:
        """Read the current rows; returns the jobs that are new or changed."""
        ((version,),) = self._connection.execute("PRAGMA data_version").fetchall()
        if version == self._version:
            return []
        self._version = version
        before, self.rows = self.rows, {}
        changed: list[JobId] = []
        for values in self._connection.execute(SELECT_JOBS).fetchall():
            known = before.get(values[0])
            if known is None or known != values:
                known = StoredRow._make(values)
                changed.append(known.id)
            self.rows[known.id] = known
        return changed

    def counters(self) -> dict[int, tuple[int, ...]]:
        """The counters that the lanes store."""
        return {lane: tuple(counts) for lane, *counts in self._connection.execute(SELECT_LANES).fetchall()}

    def recount(self) -> dict[int, tuple[int, ...]]:
        """The counters that the rows imply."""
        counts: dict[int, list[int]] = {}
        for row in self.rows.values():
            counts.setdefault(row.lane, [0] * 6)[row.stage] += 1
        return {lane: tuple(found) for lane, found in counts.items()}

    def close(self) -> None:
        self._connection.close()
