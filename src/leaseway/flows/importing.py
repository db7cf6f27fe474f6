"""plan ─► shard jobs ─► [page ─► upsert + cursor in one transaction] ─► next page

The life of one shard, in one job. The sink keeps the place: whoever begins a shard stores his fence there, and every
page is written together with the cursor of the next one, if nobody with a larger fence has begun since. So a worker may
die, sleep or repeat itself at any moment: each page counts once.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from leaseway.domain.errors import LeaseLost, TerminalError, TransientError, UnknownOutcome, UsageError
from leaseway.domain.imports.guards import (
    LIMIT_MIN,
    RECENT_MAX,
    Again,
    Ceilings,
    Confirm,
    Expectation,
    GoOn,
    Park,
    Split,
    TheEnd,
    Verdict,
    grown,
    halved,
    judge,
)
from leaseway.domain.imports.page import BadRow, Page, Record, Row, Written
from leaseway.domain.imports.progress import RunState, ShardRow, ShardState
from leaseway.domain.imports.shard import Cursor, Shard
from leaseway.domain.outcome import Fail
from leaseway.flows.context import Context
from leaseway.ports.clock import Clock
from leaseway.ports.sink import PageWrite, Sink
from leaseway.ports.source import BadReply, HeavyPage, Refused, Source

CONFIRMATIONS = 2
CONFIRM_SECONDS_MAX = 2.0
WRITE_TRIES_MAX = 5

RUNS_SEEN_MAX = 100
NAMES_SHOWN_MAX = 8
BAD_ROWS_BORNE = 10
"""Of one shard, whatever its ratio."""
DOUBTS_MAX = 4
DOUBT_SECONDS = 0.2

Shape = Callable[[Sequence[Record]], tuple[list[Row], list[BadRow]]]
"""Records become rows, or bad rows."""
SplitInto = Callable[[Shard, Cursor | None, str], list[Shard]]


class Doubt(TransientError):
    """A page that may be right the next time."""


class Importing(Struct, frozen=True, kw_only=True):
    """All that the shards of one resource have in common."""

    source: Source
    sink: Sink
    shape: Shape
    split: SplitInto
    key: Callable[[Record], Any]
    is_ours: Callable[[Shard], Callable[[Record], bool]]
    page_limit: int
    key_name: str = "its key"
    limit_min: int = LIMIT_MIN
    spec_hash: str = ""
    """A run that was begun with another one is not ours to go on with. Empty: nobody asks."""
    bad_ratio_max: float = 0.01
    on_bad_row: Literal["quarantine", "skip", "fail"] = "quarantine"
    ceilings: Ceilings = Ceilings()


class ShardDone(Struct, frozen=True):
    """What a shard's job answers."""

    state: str
    pages: int
    rows: int
    children: tuple[str, ...] = ()
    why: str | None = None


async def import_shard(ctx: Context, clock: Clock, task: Importing, run: str, shard: str) -> ShardDone:
    await refuse_run(task, run)
    row = await task.sink.begin(run, shard, ctx.fence)
    if row is None:
        raise LeaseLost(f"shard {shard}: somebody else has it by now, or its run is over")
    limit = row.page_limit or task.page_limit
    while row.state in (ShardState.WAITING, ShardState.RUNNING):
        write, limit = await next_page(ctx, clock, task, row, limit)
        row = await written(task, row, write)
        limit = grown(limit, task.page_limit, row.pages)
        ctx.progress(row.rows, row.shard.estimated_rows, f"{row.pages:,} pages")
    children: tuple[str, ...] = ()
    if row.state is ShardState.SPLIT:  # perhaps by an earlier attempt, which did not get to say so
        children = tuple(each.shard.key for each in await task.sink.shards(run) if each.parent == shard)
    return ShardDone(row.state.value, row.pages, row.rows, children, row.why)


async def refuse_run(task: Importing, run: str) -> None:
    """What stopped one shard for good stops those that have not begun, and rows of two specs are not mixed."""
    for row in await task.sink.runs(task.source.name, RUNS_SEEN_MAX):
        if row.id == run and row.state is RunState.FAILED:
            raise Fail(f"run {run} has failed: {row.why}", code="run_failed")
        if row.id == run and task.spec_hash not in ("", row.spec_hash):
            raise Fail(f"run {run} was started with another spec; resume it with that one", code="other_spec")


