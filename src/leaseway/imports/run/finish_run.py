"""shard jobs ─► page ─► rows and cursor ─► [end of the run: states ─► yield ─► sweep ─► confirm ─► delete]

The state of a run that has ended is computed from its run tables, by any process and any number of times. A trusted
full run also determines which rows are gone: rows that it and earlier runs did not see, and that the source, asked
twice by id, does not return. Every step can be repeated after a crash. In doubt, nothing is deleted: an uncertain row
waits for the next full run.

Findings are stored in the run's notes:

    sweep      {stored, absent}             stored rows, and those that the run did not see
    deletes    {flagged, present, deleted, waiting, requests}
    guards     {yield_collapse: 1}          what made the run suspect
    warnings   [text]                       remarks on a complete run
"""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from leaseway.domain.errors import NoSuchJob, TransientError
from leaseway.imports.domain.partition import make_shard
from leaseway.imports.domain.run_state import RunMode, RunRow, RunState, ShardRow, ShardState
from leaseway.imports.run.assembly import ImportParts
from leaseway.imports.run.import_shard import BudgetedHttp
from leaseway.imports.sources.port import RequestClient
from leaseway.imports.spec.model import GuardSettings, PageNumberPaging, PagingSpec, SweepSettings
from leaseway.ports.clock import Clock

ROWS_COMPARED_MIN = 100
"""Smaller shards can lose half of their rows at any time."""
DELETED = "deleted"
"""The predicate of the feed of deleted records, which do not count as yield."""


PAGES_OF_ONE = 2
"""A shard with one page of records has a second, empty one."""
OTHER_PAGING = "run the import again, use keyset paging if the source supports it"


class RunVerdict(NamedTuple):
    state: RunState
    why: str | None = None
    guard: str | None = None
    """The guard that made the run suspect."""


COMPLETE = RunVerdict(RunState.COMPLETE)


def judge_shards(run: RunRow, shards: Sequence[ShardRow]) -> RunVerdict:
    """The verdict from the states of the shards."""
    if run.state is RunState.FAILED:
        return RunVerdict(RunState.FAILED, run.why)
    left = [row for row in shards if row.state not in (ShardState.DONE, ShardState.SPLIT)]
    return RunVerdict(RunState.PARTIAL, "; ".join(partial_reasons(run, left, len(shards)))) if left else COMPLETE


def partial_reasons(run: RunRow, left: Sequence[ShardRow], count: int) -> Iterator[str]:
    parked = [row for row in left if row.state is ShardState.PARKED]
    others = [row for row in left if row.state is not ShardState.PARKED]
    if parked:
        yield f"{len(parked):,} of {count:,} shards parked: {first_reason(parked)}"
    if others and run.requests_max is not None and run.requests >= run.requests_max:
        used = f"the budget of {run.requests_max:,} requests is used up"
        yield f"{used}, with {len(others):,} of {count:,} shards left; resume the run with a larger one"
    elif others:
        yield f"{len(others):,} of {count:,} shards unfinished: {first_reason(others)}"


def first_reason(shards: Sequence[ShardRow]) -> str:
    row = next((row for row in shards if row.why), shards[0])
    return f"{row.shard.label}: {row.why or 'not finished'}"


# -- yield ------------------------------------------------------------------------------------------------------------


def find_yield_collapse(
    now: Sequence[ShardRow], before: Sequence[ShardRow], guards: GuardSettings
) -> RunVerdict | None:
    """Compare with the last complete full run. Returns None if the number of rows is plausible."""
    rows, rows_before = rows_by_planned_shard(now), rows_by_planned_shard(before)
    total, total_before = sum(rows.values()), sum(rows_before.values())
    what_to_do = (
        "check the source; if the numbers are right, lower resource.guards.yield_floor and resume the run, which sends "
        "no requests"
    )
    if total < guards.yield_floor * total_before:
        problem = f"{total:,} rows, and the last complete full run had {total_before:,}"
        return RunVerdict(RunState.SUSPECT, f"{problem}; {what_to_do}", "yield_collapse")
    for key, count in rows_before.items():
        if count >= ROWS_COMPARED_MIN and key in rows and rows[key] < guards.yield_floor * count:
            problem = f"shard {key} has {rows[key]:,} rows, and had {count:,} in the last complete full run"
            return RunVerdict(RunState.SUSPECT, f"{problem}; {what_to_do}", "yield_collapse")
    return None


