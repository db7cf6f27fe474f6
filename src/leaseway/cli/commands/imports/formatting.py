"""Runs and shards as text: their state, progress and problems, and the command to type next."""

from collections.abc import Mapping, Sequence

from leaseway.cli.commands.imports.open_sink import command
from leaseway.cli.open_store import looked_into
from leaseway.cli.options import CliSettings
from leaseway.cli.output.console import counted, local, note, say, span, wrapped
from leaseway.cli.output.table import TableCell, TableColumn, show_table
from leaseway.domain.encryption import describe_encrypted
from leaseway.domain.errors import LeasewayError
from leaseway.domain.ids import SECOND_US, Instant
from leaseway.domain.inspection import PAGE_MAX, JobFilter
from leaseway.domain.job import Job, State
from leaseway.imports.domain.drift import Drift
from leaseway.imports.domain.partition import Cursor, canonical
from leaseway.imports.domain.run_state import RunMode, RunRow, RunState, ShardRow, ShardState
from leaseway.imports.run.assembly import queue_name
from leaseway.imports.run.report import count_reactions, count_requests, count_states, sum_counts
from leaseway.imports.run.shard_jobs import IMPORTS_TENANT, failed_shard_jobs
from leaseway.imports.spec.model import RunBudget, Spec
from leaseway.ports.store import Store

STATE_STYLES = {"done": "green", "running": "cyan", "waiting": "yellow", "parked": "red", "split": "dim"}
RUN_STYLES = {
    RunState.COMPLETE: "green",
    RunState.RUNNING: "cyan",
    RunState.PARTIAL: "yellow",
    RunState.FAILED: "red",
    RunState.SUSPECT: "red",
    RunState.UNVERIFIED: "yellow",
}
MEANINGS = {
    RunState.RUNNING: "it has not finished",
    RunState.COMPLETE: "all rows are imported",
    RunState.PARTIAL: "some shards are missing",
    RunState.FAILED: "the whole run was stopped",
    RunState.SUSPECT: "all rows are imported, but the result looks wrong",
    RunState.UNVERIFIED: "complete as far as this paging can tell",
}
PATHS_SHOWN_MAX = 20


def duration(seconds: float | None) -> str:
    return "" if seconds is None else span(round(seconds * SECOND_US))


def rate(count: int, seconds: float) -> str:
    return f"{count / seconds:,.0f} rows/s" if seconds > 0 and count else ""


def totals_in_words(totals: Mapping[str, int]) -> str:
    names = ("pages", "rows", "inserted", "updated", "unchanged", "stale", "quarantined", "requests")
    return ", ".join(of(totals[name], name) for name in names)


def of(count: int, name: str) -> str:
    """1 page, 2 pages, 0 inserted"""
    return counted(count, name[:-1]) if name in ("pages", "rows", "requests") else f"{count:,} {name}"


def shards_in_words(shards: Sequence[ShardRow]) -> str:
    states = ", ".join(f"{count:,} {name}" for name, count in count_states(shards).items())
    return f"{counted(len(shards), 'shard')}: {states}" if shards else "no shards"


def reactions_in_words(guards: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in guards.items())


def mode_in_words(run: RunRow) -> str:
    if run.mode is RunMode.FULL or run.since is None:
        return "full: all records"
    return f"incremental: changes since {local(run.since)}"


def instant(value: Instant | None) -> str:
    return "" if value is None else local(value)


def cursor_in_words(cursor: Cursor | None) -> str:
    """{"after": 311592} is after 311592."""
    if cursor is None:
        return ""
    plain = all(isinstance(value, str | int | float) for value in cursor.values())
    return ", ".join(f"{name} {value}" for name, value in cursor.items()) if plain else canonical(cursor)


def drift_in_words(found: Drift | None) -> list[tuple[str, str]]:
    """Names and values, for `facts`."""
    if found is None:
        return [("drift", "unknown: no profile of both runs")]
    if not found:
        return [("drift", "none")]
    changed = [f"{each.path}: {' or '.join(each.before)}, now {' or '.join(each.after)}" for each in found.changed]
    kinds = [("new paths", found.new, ", "), ("vanished paths", found.vanished, ", "), ("other types", changed, "; ")]
    return [(name, shortened(list(paths), between)) for name, paths, between in kinds if paths]


