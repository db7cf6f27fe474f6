"""dlt as a contestant: the ways in which it is tried, each run a process of its own."""

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
"""Those that a user would think of. Appending is faster, and has every row twice after a second run; merging is what
an import of ours does. A file has one writer: with twenty load workers dlt gave up now and then, as it was locked."""


class Pipeline(NamedTuple):
    """One of dlt's, in a folder or a database of its own."""

    folder: Path
    url: str
    address: str

    def command(self, setup: Setup, id_max: int) -> list[str]:
        words = [json.dumps(setup._asdict()), self.url, str(id_max), str(self.folder), self.address]
        return [sys.executable, "-m", "benchmarks.imports.dlt_peer", *words]

    def rows(self) -> int:
        if not self.address.startswith("sqlite"):
            return rows_in(self.address, f"{DATASET}.{TABLE}", "id")
        (file,) = self.folder.glob(f"*__{DATASET}.db")  # each data set has a file of its own, beside the one named
        return rows_in(f"sqlite:///{file}", TABLE, "id")


def pipeline_in(folder: Path, it: Provider, postgres_url: str | None = None) -> Pipeline:
    if postgres_url is None:
        return Pipeline(folder, it.url, f"sqlite:///{folder}/out.db")
    # It wants a password, though the server asks for none.
    parts = urlsplit(postgres_url)
    return Pipeline(folder, it.url, parts._replace(netloc=parts.netloc.replace("@", ":none@", 1)).geturl())