async def next_page(ctx: Context, clock: Clock, task: Importing, row: ShardRow, limit: int) -> tuple[PageWrite, int]:
    """Some doubts pass when one asks again. If they do not, the attempt fails, and the job is tried again later."""
    for number in range(DOUBTS_MAX):
        try:
            page, limit = await fetched(ctx, task, row, limit)
            return await decided(ctx, clock, task, row, page, limit), limit
        except (TerminalError, UsageError) as error:
            # Another attempt would meet the same. Parked, it says why, and can be resumed by who has mended it.
            plain = PageWrite(
                run=row.run, shard=row.shard.key, fence=row.fence, before=row.cursor, after=row.cursor,
                page_limit=row.page_limit, state=ShardState.PARKED, why=str(error), guards={"source_failed": 1},
            )  # fmt: skip
            return plain, limit
        except (Doubt, BadReply):
            if number == DOUBTS_MAX - 1:
                raise
            await clock.sleep(DOUBT_SECONDS * 2**number)
    raise AssertionError("unreachable")


async def fetched(ctx: Context, task: Importing, row: ShardRow, limit: int) -> tuple[Page, int]:
    """The next page, in a size that the source can bear."""
    while True:  # ends at the smallest size, or with an error that the job's retries are for
        try:
            return await task.source.fetch(row.shard, row.cursor, limit, ctx.http), limit
        except HeavyPage as heavy:
            smaller = halved(limit, task.limit_min)
            if smaller == limit:
                raise
            ctx.progress(row.rows, row.shard.estimated_rows, f"pages of {smaller:,}: {heavy}")
            limit = smaller
        except Refused as refused:
            # A wrong key must not be tried by every shard, five times each.
            await task.sink.finish_run(row.run, RunState.FAILED, str(refused))
            raise Fail(str(refused), code="refused") from refused


async def decided(ctx: Context, clock: Clock, task: Importing, row: ShardRow, page: Page, limit: int) -> PageWrite:
    expected = Expectation(
        limit=limit,
        cursor=row.cursor,
        key=task.key,
        is_ordered=task.source.caps.order is not None,
        is_ours=task.is_ours(row.shard),
        has_next=task.source.caps.cursor != "none",
        short_page_is_end=task.source.caps.short_page_is_end,
        ceilings=task.ceilings,
    )
    verdict = judge(page, row, expected)
    requests = 1
    if isinstance(verdict, Confirm):
        verdict, requests = await confirmed(ctx, clock, task, row, page, verdict)
    return write_of(task, row, page, verdict, replace_limit(task, limit), requests)


async def confirmed(
    ctx: Context, clock: Clock, task: Importing, row: ShardRow, page: Page, verdict: Confirm
) -> tuple[Verdict, int]:
    """Nothing past the cursor, twice, the second time after the source's lag: then it is the end."""
    cursor = page.next if page.next is not None else row.cursor
    for number in range(CONFIRMATIONS):
        if number:
            await clock.sleep(min(task.source.caps.lag_us / 1_000_000, CONFIRM_SECONDS_MAX))
        probe = await task.source.fetch(row.shard, cursor, 1, ctx.http)
        if probe.raw_count:
            if page.next is None:
                # The page was empty though there is more: it says nothing, and must be asked for again.
                return Again("empty_page", "an empty page, and more records behind it"), number + 2
            return GoOn(verdict.page_hash), number + 2
    return TheEnd(verdict.page_hash), 1 + CONFIRMATIONS