def shortened(texts: list[str], between: str = ", ", count_max: int = PATHS_SHOWN_MAX) -> str:
    more = len(texts) - count_max
    return between.join(texts[:count_max]) + (f" and {more:,} more" if more > 0 else "")


SHARDS_SHOWN_MAX = 40
TROUBLES_SHOWN_MAX = 10
ORDER = {ShardState.PARKED: 0, ShardState.RUNNING: 1, ShardState.WAITING: 2}
"""Where not all fit, those that need attention come first."""

GivenUp = Mapping[str, str]
"""Why no job works on a shard any more, by the key of the shard."""


def show_summary(
    spec: Spec, run: RunRow, shards: Sequence[ShardRow], given_up: GivenUp, seconds: float | None = None
) -> None:
    after = "" if seconds is None else f" after {duration(seconds)}"
    say(
        f"{spec.source.name}: {run.state.value}{after}: {MEANINGS[run.state]}",
        RUN_STYLES[run.state],
    )
    if run.why:
        say(wrapped(f"why: {run.why}"))
    totals = sum_counts(shards)
    pace = "" if seconds is None else rate(totals["rows"], seconds)
    say(totals_in_words(totals) + (f", {pace}" if pace else ""))
    say(shards_in_words(shards))
    if guards := count_reactions(shards):
        say(f"guards: {reactions_in_words(guards)}")
    if budget := budget_in_words(run, shards, spec.budget):
        say(f"budget: {budget}")
    for warning in run.notes.get("warnings", ()):
        say(wrapped(f"warning: {warning}", 2), "yellow")
    show_troubles(run, shards, given_up)


def budget_in_words(run: RunRow, shards: Sequence[ShardRow], budget: RunBudget | None) -> str:
    """12 of 100 requests, 0.06 USD"""
    price = None if budget is None else budget.price
    if run.requests_max is None and price is None:
        return ""
    used = count_requests(run, shards)
    most = "" if run.requests_max is None else f" of {run.requests_max:,}"
    cost = "" if price is None or budget is None else f", {used * price:,.2f} {budget.currency}"
    return f"{used:,}{most} requests{cost}"


def show_troubles(run: RunRow, shards: Sequence[ShardRow], given_up: GivenUp) -> None:
    # What stopped the whole run has been printed already; do not repeat it for each shard.
    is_told = run.is_budget_used_up or run.state is RunState.FAILED
    asked = [row for row in shards if row.state is ShardState.PARKED or not is_told]
    found = [line for row in asked for line in shard_problems(row, given_up, run.state is RunState.RUNNING)]
    for text, style in found[:TROUBLES_SHOWN_MAX]:
        say(wrapped(text, 2), style)
    if len(found) > TROUBLES_SHOWN_MAX:
        note(f"and {len(found) - TROUBLES_SHOWN_MAX:,} more shards")


def shard_problems(row: ShardRow, given_up: GivenUp, is_running: bool) -> list[tuple[str, str]]:
    label = row.shard.label
    if row.state is ShardState.PARKED:
        return [(f"parked: {label}: {row.why or 'no reason recorded'}", "red")]
    if row.shard.key in given_up:
        return [(f"{label}: {given_up[row.shard.key]}", "red")]
    if row.why and row.state in (ShardState.WAITING, ShardState.RUNNING):
        return [(f"{'retrying' if is_running else 'unfinished'}: {label}: {row.why}", "yellow")]
    return []


def show_shards(shards: Sequence[ShardRow], given_up: GivenUp) -> None:
    shown = shards if len(shards) <= SHARDS_SHOWN_MAX else sorted(shards, key=lambda row: ORDER.get(row.state, 3))
    counts = ("pages", "rows", "quarantined", "attempts")
    columns = [
        TableColumn("shard"),
        TableColumn("state"),
        *(TableColumn(name, right=True) for name in counts),
        TableColumn("at", may_shrink=True, leaves=1),
    ]
    rows = [shard_cells(row, given_up) for row in shown[:SHARDS_SHOWN_MAX]]
    if rows:
        show_table(columns, rows)
    if len(shards) > SHARDS_SHOWN_MAX:
        note(f"and {counted(len(shards) - SHARDS_SHOWN_MAX, 'shard')} more; --json has them all")


