"""plan ─► shard jobs ─► [page ─► rows and cursor in one transaction] ─► next page

One shard in one job. The sink stores the position: a worker that begins a shard stores its fence, and every page is
written together with the next cursor, unless a worker with a larger fence has begun since. A worker can therefore
crash, stall or repeat itself at any moment, and every page counts once.
"""

import contextlib
from collections import Counter
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from leaseway.domain.errors import LeaseLost, TerminalError, TransientError, UnknownOutcome, UsageError
from leaseway.domain.ids import Instant
from leaseway.domain.limits.rate_limit_headers import Throttled, parse_rate_limits, throttled_error
from leaseway.domain.outcome import Fail, Snooze
from leaseway.imports.domain.guards import (
    RECENT_MAX,
    ConfirmEnd,
    ContinueShard,
    EndShard,
    Expectation,
    PageVerdict,
    RetryPage,
    grow_page_limit,
    halve_page_limit,
    judge_page,
)
from leaseway.imports.domain.page import Page, WriteCounts
from leaseway.imports.domain.partition import Cursor
from leaseway.imports.domain.run_state import RunRow, RunState, ShardRow, ShardState
from leaseway.imports.domain.splitting import IDLE, rows_left
from leaseway.imports.run.page_writes import (
    DoubtfulPage,
    ShardTask,
    add_counts,
    build_page_write,
    park_write,
    split_rest,
)
from leaseway.imports.sinks.port import PageWrite
from leaseway.imports.sources.port import BadReply, HeavyPage, SourceBusy, SourceRefused
from leaseway.ports.clock import Clock
from leaseway.worker.context import Context
from leaseway.worker.provider_http import TOO_MANY

__all__ = ["ShardResult", "ShardTask", "import_shard"]

CONFIRMATIONS = 2
CONFIRM_SECONDS_MAX = 2.0
WRITE_TRIES_MAX = 5
DOUBTS_MAX = 4
DOUBT_SECONDS = 0.2
SAME_SHAPE_MAX = 2
"""First pages with the same wrong shape before the shard is parked: the spec is wrong, or the source is."""
SAME_BODY_MAX = 3
"""First replies that are not JSON. A proxy may answer such a reply for a moment."""
ATTEMPTS_BORNE = 3
"""Attempts at a later page that always has the same wrong shape."""
DISORDER = "order_violated"
DISORDER_MAX = 5 * DOUBTS_MAX
"""First pages out of order before the shard is parked: five attempts, in about half a minute."""
SAME_ANSWER = "the source repeats this answer; correct the named field, or the source, and resume the run"
WRONG_ORDER = (
    "the first page was out of order every time; check that resource.key names the field by which the source sorts"
)
IDLE_CHECK_SECONDS = 1.0
"""Time between two checks whether other workers are idle."""
PAGES_SHARED_MIN = 16
"""A shorter rest is finished sooner than it is split."""
ERROR_LENGTH_MAX = 4_000
"""Characters of an error that the sink keeps."""
SEEN_MAX = 200_000
"""Ids that one attempt remembers to detect duplicates."""


class ShardResult(Struct, frozen=True):
    """The result of a shard job."""

    state: str
    pages: int
    rows: int
    children: tuple[str, ...] = ()
    why: str | None = None


async def import_shard(
    ctx: Context, clock: Clock, task: ShardTask, run: str, shard: str, fence: int | None = None
) -> ShardResult:
    """`fence` None: use the job's own fence, which is enough if a shard has only one job."""
    found = await load_run(task, run)
    row = await task.sink.shards.begin(run, shard, ctx.fence if fence is None else fence)
    if row is None:
        row = await load_ended_shard(task, run, shard)
    row = await ShardAttempt(ctx, clock, task, found, row).run()
    children: tuple[str, ...] = ()
    if row.state is ShardState.SPLIT:  # possibly by an earlier attempt that could not report it
        children = tuple(each.shard.key for each in await task.sink.shards.find_all(run) if each.parent == shard)
    return ShardResult(row.state.value, row.pages, row.rows, children, row.why)


async def load_ended_shard(task: ShardTask, run: str, shard: str) -> ShardRow:
    """The shard cannot be begun. A superfluous job ends with its shard; otherwise it would be retried forever."""
    row = next((row for row in await task.sink.shards.find_all(run) if row.shard.key == shard), None)
    if row is None:
        raise Fail(f"run {run} has no shard {shard} in the sink: the run was started or planned again", code="no_shard")
    if row.state not in (ShardState.DONE, ShardState.SPLIT):
        raise LeaseLost(f"shard {shard}: another worker has taken it over")
    return row


