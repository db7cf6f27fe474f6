"""What runs have done: a report compares the whole table, so that all who ask within some seconds get one answer."""

from typing import Any

from leaseway.api.import_documents import report_json
from leaseway.api.known_imports import Imports
from leaseway.api.remembered import Remembered
from leaseway.imports.domain.run_state import RunRow
from leaseway.imports.progress.report import report_of
from leaseway.ports.clock import Clock
from leaseway.system import wall_clock_us

BELIEF_SECONDS = 10.0
REPORTS_MAX = 50


class ImportReports:
    """Of one service."""

    def __init__(self, imports: Imports, clock: Clock) -> None:
        self._imports = imports
        bounds = {"seconds": BELIEF_SECONDS, "absent_seconds": BELIEF_SECONDS}
        self._reports = Remembered[dict[str, Any]](self._made, clock, most=REPORTS_MAX, **bounds)

    async def of(self, source: str, row: RunRow) -> dict[str, Any]:
        found = await self._reports.get(f"{source}\n{row.id}\n{row.state}{row.finished_at}")
        assert found is not None
        return found

    async def _made(self, name: str) -> dict[str, Any]:
        source, run, _ = name.split("\n")
        known, sink = self._imports.named(source), await self._imports.sink(source)
        row = await sink.run(run)
        assert known is not None
        assert row is not None, "it was there a moment ago"
        document = report_json(await report_of(sink, row, wall_clock_us()), known.spec.budget)
        # A run may have very many; they have a list of their own.
        return {name: value for name, value in document.items() if name != "by_shard"}
