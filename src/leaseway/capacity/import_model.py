"""A modelled source: as many rows as the plan expects, in pages of the source's size, with modelled requests.

Planning, shard jobs, the page loop, guards, splitting and the sink are those of a real run; the sink is a temporary
file.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from leaseway.capacity.provider_model import URL
from leaseway.capacity.report import Spent
from leaseway.domain.errors import BadValue
from leaseway.domain.ids import Instant
from leaseway.domain.limits.limit import Limit
from leaseway.imports.domain.page import BadRow, Page, Record, Row
from leaseway.imports.domain.partition import Cursor, Shard
from leaseway.imports.domain.splitting import ID_LOWEST, split_shard
from leaseway.imports.run.assembly import ImportParts
from leaseway.imports.run.plan import Plan
from leaseway.imports.sinks.port import Sink
from leaseway.imports.sources.factory import ImportSource
from leaseway.imports.sources.files import FileSource
from leaseway.imports.sources.port import RequestClient, SourceProbe
from leaseway.imports.sources.status_mapping import check_status

ROWS_MAX = 2_000_000
ID, NAME = "id", "name"


class RowModel:
    """How many rows each shard has. Ids are spread evenly over their range."""

    def __init__(self, plan: Plan, rows: int | None) -> None:
        total = plan.rows if rows is None else rows
        if total is None:
            raise BadValue("rows", "the source does not say how many there are; give their number with --rows")
        if not 0 <= total <= ROWS_MAX:
            raise BadValue("rows", f"must be between 0 and {ROWS_MAX:,} to be simulated (are {total:,})")
        self.total = total
        self.id_span = max((plan.id_max or 0) + 1 - ID_LOWEST, 1)
        self.is_by_id = plan.id_max is not None and all("id" in shard.predicate for shard in plan.shards)
        known = sum(shard.estimated_rows or 0 for shard in plan.shards)
        self._factor = total / known if known else 0.0
        self._share = total / max(len(plan.shards), 1)

    def rows(self, shard: Shard) -> int:
        """Of a shard that is not a range of ids."""
        if self._factor and shard.estimated_rows is not None:
            return round(shard.estimated_rows * self._factor)
        return round(self._share * 0.5**shard.depth)

    def ids(self, low: int, high: int | None, limit: int) -> list[int]:
        """The next ids from `low` on."""
        if not self.total:
            return []
        first = low * self.total // self.id_span + 1
        beyond = self.id_span if high is None else min(high, self.id_span)
        numbers = range(first, min(first + limit, self.total + 1))
        found = [-(-number * self.id_span // self.total) - 1 for number in numbers]
        return [each for each in found if low <= each < beyond]


class ModelledSource:
    """In place of the source of a spec."""

    def __init__(self, source: ImportSource, rows: RowModel, limit: Limit | None) -> None:
        self.name, self.caps, self.confirm_max = source.name, source.caps, source.confirm_max
        self.page_limit, self.limit = source.page_limit, limit
        self._rows = rows

    def record_key(self, record: Record) -> Any:
        return record[ID]

    def is_ours(self, shard: Shard) -> Callable[[Record], bool]:
        return lambda record: True

    async def probe(self, http: RequestClient) -> SourceProbe:
        return SourceProbe(rows=self._rows.total)

    async def present(self, ids: Sequence[str], http: RequestClient) -> frozenset[str]:
        check_status((await http.request("GET", URL)).status_code, self.name)
        return frozenset(ids)

    async def fetch(self, shard: Shard, cursor: Cursor | None, limit: int, http: RequestClient) -> Page:
        check_status((await http.request("GET", URL)).status_code, self.name)
        after = None if cursor is None else int(cursor["after"])
        if self._rows.is_by_id and "id" in shard.predicate:
            return self._page_by_id(shard, after, limit)
        first = 0 if after is None else after + 1
        return build_page(shard, list(range(first, min(first + limit, self._rows.rows(shard)))), None)

    def _page_by_id(self, shard: Shard, after: int | None, limit: int) -> Page:
        """A source that cannot filter by the upper end answers with the records beyond it, which prove the end."""
        low, high = shard.predicate["id"]
        first = ID_LOWEST if low is None else low
        is_cut = self.caps.bounds.get("id", (True, True))[1]
        ids = self._rows.ids(first if after is None else max(first, after + 1), high if is_cut else None, limit)
        return build_page(shard, ids, high if self.caps.order is not None else None)


def build_page(shard: Shard, ids: Sequence[int], high: int | None) -> Page:
    """`high`: where the shard ends, if ids ascend."""
    records = [{ID: each, NAME: f"{shard.key}/{each}"} for each in ids if high is None or each < high]
    is_past = high is not None and bool(ids) and ids[-1] >= high - 1
    following = {"after": ids[-1]} if ids and not is_past else None
    return Page(records=records, raw_count=len(ids), next=following, is_end=True if is_past else None)


def shape(records: Sequence[Record], now: Instant | None) -> tuple[list[Row], list[BadRow]]:
    return [Row(external_id=each[NAME], stamp=0, content_hash="", document="{}", values={}) for each in records], []


def modelled_parts(parts: ImportParts, plan: Plan, rows: int | None, sink: Sink, limit: Limit | None) -> ImportParts:
    """The parts of the import, with a modelled source and another sink. A file is read as it is."""
    if isinstance(parts.source, FileSource):
        return parts._replace(sink=sink, task=replace(parts.task, sink=sink, sweeps=False))
    source = ModelledSource(parts.source, RowModel(plan, rows), limit)

    def split(shard: Shard, cursor: Cursor | None, why: str, id_max: int | None) -> list[Shard]:
        return split_shard(shard, cursor, why, source.caps, id_max)

    task = replace(
        parts.task, source=source, sink=sink, shape=shape, split=split, key=source.record_key, is_ours=source.is_ours,
        sweeps=False,
    )  # fmt: skip
    return parts._replace(source=source, sink=sink, task=task)


def import_cost(parts: ImportParts, requests: int) -> Mapping[str, Spent]:
    budget = parts.spec.budget
    if budget is None or budget.price is None:
        return {}
    return {parts.spec.source.name: Spent(requests * budget.price, budget.currency)}