def write_of(
    task: Importing, row: ShardRow, page: Page, verdict: Verdict, limit: int | None, requests: int
) -> PageWrite:
    plain = PageWrite(
        run=row.run, shard=row.shard.key, fence=row.fence, before=row.cursor, after=row.cursor, page_limit=limit,
        requests=requests, size_bytes=page.size_bytes,
    )  # fmt: skip
    match verdict:
        case GoOn(page_hash) | TheEnd(page_hash):
            rows, bad = task.shape(page.records)
            after = page.next if page.next is not None else row.cursor
            state = ShardState.DONE if isinstance(verdict, TheEnd) else ShardState.RUNNING
            full = replace(plain, rows=rows, bad=bad, after=after, state=state, page_hash=page_hash)
            return sifted(full, row, page, task)
        case Split(guard, why, keeps_page, page_hash):
            rows, bad = task.shape(page.records) if keeps_page else ([], [])
            children = task.split(row.shard, page.next if keeps_page else row.cursor, why)
            state = ShardState.SPLIT if children else ShardState.PARKED
            full = replace(
                plain, rows=rows, bad=bad, state=state, why=why, children=children, guards={guard: 1},
                page_hash=page_hash, after=page.next or row.cursor,
            )  # fmt: skip
            return sifted(full, row, page, task)
        case Park(guard, why):
            return replace(plain, state=ShardState.PARKED, why=why, guards={guard: 1})
        case Again(guard, why):
            raise Doubt(f"{guard}: {why}")
        case Confirm():
            raise AssertionError("an end that was not confirmed")


def sifted(write: PageWrite, row: ShardRow, page: Page, task: Importing) -> PageWrite:
    """Some bad rows are kept aside, or left out. Many mean that something else is wrong: then the shard is parked."""
    why = too_bad(write.bad, row, page, task)
    if why is None:
        return replace(write, bad=[]) if task.on_bad_row == "skip" else write
    return replace(
        write, rows=[], bad=[], children=[], after=write.before, state=ShardState.PARKED, why=why, page_hash="",
        guards={"bad_rows": 1},
    )  # fmt: skip


def too_bad(found: Sequence[BadRow], row: ShardRow, page: Page, task: Importing) -> str | None:
    """None: it can be borne."""
    if not found:
        return None
    count, ratio_max = len(page.records), task.bad_ratio_max
    bad, seen = row.quarantined + len(found), row.rows + row.quarantined + count
    # Not one key in a whole page: then it is the spec that is wrong, and few records are no excuse.
    has_no_keys = 0 < count == sum(each.code == "missing_key" for each in found)
    if has_no_keys:
        return f"resource.key: no record of a page has {task.key_name}; the first has: {names_in(page.records[0])}"
    if task.on_bad_row == "fail":
        return f"a bad record, and none is allowed: {found[0].problem}"
    if bad > max(ratio_max * seen, BAD_ROWS_BORNE):
        return f"{bad:,} of {seen:,} records are bad, more than {ratio_max:.0%}; the first: {found[0].problem}"
    return None


def names_in(record: Any) -> str:
    names = [repr(name) for name in record] if isinstance(record, Mapping) else []
    return ", ".join(names[:NAMES_SHOWN_MAX]) or "nothing"


async def written(task: Importing, row: ShardRow, write: PageWrite) -> ShardRow:
    """Write it, and answer where the shard stands. A lost reply is resolved by looking."""
    for _ in range(WRITE_TRIES_MAX):
        try:
            counts = await task.sink.write(write)
        except UnknownOutcome:
            counts = None
        if counts is not None:
            return moved(row, write, counts)
        now = await task.sink.begin(row.run, row.shard.key, row.fence)
        if now is None:
            raise LeaseLost(f"shard {row.shard.key}: somebody else has it by now; this page was not written")
        if now.cursor != row.cursor or now.state is not row.state:
            return now  # it was written, and only the reply was lost
    raise TransientError(f"shard {row.shard.key}: the sink did not take the page")


def moved(row: ShardRow, write: PageWrite, counts: Written) -> ShardRow:
    return replace(
        row,
        state=write.state,
        cursor=write.after,
        pages=row.pages + 1,
        rows=row.rows + counts.rows,
        quarantined=row.quarantined + counts.quarantined,
        size_bytes=row.size_bytes + write.size_bytes,
        page_limit=write.page_limit,
        why=write.why,
        recent=(*row.recent, write.page_hash)[-RECENT_MAX:] if write.page_hash else row.recent,
    )


def replace_limit(task: Importing, limit: int) -> int | None:
    return None if limit == task.page_limit else limit
