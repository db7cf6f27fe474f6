"""[plan] ─► the first page, judged and built into rows, written nowhere

A spec that can never work is found before the run: one request shows whether its paths, types and filters fit.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from leaseway.domain.errors import TerminalError, UsageError
from leaseway.imports.domain.guards import Expectation, ParkShard, RetryPage, SplitShard, judge_page
from leaseway.imports.domain.jsonpath import MISSING, parse_path
from leaseway.imports.domain.page import BadRow, Page, Row, field_names
from leaseway.imports.domain.partition import Shard
from leaseway.imports.domain.run_state import ShardRow, ShardState
from leaseway.imports.run.assembly import ImportParts
from leaseway.imports.run.page_writes import too_many_bad_rows
from leaseway.imports.run.plan import plan_client
from leaseway.imports.sources.port import BadReply, SourceBusy

ROWS_SHOWN = 3


class DryRun(NamedTuple):
    """What the first page of a run would be."""

    records: int = 0
    rows: Sequence[Row] = ()
    """The first ones."""
    bad: Sequence[BadRow] = ()
    refusals: Sequence[str] = ()
    """Why a run would be parked."""
    warnings: Sequence[str] = ()
    """What looks wrong, but may be the data."""


async def try_first_page(parts: ImportParts, shard: Shard) -> DryRun:
    """Sends one request. Raises a `TransientError` if the source is unavailable, which says nothing about the spec."""
    try:
        async with plan_client(parts) as http:
            page = await parts.source.fetch(shard, None, parts.source.page_limit, http)
    except SourceBusy:
        raise
    except (BadReply, TerminalError, UsageError) as error:
        return DryRun(refusals=[parts.task.redactor(str(error))])
    return judge_first_page(parts, shard, page)


def judge_first_page(parts: ImportParts, shard: Shard, page: Page) -> DryRun:
    rows, bad = parts.task.shape(page.records, page.server_time)
    found = [*guard_problems(parts, shard, page), *row_problems(parts, shard, page, bad)]
    warnings = list(missing_columns(parts, page)) if not found else []
    return DryRun(len(page.records), rows[:ROWS_SHOWN], bad, found, warnings)


def guard_problems(parts: ImportParts, shard: Shard, page: Page) -> Iterator[str]:
    task = parts.task
    expected = Expectation(
        limit=task.page_limit,
        cursor=None,
        key=task.key,
        is_ordered=parts.source.caps.order is not None,
        is_ours=task.is_ours(shard),
        has_next=parts.source.caps.cursor != "none",
        short_page_is_end=parts.source.caps.short_page_is_end,
        ceilings=task.ceilings,
    )
    match judge_page(page, empty_row(shard), expected):
        case ParkShard("filter_ignored", why):
            yield f"resource.filters: {why}"
        case ParkShard(_, why):
            yield why
        case RetryPage("order_violated", why):
            yield f"resource.key: {why}; it must be the field by which the source sorts (see resource.page.fixed)"
        case SplitShard("truncated", why):
            if not task.split(shard, None, why, None):
                yield f"resource.page: {why}; describe the source's paging, or raise resource.page.limit"


def row_problems(parts: ImportParts, shard: Shard, page: Page, bad: Sequence[BadRow]) -> Iterator[str]:
    why = too_many_bad_rows(bad, empty_row(shard), page, parts.task)
    if why is not None:
        codes = ", ".join(sorted({each.code for each in bad}))
        yield f"{why} ({codes})"
    elif bad and len(bad) == len(page.records):
        yield f"all {len(bad):,} records of the first page are bad ({bad[0].code}); the first: {bad[0].problem}"


def missing_columns(parts: ImportParts, page: Page) -> Iterator[str]:
    """A path that no record has is a typing error, or a field that is left out where it is empty."""
    for name, column in parts.spec.resource.columns.items() if page.records else ():
        path = parse_path(name, column.path)
        if all((path.all(record) or MISSING) is MISSING for record in page.records):
            yield (
                f"resource.columns.{name}.path: no record of the first page has {column.path!r}; the first has: "
                f"{field_names(page.records[0])}"
            )


def empty_row(shard: Shard) -> ShardRow:
    return ShardRow(run="", shard=shard, state=ShardState.RUNNING, fence=0, cursor=None)