async def load_run(task: ShardTask, run: str) -> RunRow:
    """A failed run stops shards that have not begun, and rows of two specs are not mixed."""
    row = await task.sink.runs.find(run)
    if row is None:
        raise Fail(f"there is no run {run} in the sink", code="no_run")
    if row.state is RunState.FAILED:
        raise Fail(f"run {run} has failed: {row.why}", code="run_failed")
    if task.spec_hash not in ("", row.spec_hash):
        raise Fail(f"run {run} was started with another spec; resume it with that one", code="other_spec")
    return row


class ShardAttempt:
    """One worker on one shard, until the shard ends or another worker takes over."""

    def __init__(self, ctx: Context, clock: Clock, task: ShardTask, run: RunRow, row: ShardRow) -> None:
        self._ctx = ctx
        self._clock = clock
        self._task = task
        self._run = run
        self._row = row
        self._limit = row.page_limit or task.page_limit
        self._http = BudgetedHttp(ctx.http, clock, task, run)
        self._reactions: Counter[str] = Counter()
        """Guard reactions since the last page."""
        self._seen: set[int] = set()
        self._problems: Counter[str] = Counter()
        """What was wrong with the replies to the current request."""
        self._largest = 0
        """Records of the largest page."""
        self._empties_needed = CONFIRMATIONS
        """Empty replies that confirm an empty page, depending on the page before it."""
        self._check_idle_at = clock.monotonic() + IDLE_CHECK_SECONDS

    async def run(self) -> ShardRow:
        try:
            while self._row.state in (ShardState.WAITING, ShardState.RUNNING):  # bounded by the guards' ceilings
                await self._import_page()
        except LeaseLost:
            raise
        except Exception as error:
            await self._record_error(error)
            raise
        return self._row

    async def _import_page(self) -> None:
        page, write = await self._next_page()
        if write.state is ShardState.RUNNING:
            write = await self._split_for_idle_workers(write)
        ids = self._ids_in(page) if write.rows else []
        self._reactions["duplicate"] += len(ids) - len(set(ids) - self._seen)
        reactions = add_counts(write.guards, +self._reactions)
        write = replace(write, guards=reactions, requests=self._http.count, page_limit=self._stored_limit())
        with self._ctx.saving_calls():
            self._row = await write_page(self._task, self._row, write)
        self._http.count, self._reactions, self._problems = 0, Counter(), Counter()
        if page is not None:
            self._note_size(page)
        if len(self._seen) < SEEN_MAX:
            self._seen.update(ids)
        self._limit = grow_page_limit(self._limit, self._task.page_limit, self._row.pages)
        self._ctx.progress(self._row.rows, self._row.shard.estimated_rows, f"{self._row.pages:,} pages")

    def _ids_in(self, page: Page | None) -> list[int]:
        """Where ids ascend there are no duplicates, so ids are not remembered."""
        if page is None or self._task.source.caps.order is not None:
            return []
        return [hash(str(self._task.key(record))) for record in page.records]

    def _note_size(self, page: Page) -> None:
        """A page that is shorter than others already suggests the end, so the next empty page confirms it, unless the
        source may hide records for a while.
        """
        is_short = page.raw_count < self._limit
        is_sure = page.raw_count < self._largest and not self._task.source.caps.lag_us
        self._empties_needed = CONFIRMATIONS if not is_short or not page.raw_count else 0 if is_sure else 1
        self._largest = max(self._largest, page.raw_count)

    def _stored_limit(self) -> int | None:
        return None if self._limit == self._task.page_limit else self._limit

    # -- fetching ---------------------------------------------------------------------------------------------------

    async def _next_page(self) -> tuple[Page | None, PageWrite]:
        """Fetch again in doubt. If the doubt stays, the attempt fails, and the job is retried later."""
        for number in range(DOUBTS_MAX):
            try:
                page = await self._fetch_page()
                return page, build_page_write(self._task, self._run, self._row, page, await self._judge(page))
            except (TerminalError, UsageError) as error:
                # Another attempt would fail in the same way. The parked shard shows the reason, and can be resumed
                # after a correction.
                return None, park_write(self._row, "source_failed", self._shown(error))
            except (DoubtfulPage, BadReply) as error:
                guard = error.guard if isinstance(error, DoubtfulPage) else "wrong_body"
                self._reactions[guard] += 1
                if guard == DISORDER and self._is_never_ordered():
                    parked = park_write(self._row, guard, f"{self._shown(error)}; {WRONG_ORDER}")
                    return None, replace(parked, guards={})  # counted above
                if (why := self._permanent_problem(error)) is not None:
                    return None, replace(park_write(self._row, guard, why), guards={})
                if number == DOUBTS_MAX - 1:
                    raise
                await self._clock.sleep(DOUBT_SECONDS * 2**number)
        raise AssertionError("unreachable")

    def _is_never_ordered(self) -> bool:
        """The first page of the shard was out of order in every attempt, so this is not a moment of disorder."""
        return not self._row.pages and self._row.guards.get(DISORDER, 0) + self._reactions[DISORDER] >= DISORDER_MAX

    def _permanent_problem(self, error: Exception) -> str | None:
        """The reason to park the shard if the source repeats the same wrong answer, because no retry helps."""
        if not isinstance(error, BadReply) or isinstance(error, SourceBusy):
            return None
        problem = getattr(error, "problem", str(error))
        self._problems[problem] += 1
        count = self._problems[problem]
        if not self._row.pages:
            is_permanent = count >= (SAME_SHAPE_MAX if error.is_json else SAME_BODY_MAX)
        else:
            is_permanent = error.is_json and count >= DOUBTS_MAX and self._ctx.attempt >= ATTEMPTS_BORNE
        return f"{self._shown(error)}; {SAME_ANSWER}" if is_permanent else None

    async def _fetch_page(self) -> Page:
        """The next page, in a size that the source can deliver."""
        is_repeated = False
        while True:  # ends at the smallest size, or with an error that is retried
            try:
                return await self._fetch(self._row.cursor, self._limit)
            except HeavyPage as heavy:
                if not heavy.is_size and not is_repeated:
                    is_repeated = True
                    self._reactions["source_error"] += 1
                    await self._clock.sleep(DOUBT_SECONDS)
                    continue
                self._reactions["heavy_page"] += 1
                smaller = halve_page_limit(self._limit, self._task.limit_min)
                if smaller == self._limit:
                    raise
                self._ctx.progress(
                    self._row.rows, self._row.shard.estimated_rows, f"pages of {smaller:,}: {self._shown(heavy)}"
                )
                self._limit = smaller

    async def _fetch(self, cursor: Cursor | None, limit: int) -> Page:
        try:
            return await self._task.source.fetch(self._row.shard, cursor, limit, self._http)
        except SourceRefused as refused:
            # Otherwise every shard would try a wrong key several times.
            await self._task.sink.runs.finish(self._run.id, RunState.FAILED, self._shown(refused))
            raise Fail(self._shown(refused), code="refused") from refused

    async def _judge(self, page: Page) -> PageVerdict:
        caps = self._task.source.caps
        expected = Expectation(
            limit=self._limit,
            cursor=self._row.cursor,
            key=self._task.key,
            is_ordered=caps.order is not None,
            is_ours=self._task.is_ours(self._row.shard),
            has_next=caps.cursor != "none",
            short_page_is_end=caps.short_page_is_end,
            ceilings=self._task.ceilings,
        )
        if page.is_shifted:
            self._reactions["shifted"] += 1
        verdict = judge_page(page, self._row, expected)
        return await self._confirm_end(page, verdict) if isinstance(verdict, ConfirmEnd) else verdict

    async def _confirm_end(self, page: Page, verdict: ConfirmEnd) -> PageVerdict:
        """The end is confirmed if nothing follows the cursor, the last time after the source's lag."""
        cursor = page.next if page.next is not None else self._row.cursor
        for number in range(self._empties_needed if page.is_empty else CONFIRMATIONS):
            if number or self._empties_needed < CONFIRMATIONS:
                await self._clock.sleep(min(self._task.source.caps.lag_us / 1_000_000, CONFIRM_SECONDS_MAX))
            probe = await self._fetch(cursor, 1)
            if probe.is_empty:
                continue
            if page.next is None:
                # The page was empty although there is more, or did not contain the next cursor: it must be fetched
                # again.
                what = "a page without a next cursor" if page.raw_count else "an empty page"
                return RetryPage("empty_page", f"{what}, although more records follow")
            self._reactions["empty_page"] += 1
            return ContinueShard(verdict.page_hash)
        return EndShard(verdict.page_hash)

    # -- idle workers -----------------------------------------------------------------------------------------------

    async def _split_for_idle_workers(self, write: PageWrite) -> PageWrite:
        """Near the end of a run some workers are idle. If this shard still has a long way to go, split its rest. The
        split is part of the transaction of this page, so no other worker has to be fenced off.
        """
        if not self._run.concurrency or self._clock.monotonic() < self._check_idle_at:
            return write
        self._check_idle_at = self._clock.monotonic() + IDLE_CHECK_SECONDS
        shard, rows = self._row.shard, self._row.rows + len(write.rows)
        left = rows_left(shard, write.after, rows, self._run.id_max)
        if left is None or left < PAGES_SHARED_MIN * self._limit:
            return write
        if await self._task.sink.shards.count_open(self._run.id) >= self._run.concurrency:
            return write
        children = self._task.split(shard, write.after, IDLE, self._run.id_max)
        return split_rest(write, children) if children else write

    def _shown(self, error: Exception) -> str:
        """The text of an error for the sink, which keeps it for everyone who looks at the run."""
        return self._task.redactor.head(str(error), ERROR_LENGTH_MAX)

    async def _record_error(self, error: Exception) -> None:
        """Record why the attempt failed, for people who look at the run. A failure to record it is ignored."""
        if isinstance(error, Throttled):
            self._reactions["throttled"] += 1
        why = None if isinstance(error, Snooze | Throttled) else self._shown(error) or type(error).__name__
        if why is None and not self._reactions and not self._http.count:
            return
        with contextlib.suppress(TransientError, UsageError):
            row, reactions = self._row, dict(+self._reactions)
            await self._task.sink.shards.note(row.run, row.shard.key, row.fence, reactions, why, self._http.count)


