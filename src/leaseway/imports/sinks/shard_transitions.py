"""What workers and pages do to a shard, and which rows of a page changed. Pure, and shared by all sinks."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from leaseway.domain.errors import BadValue
from leaseway.domain.ids import Instant
from leaseway.imports.domain.page import BadRow, WriteCounts
from leaseway.imports.domain.partition import Shard, canonical
from leaseway.imports.domain.run_state import Profile, ShardRow, ShardState
from leaseway.imports.sinks.port import PageWrite
from leaseway.imports.sinks.row_encoding import IS_DELETED, Line, is_storable_id, replace_surrogates

RECENT_MAX = 8
"""Longer loops end at the guard for pages."""
PATHS_MAX = 300
"""Paths of a profile. Documents with values as keys have new paths in every document."""
FLAGGED = "flagged"
"""The reason for rows that the source itself reports as deleted."""
OPEN = (ShardState.WAITING, ShardState.RUNNING)


def check_page_write(page: PageWrite) -> None:
    if (page.state is ShardState.SPLIT) != bool(page.children):
        raise BadValue("children", "are required for a split shard, and only for a split shard")
    if page.state is ShardState.WAITING:
        raise BadValue("state", "a shard with pages cannot be waiting")
    if any(child.key == page.shard for child in page.children):
        raise BadValue("children", f"{page.shard} cannot be its own child; the predicate was not split")


def check_shards(shards: Sequence[Shard]) -> None:
    twice = [key for key, times in Counter(shard.key for shard in shards).items() if times > 1]
    if twice:
        raise BadValue("shards", f"{twice[0]} is listed twice; every predicate makes one shard")


def new_shard_row(run: str, shard: Shard, parent: str | None = None) -> ShardRow:
    return ShardRow(run=run, shard=shard, state=ShardState.WAITING, fence=0, cursor=None, parent=parent)


def begin_shard(row: ShardRow, fence: int, now: Instant) -> ShardRow | None:
    """None if a later worker has the shard."""
    if fence < row.fence:
        return None
    if fence == row.fence and row.attempts:  # the same worker repeats the call after a lost reply
        return row
    started_at = now if row.started_at is None else row.started_at
    return reopen_shard(
        replace(row, fence=fence, attempts=row.attempts + 1, resumed_at=row.cursor, started_at=started_at)
    )


def reopen_shard(row: ShardRow) -> ShardRow:
    """Finished shards stay finished. A parked shard is reopened: jobs for it exist only after an operator resumed the
    run.
    """
    if row.state in (ShardState.DONE, ShardState.SPLIT):
        return row
    return replace(row, state=ShardState.RUNNING, why=None, finished_at=None)


def accepts_page(row: ShardRow, page: PageWrite) -> bool:
    """False if a worker with a larger fence has the shard, or if the page was written before."""
    if page.fence < row.fence or row.state not in OPEN or is_same_cursor(page.before, row.cursor) is False:
        return False
    # If the cursor does not move, only the hash tells a page from its repetition.
    stays = page.state is ShardState.RUNNING and is_same_cursor(page.before, page.after)
    return not (stays and page.page_hash and row.recent[-1:] == (page.page_hash,))


def is_same_cursor(one: Mapping[str, object] | None, other: Mapping[str, object] | None) -> bool:
    return canonical(one) == canonical(other)


def apply_page(row: ShardRow, page: PageWrite, written: WriteCounts, now: Instant) -> ShardRow:
    """The shard after an accepted page."""
    return replace(
        row,
        state=page.state,
        fence=page.fence,
        cursor=page.after,
        pages=row.pages + 1,
        rows=row.rows + written.rows,
        inserted=row.inserted + written.inserted,
        updated=row.updated + written.updated,
        unchanged=row.unchanged + written.unchanged,
        stale=row.stale + written.stale,
        quarantined=row.quarantined + written.quarantined,
        requests=row.requests + page.requests,
        size_bytes=row.size_bytes + page.size_bytes,
        page_limit=page.page_limit,
        recent=(*row.recent, page.page_hash)[-RECENT_MAX:] if page.page_hash else row.recent,
        guards=dict(Counter(row.guards) + Counter(page.guards)),
        why=page.why,
        finished_at=None if page.state in OPEN else now,
        profile=add_profile(row.profile, page.profile),
    )


def note_shard(
    row: ShardRow, fence: int, guards: Mapping[str, int], why: str | None, requests: int = 0
) -> ShardRow | None:
    """None if a later worker has the shard, or if it has ended."""
    if fence < row.fence or row.state not in OPEN:
        return None
    return replace(
        row,
        fence=fence,
        guards=dict(Counter(row.guards) + Counter(guards)),
        why=row.why if why is None else why,
        requests=row.requests + requests,
    )


def add_profile(known: Profile, more: Profile) -> Profile:
    """The sum of both profiles. Once there are enough paths, new ones are ignored."""
    if not more:
        return known
    sum_of = {path: dict(types) for path, types in known.items()}
    for name, types in more.items():
        path = replace_surrogates(name)
        if path in sum_of or len(sum_of) < PATHS_MAX:
            counts = sum_of.setdefault(path, {})
            for type_, count in types.items():
                counts[type_] = counts.get(type_, 0) + count
    return sum_of


def ids_seen(lines: Sequence[Line], bad: Sequence[BadRow]) -> list[str]:
    """Ids that the source still has. A bad record exists as well, and its row must not be taken for deleted."""
    living = [line[0] for line in lines if not line[IS_DELETED]]
    return living + [row.external_id for row in bad if row.external_id is not None and is_storable_id(row.external_id)]


class StoredRowState(NamedTuple):
    """The stored fields of a row that decide whether a new version is written."""

    stamp: Instant
    content_hash: str
    is_deleted: bool


class PageChanges(NamedTuple):
    new: list[Line]
    changed: list[Line]
    counts: WriteCounts


def classify_rows(
    lines: Sequence[Line], known: Mapping[str, StoredRowState], quarantined: int, overwrites: bool = False
) -> PageChanges:
    """Older rows never replace newer ones, unless the run overwrites them. Equal rows are not written again."""
    new, changed, stale = [], [], 0
    for line in lines:
        stored = known.get(line[0])
        if stored is None:
            new.append(line)
        elif line[1] < stored.stamp and not overwrites:
            stale += 1
        elif line[IS_DELETED] != stored.is_deleted or is_other_version(line, stored):
            changed.append(line)
    unchanged = len(lines) - len(new) - len(changed) - stale
    return PageChanges(new, changed, WriteCounts(len(new), len(changed), unchanged, stale, quarantined))


def is_other_version(line: Line, stored: StoredRowState) -> bool:
    """The content of a tombstone is not the content of the row, so tombstones are compared by their stamps: a page that
    was read before the later one must not restore the row."""
    stamp, content_hash = line[1:3]
    return bool(stamp != stored.stamp if stored.is_deleted else content_hash != stored.content_hash)
