"""fetch ─► guards ─► [build the write] ─► rows, quarantine and cursor in one transaction

A page and its verdict become one write: rows, bad rows, the next cursor and the new state of the shard. Pure: no
requests, no waiting.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from leaseway.domain.errors import TransientError
from leaseway.domain.ids import Instant
from leaseway.domain.redact import NO_SECRETS, Redactor
from leaseway.imports.domain.drift import profile_documents
from leaseway.imports.domain.guards import (
    LIMIT_MIN,
    Ceilings,
    ConfirmEnd,
    ContinueShard,
    EndShard,
    PageVerdict,
    ParkShard,
    RetryPage,
    SplitShard,
)
from leaseway.imports.domain.page import BadRow, Page, Record, Row
from leaseway.imports.domain.partition import Cursor, Shard
from leaseway.imports.domain.run_state import RunMode, RunRow, ShardRow, ShardState
from leaseway.imports.sinks.port import PageWrite, Sink
from leaseway.imports.sources.port import Source

NAMES_SHOWN_MAX = 8
BAD_ROWS_BORNE = 10
"""Bad rows that a shard may have, whatever the ratio."""
PROFILED_FIRST = 3
PROFILED_EVERY = 10
"""Later pages are profiled only now and then."""
OVERWRITES = "overwrites_stale"
"""In the notes of a run from its start: its rows replace newer ones."""
DELETED = "deleted"
"""The predicate of a shard that reads the feed of deleted records."""

BuildRows = Callable[[Sequence[Record], Instant | None], tuple[list[Row], list[BadRow]]]
"""Records ─► rows and bad rows. The instant is the source's time, if known."""
SplitFunction = Callable[[Shard, Cursor | None, str, int | None], list[Shard]]
"""The rest of a shard after the cursor, in parts; with the reason, and the largest id if known."""


class DoubtfulPage(TransientError):
    """A page that may be correct the next time."""

    def __init__(self, guard: str, why: str) -> None:
        super().__init__(f"{guard}: {why}")
        self.guard = guard


class ShardTask(Struct, frozen=True, kw_only=True):
    """What all shards of a resource share."""

    source: Source
    sink: Sink
    shape: BuildRows
    split: SplitFunction
    key: Callable[[Record], Any]
    is_ours: Callable[[Shard], Callable[[Record], bool]]
    page_limit: int
    key_name: str = "its key"
    limit_min: int = LIMIT_MIN
    spec_hash: str = ""
    """A run that was started with another spec hash is refused. Empty: not checked."""
    bad_ratio_max: float = 0.01
    on_bad_row: Literal["quarantine", "skip", "fail"] = "quarantine"
    ceilings: Ceilings = Ceilings()
    redactor: Redactor = NO_SECRETS
    """Removes the secrets of source and sink from errors before they are stored in the sink."""
    sweeps: bool = False
    """Whether full runs store the ids they saw, to find rows that they did not see."""


def build_page_write(task: ShardTask, run: RunRow, row: ShardRow, page: Page, verdict: PageVerdict) -> PageWrite:
    plain = replace(unchanged_write(row), size_bytes=page.size_bytes)
    match verdict:
        case ContinueShard(page_hash) | EndShard(page_hash):
            state = ShardState.DONE if isinstance(verdict, EndShard) else ShardState.RUNNING
            after = page.next if page.next is not None else row.cursor
            return add_rows(task, run, row, page, replace(plain, after=after, state=state, page_hash=page_hash))
        case SplitShard(guard, why, keeps_page, page_hash):
            children = task.split(row.shard, page.next if keeps_page else row.cursor, why, run.id_max)
            state = ShardState.SPLIT if children else ShardState.PARKED
            cut = replace(
                plain, state=state, why=why, children=children, guards={guard: 1}, page_hash=page_hash,
                after=page.next or row.cursor,
            )  # fmt: skip
            return add_rows(task, run, row, page if keeps_page else replace(page, records=[]), cut)
        case ParkShard(guard, why):
            return replace(plain, state=ShardState.PARKED, why=why, guards={guard: 1})
        case RetryPage(guard, why):
            raise DoubtfulPage(guard, why)
        case ConfirmEnd():
            raise AssertionError("an end that was not confirmed")


def unchanged_write(row: ShardRow) -> PageWrite:
    """A write that changes nothing yet."""
    return PageWrite(
        run=row.run, shard=row.shard.key, fence=row.fence, before=row.cursor, after=row.cursor,
        page_limit=row.page_limit, requests=0,
    )  # fmt: skip


def add_rows(task: ShardTask, run: RunRow, row: ShardRow, page: Page, write: PageWrite) -> PageWrite:
    """Add the rows of the page, unless too many of them are bad."""
    rows, bad = task.shape(page.records, page.server_time)
    why = too_many_bad_rows(bad, row, page, task)
    if why is not None:
        return replace(
            write, children=[], after=write.before, state=ShardState.PARKED, why=why, page_hash="",
            guards={"bad_rows": 1},
        )  # fmt: skip
    is_feed = DELETED in row.shard.predicate
    return replace(
        write,
        rows=[replace(each, is_deleted=True) for each in rows] if is_feed else rows,
        bad=[] if task.on_bad_row == "skip" else bad,
        profile=profile_documents(page.records) if is_profiled(row) and not is_feed else {},
        overwrites=run.notes.get(OVERWRITES) is True,
        remembers=task.sweeps and run.mode is RunMode.FULL and not is_feed,
    )


def is_profiled(row: ShardRow) -> bool:
    return row.pages < PROFILED_FIRST or row.pages % PROFILED_EVERY == 0


def too_many_bad_rows(found: Sequence[BadRow], row: ShardRow, page: Page, task: ShardTask) -> str | None:
    """The reason to park the shard if too many rows are bad, otherwise None."""
    if not found:
        return None
    count, ratio_max = len(page.records), task.bad_ratio_max
    bad, seen = row.quarantined + len(found), row.rows + row.quarantined + count
    if not row.rows and len(found) == count and (problem := wrong_spec(found, page, task)) is not None:
        return problem
    if task.on_bad_row == "fail":
        return f"a bad record, and on_bad_row.policy is 'fail': {found[0].problem}"
    if bad > max(ratio_max * seen, BAD_ROWS_BORNE):
        return f"{bad:,} of {seen:,} records are bad, more than {ratio_max:.0%}; the first: {found[0].problem}"
    return None


def wrong_spec(found: Sequence[BadRow], page: Page, task: ShardTask) -> str | None:
    """A reason if the spec itself is wrong: no record is an object, or none has a key, from the first page on."""
    if not any(isinstance(record, Mapping) for record in page.records):
        return f"resource.records: no record of a page is an object; the first: {found[0].problem}"
    if all(each.code == "missing_key" for each in found):
        return f"resource.key: no record of a page has {task.key_name}; the first has: {shown_names(page.records[0])}"
    return None


def shown_names(record: Any) -> str:
    names = [repr(name) for name in record] if isinstance(record, Mapping) else []
    return ", ".join(names[:NAMES_SHOWN_MAX]) or "nothing"


def park_write(row: ShardRow, guard: str, why: str) -> PageWrite:
    return replace(unchanged_write(row), state=ShardState.PARKED, why=why, guards={guard: 1})


def split_rest(write: PageWrite, children: Sequence[Shard]) -> PageWrite:
    """The same page, with the rest of the shard split into children."""
    return replace(
        write, state=ShardState.SPLIT, children=children, why="other workers were idle",
        guards=add_counts(write.guards, {"shared": 1}),
    )  # fmt: skip


def add_counts(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return dict(Counter(one) + Counter(other))