class BudgetedHttp:
    """Counts every request of a shard, and takes it from the run's budget before it is sent."""

    def __init__(self, http: Any, clock: Clock, task: ShardTask, run: RunRow) -> None:
        self._http = http
        self._clock = clock
        self._task = task
        self._run = run
        self.count = 0
        """Since the last page."""

    async def request(self, method: str, url: str, **options: Any) -> Any:
        if self._run.requests_max is not None:
            if not await self._task.sink.runs.spend(self._run.id, 1):
                budget = f"the run's budget of {self._run.requests_max:,} requests is used up"
                raise Fail(f"{budget}; resume it with a larger one", code="run_budget")
            options["retry"] = False  # a retry is a request as well, and must be counted here
        before = getattr(self._http, "sent", 0)
        try:
            reply = await self._http.request(method, url, **options)
        finally:  # at the wire: the client may have repeated the request
            self.count += max(getattr(self._http, "sent", 0) - before, 1)
        if self._run.requests_max is not None:
            raise_throttled(reply, self._clock.wall_us())
        return reply


def raise_throttled(reply: Any, now: Instant) -> None:
    """The HTTP client does not wait here: the job is released for as long as the source asks, and no request is
    wasted.
    """
    told = parse_rate_limits(reply.status_code, reply.headers.items(), "", now)
    if told.throttled and (told.retry_after_us or reply.status_code == TOO_MANY):
        raise throttled_error(reply.status_code, told)


async def write_page(task: ShardTask, row: ShardRow, write: PageWrite) -> ShardRow:
    """Write a page and return the new state of the shard. A lost reply is resolved by reading the shard."""
    for _ in range(WRITE_TRIES_MAX):
        try:
            counts = await task.sink.shards.write(write)
        except UnknownOutcome:
            counts = None
        if counts is not None:
            return advance_shard(row, write, counts)
        now = await task.sink.shards.begin(row.run, row.shard.key, row.fence)
        if now is None:
            raise LeaseLost(f"shard {row.shard.key}: another worker has taken it over; this page was not written")
        if now.cursor != row.cursor or now.state is not row.state:
            return now  # the page was written, and only the reply was lost
    raise TransientError(f"shard {row.shard.key}: the sink did not accept the page")


def advance_shard(row: ShardRow, write: PageWrite, counts: WriteCounts) -> ShardRow:
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