def shard_cells(row: ShardRow, given_up: GivenUp) -> list[TableCell | str]:
    is_given_up = row.shard.key in given_up
    state = "failed" if is_given_up else row.state.value
    style = "red" if is_given_up else STATE_STYLES.get(row.state.value, "")
    is_open = row.state is not ShardState.DONE
    return [
        "  " * row.shard.depth + row.shard.label,
        TableCell(state, style),
        f"{row.pages:,}",
        f"{row.rows:,}",
        f"{row.quarantined:,}" if row.quarantined else "",
        f"{row.attempts:,}",
        cursor_in_words(row.cursor) if is_open else "",
    ]


def show_quarantine(settings: CliSettings, name: str, shards: Sequence[ShardRow]) -> None:
    """A run is complete without the records in quarantine, so their number is shown."""
    if count := sum_counts(shards)["quarantined"]:
        say(
            f"{counted(count, 'record')} in quarantine; list them with: {command(settings, 'quarantine', name)}",
            "yellow",
        )


def next_command(settings: CliSettings, name: str, run: RunRow, is_named: bool = False) -> str | None:
    """The next command, by the state of the run; None if nothing is left to do."""
    id_ = run.id if is_named else None
    if run.state in (RunState.COMPLETE, RunState.UNVERIFIED):
        return None
    if run.state is RunState.SUSPECT:
        return f"inspect it with: {command(settings, 'report', name, id_)}"
    if run.is_budget_used_up:
        more = ("--requests-max", str(2 * (run.requests_max or 0)))
        return f"its budget is used up; continue with: {command(settings, 'resume', name, id_, *more)}"
    before = "correct what stopped it, then " if run.state is RunState.FAILED else ""
    return f"{before}continue with: {command(settings, 'resume', name, id_)}"


OPEN = (ShardState.WAITING, ShardState.RUNNING)


async def given_up(url: str, source: str, run: str, shards: list[ShardRow]) -> dict[str, str]:
    """Why a shard has no job left to run, by shard. Empty if the store of the jobs cannot be read."""
    open_ones = [row for row in shards if row.state in OPEN]
    if not open_ones:
        return {}
    try:
        async with looked_into(url) as store:
            return {
                key: await told(store, job)
                for key, job in (await failed_shard_jobs(store, source, run, open_ones)).items()
            }
    except LeasewayError:
        return {}  # the run may have been made elsewhere; what the sink knows is worth showing


async def describe_idle(url: str, source: str) -> str | None:
    """Why no shard of this source is being worked on, as the beginning of advice. None if a worker holds a lease, or if
    that is not known.
    """
    try:
        async with looked_into(url) as store:
            now = await store.reads.now()
            which = JobFilter(states=(State.LEASED, State.PENDING), queue=queue_name(source), tenant=IMPORTS_TENANT)
            jobs = await store.reads.jobs(which, limit=PAGE_MAX)
    except LeasewayError:
        return None
    if any(job.lease_until is not None and job.lease_until > now for job in jobs):
        return None
    waiting = [job.run_at for job in jobs if job.state is State.PENDING]
    if waiting and min(waiting) > now:
        seconds = (min(waiting) - now) / SECOND_US
        first = f"{counted(len(waiting), 'shard')}, the first in {duration(seconds)}"
        return f"waiting for the next attempt: {first}; if no worker is running, "
    return "no worker is running it now; "


async def describe_held(store: Store, source: str) -> str | None:
    """The shards that other workers hold, and for how long if those workers are gone. None if there are none."""
    now = await store.reads.now()
    which = JobFilter(states=(State.LEASED,), queue=queue_name(source), tenant=IMPORTS_TENANT)
    leased = await store.reads.jobs(which, limit=PAGE_MAX)
    left = [job.lease_until - now for job in leased if job.lease_until is not None and job.lease_until > now]
    if not left:
        return None
    wait = f"their leases expire within {duration(max(left) / SECOND_US)}"
    return f"{counted(len(left), 'shard')} leased by other workers; if these were killed, {wait}"


async def told(store: Store, job: Job) -> str:
    errors = await store.reads.errors(job.id)
    last = describe_encrypted(errors[-1].message) if errors else job.last_error_code or "unknown"
    if job.attempts >= job.attempts_max:
        return f"failed after {job.attempts:,} of {job.attempts_max:,} attempts: {last}"
    return f"failed: {last}"
