"""dlt as a contestant: its configurations, each run in its own process."""

import json
import sys
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from benchmarks.imports.dlt_peer import DATASET, TABLE, Setup
from benchmarks.imports.ours import rows_in
from benchmarks.imports.provider import Provider

FILE_ROWS = 10_000
SETUPS = {
    "SQLite": [
        Setup("append"),
        Setup("append", normalize_workers=2, file_rows_max=FILE_ROWS, load_workers=1),
        Setup("append", "parquet", normalize_workers=2, file_rows_max=FILE_ROWS, load_workers=1),
        Setup("merge", normalize_workers=2, file_rows_max=FILE_ROWS, load_workers=1),
    ],
    "PostgreSQL": [
        Setup("append", "csv"),
        Setup("append", "csv", normalize_workers=2, file_rows_max=FILE_ROWS),
        Setup("append", normalize_workers=2, file_rows_max=FILE_ROWS),
        Setup("merge", "csv", normalize_workers=2, file_rows_max=FILE_ROWS),
    ],
}
"""Configurations that a user would try. Appending is faster, but a second run duplicates every row; merging corresponds
to a leaseway import. A file has one writer: with twenty load workers, dlt sometimes failed because the file was locked.
"""


class Pipeline(NamedTuple):
    """One dlt run in its own folder or database."""

    folder: Path
    url: str
    address: str

    def command(self, setup: Setup, id_max: int) -> list[str]:
        words = [json.dumps(setup._asdict()), self.url, str(id_max), str(self.folder), self.address]
        return [sys.executable, "-m", "benchmarks.imports.dlt_peer", *words]

    def rows(self) -> int:
        if not self.address.startswith("sqlite"):
            return rows_in(self.address, f"{DATASET}.{TABLE}", "id")
        (file,) = self.folder.glob(f"*__{DATASET}.db")  # each data set has its own file next to the named one
        return rows_in(f"sqlite:///{file}", TABLE, "id")


def pipeline_in(folder: Path, it: Provider, postgres_url: str | None = None) -> Pipeline:
    if postgres_url is None:
        return Pipeline(folder, it.url, f"sqlite:///{folder}/out.db")
    # dlt requires a password, although the server does not.
    parts = urlsplit(postgres_url)
    return Pipeline(folder, it.url, parts._replace(netloc=parts.netloc.replace("@", ":none@", 1)).geturl())
