"""Safeguards of imports, removed one by one; see `sabotage.py`."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace
from tests.simulation.campaign.sabotage import Sabotage

from leaseway.domain.ids import SECOND_US, JobId
from leaseway.domain.inspection import PAGE_MAX, JobFilter
from leaseway.domain.job import State
from leaseway.domain.outcome import Fail
from leaseway.imports.domain import guards, splitting
from leaseway.imports.domain.guards import ConfirmEnd, EndShard, PageVerdict
from leaseway.imports.domain.page import Page, Record, WriteCounts
from leaseway.imports.domain.partition import Cursor, Shard
from leaseway.imports.domain.run_state import RunRow, ShardRow, ShardState
from leaseway.imports.run import import_shard, shard_jobs, watermark
from leaseway.imports.run.finish_run import ConfirmClient, Sweeper
from leaseway.imports.run.import_shard import BudgetedHttp, ShardAttempt, ShardTask
from leaseway.imports.sinks import shard_transitions, sql_tables
from leaseway.imports.sinks.port import PageWrite
from leaseway.imports.sinks.shard_transitions import PageChanges, StoredRowState
from leaseway.imports.sinks.sql_tables import ExecuteMany, SqlShards, Steps
from leaseway.imports.sinks.sqlite import sink
from leaseway.imports.sources.http_json import JsonSource
from leaseway.imports.sources.port import BadReply, SourceRefused
from leaseway.ports.store import Store

real_write = SqlShards.write
real_add_shards = sql_tables.add_shards
real_begun = shard_transitions.begin_shard
real_may_turn = shard_transitions.accepts_page
real_fetch = JsonSource.fetch
real_id_halves = splitting.id_halves


def turn_at_any_cursor(row: ShardRow, page: PageWrite) -> bool:
    return real_may_turn(replace(row, cursor=page.before), replace(page, page_hash=""))


def turn_with_any_fence(row: ShardRow, page: PageWrite) -> bool:
    return real_may_turn(row, replace(page, fence=row.fence))


def begin_with_any_fence(row: ShardRow, fence: int, now: int) -> ShardRow | None:
    return real_begun(row, max(fence, row.fence), now)


async def believe_the_page(attempt: ShardAttempt, page: Page, verdict: ConfirmEnd) -> PageVerdict:
    return EndShard(verdict.page_hash)


def order_is_fine(ids: Sequence[Any], cursor: Cursor | None) -> str | None:
    return None


def everything_is_ours(source: JsonSource, shard: Shard) -> Callable[[Record], bool]:
    return lambda record: True


def newest_word_wins(
    lines: Sequence[Any], known: Mapping[str, StoredRowState], quarantined: int, _: bool
) -> PageChanges:
    new = [line for line in lines if line[0] not in known]
    changed = [line for line in lines if line[0] in known and line[2] != known[line[0]].content_hash]
    counts = WriteCounts(len(new), len(changed), len(lines) - len(new) - len(changed), 0, quarantined)
    return PageChanges(new, changed, counts)


async def write_rows_then_place(shards: SqlShards, page: PageWrite) -> WriteCounts | None:
    """Two transactions: a worker may die between them."""
    rows = replace(page, after=page.before, state=ShardState.RUNNING, page_hash="", children=())
    written = await real_write(shards, rows)
    if written is not None:

        def move(row: ShardRow, now: int) -> ShardRow:
            return replace(row, cursor=page.after, state=page.state, why=page.why)

        database = shards._database
        await database.transact(partial(shards._change, page.run, page.shard, move), is_durable=False)
        children = [shard_transitions.new_shard_row(page.run, child, page.shard) for child in page.children]
        await database.transact(partial(add_children, children), is_durable=False)
    return written


def add_children(children: Sequence[ShardRow]) -> Steps[None]:
    yield real_add_shards(children)


async def write_then_children(shards: SqlShards, page: PageWrite) -> WriteCounts | None:
    late: list[ShardRow] = []

    def postpone(shards: Sequence[ShardRow]) -> ExecuteMany:
        late.extend(shards)
        return ExecuteMany("shard_add", [])

    sql_tables.add_shards = postpone
    try:
        written = await real_write(shards, page)
    finally:
        sql_tables.add_shards = real_add_shards
    if written is not None and late:
        await shards._database.transact(partial(add_children, late), is_durable=False)
    return written


async def look_and_ask(asker: BudgetedHttp, method: str, url: str, **options: Any) -> Any:
    """Checks the budget, sends the request, and then books it: other workers check meanwhile."""
    task, run = asker._task, asker._run
    now = await task.sink.runs.find(run.id)
    if now is not None and now.requests_max is not None and now.requests >= now.requests_max:
        raise Fail("the run's budget is used up", code="run_budget")
    asker.count += 1
    reply = await asker._http.request(method, url, **options)
    await task.sink.runs.spend(run.id, 1)
    return reply


async def any_run_will_do(task: ShardTask, run: str) -> RunRow:
    row = await task.sink.runs.find(run)
    assert row is not None
    return row


async def refused_or_heavy(source: JsonSource, *args: Any) -> Page:
    """Treats a refused API key like a page that is temporarily unavailable."""
    try:
        return await real_fetch(source, *args)
    except SourceRefused as refused:
        raise BadReply(str(refused)) from refused


def halves_with_a_gap(ids: list[int | None], id_max: int | None) -> list[list[int | None]]:
    """Treats both bounds as exclusive."""
    parts = real_id_halves(ids, id_max)
    return [[low, None if high is None else high - 1] for low, high in parts]


def since_its_end(base: RunRow | None, *rest: Any) -> int | None:
    return None if base is None or base.finished_at is None else base.finished_at + 60 * SECOND_US


async def delete_without_asking(sweeper: Sweeper, asking: ConfirmClient) -> None:
    await sweeper._delete_unconfirmed()


def nothing_is_superseded(job: JobId, fence: int) -> bool:
    return False


async def only_open_jobs_can_work(store: Store, jobs: Sequence[JobId]) -> set[JobId]:
    if not jobs:
        return set()
    await store.operations.retry(JobFilter(ids=tuple(jobs)), len(jobs))
    is_open = JobFilter(ids=tuple(jobs), states=(State.PENDING, State.LEASED))
    return {job.id for job in await store.reads.jobs(is_open, limit=PAGE_MAX)}


def sabotage(removes: str, *code: tuple[Any, str, Any], first: int = 0) -> Sabotage:
    return Sabotage(scenario="imports", first=first, removes=removes, code=code)


SABOTAGES: dict[str, Sabotage] = {
    "import_any_cursor": sabotage(
        "a page counts only at the cursor with which it was fetched",
        (shard_transitions, "accepts_page", turn_at_any_cursor),
        first=24,
    ),
    "import_any_fence": sabotage(
        "a page of a worker whose shard somebody else has begun is refused",
        (shard_transitions, "accepts_page", turn_with_any_fence),
        first=82,
    ),
    "import_begun_by_all": sabotage(
        "a shard is begun by the last worker only",
        (shard_transitions, "begin_shard", begin_with_any_fence),
        (shard_transitions, "accepts_page", turn_with_any_fence),
        first=82,
    ),
    "import_empty_believed": sabotage(
        "an empty page is no proof of the end", (ShardAttempt, "_confirm_end", believe_the_page), first=1
    ),
    "import_confirmed_once": sabotage(
        "the end is confirmed twice, the second time after the source's lag",
        (import_shard, "CONFIRMATIONS", 1),
        first=11,
    ),
    "import_disordered": sabotage(
        "pages out of order are not written", (guards, "find_disorder", order_is_fine), first=31
    ),
    "import_unfiltered": sabotage(
        "a page with records of other shards is not written",
        (JsonSource, "is_ours", everything_is_ours),
        first=44,
    ),
    "import_backwards": sabotage(
        "an older row never replaces a newer one", (sink, "classify_rows", newest_word_wins), first=2
    ),
    "import_place_apart": sabotage(
        "rows and cursor are written in one transaction",
        (SqlShards, "write", write_rows_then_place),
        first=55,
    ),
    "import_children_apart": sabotage(
        "a shard and its children are written in one transaction",
        (SqlShards, "write", write_then_children),
        first=245,
    ),
    "import_split_with_a_gap": sabotage(
        "the children of a shard cover all that it has left",
        (splitting, "id_halves", halves_with_a_gap),
        first=9,
    ),
    "import_since_its_end": sabotage(
        "a run for changes begins where the last complete one began",
        (watermark, "changes_since", since_its_end),
        first=1,
    ),
    "import_deleted_unasked": sabotage(
        "rows that a full run did not see are confirmed with the source before they are deleted",
        (Sweeper, "_delete_confirmed", delete_without_asking),
        first=24,
    ),
    "import_budget_looked_at": sabotage(
        "a request is taken from the run's budget before it leaves",
        (BudgetedHttp, "request", look_and_ask),
        first=8,
    ),
    "import_failed_goes_on": sabotage(
        "no shard of a run that has failed is begun",
        (import_shard, "load_run", any_run_will_do),
        first=12,
    ),
    "import_refusal_retried": sabotage(
        "a key that is refused stops the run at once",
        (JsonSource, "fetch", refused_or_heavy),
        first=12,
    ),
    "import_old_job_revived": sabotage(
        "a shard that a later job has begun is continued by that job",
        (shard_jobs, "is_superseded", nothing_is_superseded),
        (shard_jobs, "retry_failed", only_open_jobs_can_work),
        first=589,
    ),
}