def find_unproved(page: PagingSpec, shards: Sequence[ShardRow]) -> RunVerdict | None:
    """A verdict if records may have moved past a page unseen. Returns None if the paging proves that none did."""
    if moved := sum(row.guards.get("shifted", 0) for row in shards):
        problem = f"records moved {moved:,} times while they were read by position, and some may be missing"
        return RunVerdict(RunState.UNVERIFIED, f"{problem}; {OTHER_PAGING}", "shifted")
    if not isinstance(page, PageNumberPaging) or page.is_stable:
        return None
    paged = [row for row in shards if row.rows + row.quarantined > page.limit or row.pages > PAGES_OF_ONE]
    if not paged:
        return None
    problem = "page numbers cannot show whether records moved between two pages"
    return RunVerdict(
        RunState.UNVERIFIED, f"{problem}; {OTHER_PAGING}, or set resource.page.is_stable if they never do"
    )


def rows_by_planned_shard(shards: Sequence[ShardRow]) -> dict[str, int]:
    """Rows of each planned shard, including the shards that it was split into."""
    parents = {row.shard.key: row.parent for row in shards}
    rows: dict[str, int] = {}
    for row in shards:
        if DELETED not in row.shard.predicate:
            first = planned_ancestor(row.shard.key, parents)
            rows[first] = rows.get(first, 0) + row.rows
    return rows


def planned_ancestor(key: str, parents: Mapping[str, str | None]) -> str:
    for _ in range(len(parents)):  # a shard has fewer ancestors than there are shards
        parent = parents.get(key)
        if parent is None:
            break
        key = parent
    return key


# -- deletes and duplicates -------------------------------------------------------------------------------------------


def find_excess_absence(stored: int, absent: int, sweeping: SweepSettings) -> RunVerdict | None:
    if absent <= sweeping.max_ratio * stored:
        return None
    problem = f"{absent:,} of {stored:,} rows are absent, more than {sweeping.max_ratio:.1%}; nothing was deleted"
    what_to_do = (
        "check the source; if the rows are gone, raise resource.deletes.sweep.max_ratio and run a full import again"
    )
    return RunVerdict(RunState.SUSPECT, f"{problem}; {what_to_do}", "sweep_ratio")


def duplicate_warning(shards: Sequence[ShardRow], guards: GuardSettings) -> str | None:
    """Only a warning: duplicate records were written once."""
    rows = sum(row.rows for row in shards)
    doubled = sum(row.guards.get("duplicate", 0) for row in shards)
    if not rows or doubled <= guards.duplicate_ratio_max * rows:
        return None
    return (
        f"{doubled:,} of {rows:,} records are duplicates, more than {guards.duplicate_ratio_max:.0%}: the source "
        "changes its order while it is read and may omit as many; use keyset paging if the source supports it"
    )


KNOWN_IDS = 2


class PresenceCheck:
    """Asks the source which ids it still has, always together with two ids that it certainly has.

    A reply without those two proves nothing about the others: an API returns such replies while its database is down,
    or if it reads only the first or the last of several ids.
    """

    def __init__(self, parts: ImportParts, http: RequestClient, known_ids: Sequence[str]) -> None:
        self._source, self._http, self._known_ids = parts.source, http, known_ids
        self._is_between = len(known_ids) > 1 and self._source.confirm_max > len(known_ids)
        self.batch = self._source.confirm_max - len(known_ids) if self._is_between else 1

    @classmethod
    async def with_first_records(cls, parts: ImportParts, http: RequestClient) -> "PresenceCheck":
        """Uses the first records that the source returns now."""
        page = await parts.source.fetch(make_shard(parts.source.name, "all", {}), None, KNOWN_IDS, http)
        rows, _ = parts.task.shape(page.records[:KNOWN_IDS], page.server_time)
        if not rows:
            raise TransientError(f"source {parts.source.name}: returns no records; nothing is deleted")
        return cls(parts, http, [row.external_id for row in rows])

    async def find_present(self, ids: Sequence[str]) -> frozenset[str]:
        if self._is_between:
            first, last = self._known_ids
            others = [id for id in ids if id not in self._known_ids]
            present = await self._source.present([first, *others, last], self._http)
        else:
            present = await self._source.present(ids, self._http)
            present |= await self._source.present(self._known_ids[:1], self._http)
        missing = [id for id in self._known_ids[: 2 if self._is_between else 1] if id not in present]
        if missing:
            raise TransientError(
                f"source {self._source.name}: a request for {len(ids):,} records by id did not return "
                f"{missing[0]!r}, which it returned a moment ago; nothing is deleted, and the check is repeated later"
            )
        return present


