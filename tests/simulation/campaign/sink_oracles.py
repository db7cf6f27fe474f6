"""The contents of the sink's database, read without the sink's code, and the invariants after every call.

P1  a page is written only by the last worker that began its shard, and at the cursor with which it was fetched
P2  a call that was refused or failed changes nothing
P3  a page is written as a whole: its rows, its counters, its cursor and the shards that it adds
P4  no row becomes older, vanishes, or changes without a page that contains it
P5  counters are exact: every row of a page is counted once
P6  a page has only rows of its own shard
P7  a refused API key stops the whole run, and parks no shard
P8  no row is marked as deleted that still exists
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec
from tests.simulation.campaign.source_api import ATTEMPT

from leaseway.imports.domain.page import Row as PageRow
from leaseway.imports.domain.page import WriteCounts
from leaseway.imports.domain.partition import canonical, parse_instant
from leaseway.imports.domain.run_state import RunState, ShardState
from leaseway.imports.sinks.port import PageWrite
from leaseway.imports.sinks.sqlite.sink import SqliteSink
from leaseway.simulation.faulty_link import Statements
from leaseway.simulation.process import Process
from leaseway.simulation.promises import SharedDatabase
from leaseway.simulation.swarm import FaultRates
from leaseway.simulation.world import SimulatedWorld
from leaseway.virtual_time.loop import run_now

TABLE = "poi"


class Stored(NamedTuple):
    stamp: int
    content_hash: str
    first_seen: int
    document: str
    run: str
    deleted_at: int | None


class Place(NamedTuple):
    """The position of a shard."""

    state: str
    fence: int
    cursor: str | None
    pages: int
    rows: int
    inserted: int
    updated: int
    unchanged: int
    stale: int
    quarantined: int
    parent: str | None
    predicate: str


class Contents(NamedTuple):
    rows: Mapping[str, Stored]
    shards: Mapping[tuple[str, str], Place]
    bad: int
    runs: Mapping[str, str]
    """State by id."""


SELECT_ROWS = f"SELECT external_id, {', '.join(Stored._fields)} FROM {TABLE}"
SELECT_DIGEST = f"SELECT count(*), sum(stamp), sum(updated_at), count(deleted_at) FROM {TABLE}"
"""Whether rows have to be read again: every write of a row records its time. The sum and not the latest time, because
several pages may be written at one instant.
"""
SELECT_SHARDS = f"SELECT run, key, {', '.join(Place._fields)} FROM leaseway_shards"
COUNTED = ("inserted", "updated", "unchanged", "stale", "quarantined")


class Shelf:
    """The real sink of one world, and its judge."""

    def __init__(self, universe: SimulatedWorld, columns: Mapping[str, Any], faults: FaultRates) -> None:
        self.universe = universe
        self.faults = faults
        self._database = SharedDatabase()
        self.sink = SqliteSink(self._database.path, TABLE, columns, universe.now_us, inline=True)
        self.sink.tables.pages = self.sink.tables.durable = self._database
        run_now(self.sink.open())
        self._fuse = Statements(self.sink.tables.sql)
        self.sink.tables.sql = self._fuse
        universe.at_the_end.append(self._database.dispose)
        self._file = self._database.sqlite
        self._version = -1
        self.is_alive: Callable[[str], bool] = lambda key: True
        """In the source."""
        self._digest: tuple[Any, ...] = ()
        self._rows: Mapping[str, Stored] = {}
        self.contents = Contents({}, {}, 0, {})
        self.refresh()
        self._fences: dict[tuple[str, str], int] = {}
        """The largest fence with which a shard was begun."""
        self.has_failed = False
        self.told: set[tuple[str, int]] = set()
        """Attempts that have read that the run has failed, by job and fence."""
        self.on_write: Callable[[Place, Contents], Iterator[str]] = lambda place, contents: iter(())
        """Further violations after a page."""

    def refresh(self) -> Contents:
        """The current contents."""
        version = self._database.version
        if version != self._version:
            self._version = version
            digest = self._file.execute(SELECT_DIGEST).fetchone()
            if digest != self._digest:
                self._digest = digest
                self._rows = {key: Stored._make(values) for key, *values in self._file.execute(SELECT_ROWS)}
            self.contents = Contents(
                self._rows,
                {(run, key): Place._make(values) for run, key, *values in self._file.execute(SELECT_SHARDS)},
                self._file.execute("SELECT count(*) FROM leaseway_quarantine").fetchone()[0],
                dict(self._file.execute("SELECT id, state FROM leaseway_runs").fetchall()),
            )
        return self.contents

    # -- a call -----------------------------------------------------------------------------------------------------

    def execute(
        self, process: Process, verb: str, args: tuple[Any, ...], kwargs: dict[str, Any], fuse: int | None
    ) -> Any:
        """Execute one verb at one instant; the judge checks it before anything else happens."""
        before = self.contents
        if fuse is not None:
            self._fuse.burn(fuse)
        try:
            answer = run_now(attrgetter(verb)(self.sink)(*args, **kwargs))
        except Exception:
            self._accuse(untouched(before, self.refresh(), f"{process.name}: {verb} failed"))
            raise
        finally:
            self._fuse.put_out()
        after = self.refresh()
        self.universe.note(process.name, f"sink {verb} {brief(verb, args)}-> {told(verb, answer)}")
        self._saw(process, verb, args, answer, before, after)
        return answer

    def _saw(
        self, process: Process, verb: str, args: tuple[Any, ...], answer: Any, before: Contents, after: Contents
    ) -> None:
        match verb:
            case "shards.write":
                self._accuse(self._wrongs_of_write(process, args[0], answer, before, after))
            case "shards.begin":
                self._saw_begin(args, answer, before)
            case "runs.spend" if not answer:
                self.universe.books.reach("a run had spent its budget")
        if verb == "sweeps.delete":
            self._accuse(self._wrongs_of_delete(process, before, after))
        elif verb != "shards.write":
            self._accuse(same_rows(before, after, f"{process.name}: {verb}"))
        if verb == "runs.finish":
            self.has_failed = RunState.FAILED in after.runs.values()
        if verb == "runs.find":
            (self.told.add if self.has_failed else self.told.discard)(ATTEMPT.get())
        if self.has_failed:
            self.universe.books.reach("a run has failed by a refused key")

    def _saw_begin(self, args: tuple[Any, ...], answer: Any, before: Contents) -> None:
        run, shard, fence = args
        books = self.universe.books
        if answer is None:
            books.reach("a fenced worker could not begin")
            return
        self._fences[run, shard] = max(fence, self._fences.get((run, shard), 0))
        place = before.shards[run, shard]
        if place.cursor is not None and fence > place.fence and place.state == ShardState.RUNNING:
            books.reach("a shard was resumed in the middle")
        if place.state == ShardState.PARKED:
            books.reach("a parked shard was opened again")

    def _wrongs_of_delete(self, process: Process, before: Contents, after: Contents) -> Iterator[str]:
        """P8, and nothing else changes."""
        for key, old in before.rows.items():
            new = after.rows[key]
            if new._replace(deleted_at=old.deleted_at, run=old.run) != old:
                yield f"P4 {process.name}: a delete changed row {key}"
            if new.deleted_at is not None and old.deleted_at is None:
                self.universe.books.reach("a row that is gone was deleted")
                if self.is_alive(key):
                    yield f"P8 {process.name} deletes row {key}, which is alive"

    # -- a page -----------------------------------------------------------------------------------------------------

    def _wrongs_of_write(
        self, process: Process, page: PageWrite, answer: WriteCounts | None, before: Contents, after: Contents
    ) -> Iterator[str]:
        key = (page.run, page.shard)
        who = f"{process.name}: a page of {page.shard}"
        place, fence = before.shards[key], self._fences.get(key, 0)
        is_open = place.state in (ShardState.WAITING, ShardState.RUNNING)
        is_due = page.fence >= fence and is_open and place.cursor == text_of(page.before)
        if answer is None:
            self._note_refusal(page, fence, place)
            yield from untouched(before, after, f"{who} was refused")
            return
        if not is_due:
            now = f"the shard is {place.state}, begun with {fence}, at {place.cursor}"
            yield f"P1 {who} was written with fence {page.fence} after {text_of(page.before)}; {now}"
        self._note_page(page, answer)
        yield from wrong_counts(who, page, answer, place, after.shards[key])
        yield from wrong_rows(who, page, before, after)
        yield from wrong_place(who, page, after)
        if page.state is ShardState.PARKED and "answers 403" in (page.why or ""):
            yield f"P7 {who} parks its shard: {page.why}"
        yield from self.on_write(after.shards[key], after)
        yield from (f"P6 {who} has record {row.external_id}" for row in page.rows if not belongs(row, place))

    def _note_refusal(self, page: PageWrite, fence: int, place: Place) -> None:
        reach = self.universe.books.reach
        reach("a page of a fenced worker was refused" if page.fence < fence else "a page that was written came again")

    def _note_page(self, page: PageWrite, answer: WriteCounts) -> None:
        reach = self.universe.books.reach
        if page.state is ShardState.SPLIT:
            reach("a shard shared its rest with idle workers" if "shared" in page.guards else "a shard was split")
        if page.state is ShardState.PARKED:
            reach("a shard was parked")
        if answer.stale:
            reach("an older row did not replace a newer one")
        if answer.updated:
            reach("a row was updated")
        for guard in page.guards.keys() - {"shared"}:
            reach(f"guard: {guard}")

    def _accuse(self, wrongs: Iterable[str]) -> None:
        self.universe.judge.accuse(wrongs)


# -- violations
# ---------------------------------------------------------------------------------------------------------


def untouched(before: Contents, after: Contents, who: str) -> Iterator[str]:
    if before is not after and before != after:
        changed = [name for name in Contents._fields if getattr(before, name) != getattr(after, name)]
        yield f"P2 {who}, and {', '.join(changed)} changed"


def same_rows(before: Contents, after: Contents, who: str) -> Iterator[str]:
    if before.rows is not after.rows and before.rows != after.rows:
        yield f"P4 {who} changed rows"


def wrong_counts(who: str, page: PageWrite, answer: WriteCounts, before: Place, after: Place) -> Iterator[str]:
    """P5: of the answer and of the shard."""
    if answer.rows + answer.quarantined != len(page.rows) + len(page.bad):
        yield f"P5 {who} has {len(page.rows)} rows and {len(page.bad)} bad ones, and is counted as {answer}"
    for name in COUNTED:
        if getattr(after, name) != getattr(before, name) + getattr(answer, name):
            yield f"P5 {who}: {name} was {getattr(before, name)}, is {getattr(after, name)}, the page has {answer}"
    if (after.pages, after.rows) != (before.pages + 1, before.rows + answer.rows):
        yield f"P5 {who}: pages or rows of its shard are not counted"


def wrong_rows(who: str, page: PageWrite, before: Contents, after: Contents) -> Iterator[str]:
    """P3, P4."""
    ours = {row.external_id: row for row in page.rows}
    for key, old in before.rows.items():
        new = after.rows.get(key)
        if new is None:
            yield f"P4 {who}: row {key} vanished"
        elif new != old and key not in ours:
            yield f"P4 {who}: row {key} changed, which it does not have"
        elif new.stamp < old.stamp or new.first_seen != old.first_seen:
            yield f"P4 {who}: row {key} grew older, from {old.stamp} to {new.stamp}"
    for key in after.rows.keys() - before.rows.keys() - ours.keys():
        yield f"P4 {who}: row {key} appeared, which it does not have"
    for key, row in ours.items():
        if key not in after.rows or after.rows[key].stamp < row.stamp:
            yield f"P3 {who}: row {key} was not written"


def wrong_place(who: str, page: PageWrite, after: Contents) -> Iterator[str]:
    """P3: the cursor, the state and the children."""
    place = after.shards[page.run, page.shard]
    if (place.cursor, place.state) != (text_of(page.after), page.state):
        yield f"P3 {who}: its shard is {place.state} at {place.cursor}, should be {page.state} at {page.after}"
    for child in page.children:
        if (page.run, child.key) not in after.shards:
            yield f"P3 {who}: its child {child.key} is not there"


def belongs(row: PageRow, place: Place) -> bool:
    """P6, with an independent implementation of the predicate."""
    predicate, document = msgspec.json.decode(place.predicate), msgspec.json.decode(row.document)
    low, high = predicate.get("id", (None, None))
    is_within = (low is None or document["ID"] >= low) and (high is None or document["ID"] < high)
    countries = {str(each) for each in predicate.get("country", ())}
    since = predicate.get("window", (None, None))[0]
    is_since = since is None or row.stamp >= parse_instant(since)
    return is_within and is_since and (not countries or str(document["AddressInfo"]["CountryID"]) in countries)


def text_of(cursor: Any) -> str | None:
    return None if cursor is None else canonical(cursor)


def brief(verb: str, args: tuple[Any, ...]) -> str:
    match verb:
        case "shards.write":
            page = args[0]
            span = f"{text_of(page.before)} to {text_of(page.after)}"
            return f"{page.shard} #{page.fence} {span}, {len(page.rows)} rows, {page.state} {page.why or ''}"
        case "shards.begin" | "runs.spend" | "shards.note":
            # Without the reason: it may contain the name of the file, which differs in every run.
            return f"{' '.join(str(each) for each in args[1:4])} "
        case "runs.finish":
            return f"{args[0]} {args[1]} "
    return ""


def told(verb: str, answer: Any) -> str:
    match verb:
        case "shards.begin":
            return "nothing" if answer is None else f"{answer.state} at {text_of(answer.cursor)}"
        case "shards.write" | "runs.spend" | "shards.note" | "shards.count_open":
            return str(answer)
    return ""
