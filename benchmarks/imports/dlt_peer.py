"""dlt's REST source over the same shards, as one process.

    python -m benchmarks.imports.dlt_peer SETUP_AS_JSON URL ID_MAX FOLDER DESTINATION_URL

The resources correspond to the shards: one per range of ids, read concurrently into one table. dlt has no paginator
that continues after the last id, so this module provides one; a filter drops records beyond a range, as leaseway does.
Nested lists stay in one column, which corresponds to a leaseway sink and is faster than child tables.
"""

import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from benchmarks.imports.provider import PAGE_ROWS
from leaseway.testing.fake_open_charge_map import API_KEY

DATASET, TABLE = "ocm", "poi"


class Setup(NamedTuple):
    """One configuration of dlt."""

    disposition: str
    file_format: str | None = None
    """None: the destination's default."""
    normalize_workers: int = 1
    file_rows_max: int | None = None
    """Smaller files give work to several workers."""
    extract_workers: int = 8
    load_workers: int = 20
    shard_ids: int = 20_000

    def __str__(self) -> str:
        """For display."""
        words = [self.disposition, self.file_format or "its default files"]
        words += [f"{self.normalize_workers} normalize workers"] if self.normalize_workers > 1 else []
        words += [f"files of {self.file_rows_max:,} rows"] if self.file_rows_max else []
        return ", ".join(words)

    def environ(self) -> dict[str, str]:
        named = {
            "RUNTIME__DLTHUB_TELEMETRY": "false",
            "RUNTIME__LOG_LEVEL": "ERROR",
            "EXTRACT__WORKERS": str(self.extract_workers),
            "EXTRACT__MAX_PARALLEL_ITEMS": "20",
            "NORMALIZE__WORKERS": str(self.normalize_workers),
            "NORMALIZE__DATA_WRITER__DISABLE_COMPRESSION": "true",
            "LOAD__WORKERS": str(self.load_workers),
        }
        return named | ({"DATA_WRITER__FILE_MAX_ITEMS": str(self.file_rows_max)} if self.file_rows_max else {})


def resources(setup: Setup, id_max: int, paginator: Callable[[int, int], Any]) -> list[dict[str, Any]]:
    found = []
    for low in range(0, id_max + 1, setup.shard_ids):
        high = min(low + setup.shard_ids, id_max + 1)
        found.append(
            {
                "name": f"{TABLE}_{low}",
                "table_name": TABLE,
                "primary_key": "ID",
                "write_disposition": setup.disposition,
                "parallelized": True,
                "max_table_nesting": 0,
                "processing_steps": [{"filter": is_below(high)}],
                "endpoint": {
                    "path": "poi",
                    "data_selector": "$",
                    "paginator": paginator(low, high),
                    "params": {"maxresults": PAGE_ROWS, "sortby": "id_asc", "compact": "true", "verbose": "false"},
                },
            }
        )
    return found


def is_below(high: int) -> Callable[[Mapping[str, Any]], bool]:
    """dlt passes a second argument to functions that accept one, so this function takes only the record."""
    return lambda record: record["ID"] < high


def run(setup: Setup, url: str, id_max: int, folder: str, destination_url: str) -> None:
    os.environ.update(setup.environ())
    import dlt
    from dlt.sources.helpers.rest_client.paginators import BasePaginator
    from dlt.sources.rest_api import rest_api_source

    class AfterLastId(BasePaginator):
        def __init__(self, low: int, high: int) -> None:
            super().__init__()
            self.after, self.high = low - 1, high

        def init_request(self, request: Any) -> None:
            request.params = {**(request.params or {}), "greaterthanid": self.after}

        def update_state(self, response: Any, data: Any = None) -> None:
            self._has_next_page = bool(data) and data[-1]["ID"] < self.high - 1
            self.after = data[-1]["ID"] if data else self.after

        def update_request(self, request: Any) -> None:
            request.params["greaterthanid"] = self.after

    source = rest_api_source(
        {
            "client": {"base_url": f"{url}/v3/", "headers": {"X-API-Key": API_KEY}},
            "resources": resources(setup, id_max, AfterLastId),  # type: ignore[typeddict-item]
        }
    )
    is_file = destination_url.startswith("sqlite")
    destination = dlt.destinations.sqlalchemy if is_file else dlt.destinations.postgres
    pipeline = dlt.pipeline(
        "ocm", destination=destination(destination_url), dataset_name=DATASET, pipelines_dir=f"{folder}/pipelines"
    )
    pipeline.run(source, loader_file_format=setup.file_format)  # type: ignore[arg-type]


if __name__ == "__main__":
    given, url, id_max, folder, destination_url = sys.argv[1:]
    run(Setup(**json.loads(given)), url, int(id_max), folder, destination_url)