def batched(ids: Sequence[str], size: int) -> list[Sequence[str]]:
    return [ids[start : start + size] for start in range(0, len(ids), size)]


SWEEPS = "sweeps"
"""In the notes of a run from its start: its pages store the ids they saw. A run without it cannot be swept."""
RUNS_COMPARED_MAX = 20
BATCH = 500
"""Rows that are marked at once without asking the source."""
REQUESTS_PER_BATCH = 20
PAUSE_SECONDS_MIN = 0.5
"""Longer than a row is missing while a mirror replaces it."""
PAUSE_SECONDS_MAX = 2.0


class ConfirmClient(NamedTuple):
    """How a job sends requests to the source."""

    http: RequestClient
    clock: Clock


def can_confirm(parts: ImportParts) -> bool:
    return parts.task.sweeps and "confirm" in parts.source.caps.deletes


async def is_swept(parts: ImportParts, run: str) -> bool:
    row = await parts.sink.runs.find(run)
    return row is not None and sweep_settings(parts, row) is not None


def sweep_settings(parts: ImportParts, run: RunRow) -> SweepSettings | None:
    deletes = parts.spec.resource.deletes
    is_kept = run.mode is RunMode.FULL and run.notes.get(SWEEPS) is True
    return deletes.sweep if deletes is not None and is_kept else None


async def finish_run(parts: ImportParts, run: str, client: ConfirmClient | None = None) -> RunState:
    """Evaluate a run and store its state. Without a `client`, the source is not asked, and rows that need confirmation
    stay.
    """
    row = await parts.sink.runs.find(run)
    if row is None:
        raise NoSuchJob(f"there is no run {run} in the sink")
    shards = await parts.sink.shards.find_all(run)
    verdict = await judge_run(parts, row, shards)
    if verdict.state is RunState.COMPLETE and (settings := sweep_settings(parts, row)) is not None:
        sweep = Sweeper(parts, row, settings, client)
        verdict = await sweep.judge() or verdict
        if verdict.state is RunState.COMPLETE:
            await sweep.delete_absent()
    row = await parts.sink.runs.find(run) or row
    await parts.sink.runs.finish(run, verdict.state, verdict.why, build_notes(parts, row, shards, verdict))
    return verdict.state


async def judge_run(parts: ImportParts, row: RunRow, shards: Sequence[ShardRow]) -> RunVerdict:
    """From the states of the shards, and from the number of rows compared with the last full run."""
    verdict = judge_shards(row, shards)
    if verdict.state is not RunState.COMPLETE:
        return verdict
    if row.mode is RunMode.FULL and (before := await last_full_before(parts, row)) is not None:
        rows_before = await parts.sink.shards.find_all(before.id)
        collapse = find_yield_collapse(shards, rows_before, parts.spec.resource.guards)
        if collapse is not None:
            return collapse
    return find_unproved(parts.spec.resource.page, shards) or verdict


async def last_full_before(parts: ImportParts, row: RunRow) -> RunRow | None:
    runs = await parts.sink.runs.find_all(row.source, RUNS_COMPARED_MAX, state=RunState.COMPLETE, mode=RunMode.FULL)
    older = (run for run in runs if run.id != row.id and run.started_at <= row.started_at)
    return next((run for run in older if run.spec_hash == row.spec_hash), None)


def build_notes(parts: ImportParts, row: RunRow, shards: Sequence[ShardRow], verdict: RunVerdict) -> dict[str, Any]:
    notes = {name: value for name, value in row.notes.items() if name not in ("guards", "warnings")}
    if verdict.guard is not None:
        notes["guards"] = {verdict.guard: 1}
    if (warning := duplicate_warning(shards, parts.spec.resource.guards)) is not None:
        notes["warnings"] = [warning]
    feed = [shard for shard in shards if DELETED in shard.shard.predicate]
    if feed:
        flagged = sum(shard.inserted + shard.updated for shard in feed)
        notes["deletes"] = {**notes.get("deletes", {}), "flagged": flagged}
    return notes


class Sweeper:
    """Handles the rows that a full run did not see."""

    def __init__(self, parts: ImportParts, run: RunRow, settings: SweepSettings, client: ConfirmClient | None) -> None:
        self._parts, self._run, self._settings, self._client = parts, run, settings, client
        self._sink, self._source = parts.sink, parts.source
        self._counts = dict(run.notes.get("deletes", {}))

    async def judge(self) -> RunVerdict | None:
        """A verdict if too many rows are absent and the run cannot be trusted, otherwise None."""
        sweep = await self._sink.sweeps.sweep(self._run.id)
        verdict = find_excess_absence(sweep.stored, sweep.absent, self._settings)
        if verdict is not None:
            # An untrusted run must not count as one of the runs that a row was absent from.
            await self._mark_all_present()
        return verdict

    async def _mark_all_present(self) -> None:
        after = ""
        while ids := await self._sink.sweeps.find_absent(self._run.source, 1, BATCH, after):  # ids ascend
            after = ids[-1]
            await self._sink.sweeps.mark_present(self._run.source, ids)

    async def delete_absent(self) -> None:
        if "confirm" not in self._source.caps.deletes:
            await self._delete_unconfirmed()
        elif self._client is not None:
            await self._delete_confirmed(self._client)
        await self._store_count("waiting", await self._waiting())

    async def _waiting(self) -> int:
        """The number of uncertain rows."""
        return sum([len(ids) async for ids in self._batches(BATCH)])

    # -- sources that cannot be asked --------------------------------------------------------------------------------

    async def _delete_unconfirmed(self) -> None:
        async for ids in self._batches(BATCH):
            await self._settle([], ids)

    # -- sources that can be asked ----------------------------------------------------------------------------------

    async def _delete_confirmed(self, client: ConfirmClient) -> None:
        """In batches of a size such that few requests are repeated if a limit is used up for hours."""
        if not await self._sink.sweeps.find_absent(self._run.source, self._settings.after, 1):
            return
        http = BudgetedHttp(client.http, client.clock, self._parts.task, self._run)
        ask = await PresenceCheck.with_first_records(self._parts, http)
        async for ids in self._batches(ask.batch * REQUESTS_PER_BATCH):
            await self._confirm_twice(ask, ids, client.clock)
        await self._store_count("requests", self._counts.get("requests", 0) + http.count)

    async def _confirm_twice(self, ask: PresenceCheck, ids: Sequence[str], clock: Clock) -> None:
        """Ask a second time after the source's lag: ids that are absent again are gone."""
        absent: list[str] = []
        for some in batched(ids, ask.batch):
            present = await ask.find_present(some)
            await self._settle([id for id in some if id in present], [])
            absent += [id for id in some if id not in present]
        if not absent:
            return
        lag_seconds = self._source.caps.lag_us / 1_000_000
        await clock.sleep(min(max(lag_seconds, PAUSE_SECONDS_MIN), PAUSE_SECONDS_MAX))
        for some in batched(absent, ask.batch):
            await self._delete_gone(ask, some)

    async def _delete_gone(self, ask: PresenceCheck, ids: Sequence[str]) -> None:
        """A reply that contains some of the ids may be truncated, so the others are requested again. Only a reply that
        contains none of them proves that they are gone.
        """
        for _ in range(len(ids)):  # every iteration but the last finds one of them
            present = await ask.find_present(ids)
            there = [id for id in ids if id in present]
            ids = [id for id in ids if id not in present]
            await self._settle(there, [] if there else ids)
            if not there or not ids:
                return

    # -- both -------------------------------------------------------------------------------------------------------

    async def _batches(self, size: int) -> AsyncIterator[list[str]]:
        after = ""
        while ids := await self._sink.sweeps.find_absent(
            self._run.source, self._settings.after, size, after
        ):  # ids ascend
            after = ids[-1]
            yield ids

    async def _settle(self, present: Sequence[str], gone: Sequence[str]) -> None:
        if present:
            await self._sink.sweeps.mark_present(self._run.source, present)
            await self._store_count("present", self._counts.get("present", 0) + len(present))
        if gone:
            deleted = await self._sink.sweeps.delete(self._run.id, gone, "swept")
            await self._store_count("deleted", self._counts.get("deleted", 0) + deleted)

    async def _store_count(self, name: str, count: int) -> None:
        """Stored immediately, so that work continues correctly after a crash."""
        if self._counts.get(name) == count:
            return
        self._counts[name] = count
        row = await self._sink.runs.find(self._run.id) or self._run
        await self._sink.runs.finish(row.id, row.state, row.why, {**row.notes, "deletes": dict(self._counts)})
