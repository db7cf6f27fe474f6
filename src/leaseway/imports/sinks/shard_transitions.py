"""What a worker and its pages do to a shard, and which rows of a page are news: decided purely, once for all sinks."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from leaseway.domain.errors import BadValue
from leaseway.domain.ids import Instant
from leaseway.imports.domain.page import BadRow, WriteCounts
from leaseway.imports.domain.run_state import Profile, ShardRow, ShardState
from leaseway.imports.domain.shard import Shard, canonical
from leaseway.imports.sinks.port import PageWrite
from leaseway.imports.sinks.row_encoding import IS_DELETED, Line, is_storable_id, replace_surrogates

RECENT_MAX = 8
"""Loops longer than this end at the ceiling of pages."""
PATHS_MAX = 300
"""Of a profile. Documents whose keys are values have a new path in each of them."""
FLAGGED = "flagged"
"""Why a row is deleted of which the source says so itself."""
OPEN = (ShardState.WAITING, ShardState.RUNNING)


def check_page_write(page: PageWrite) -> None:
    if (page.state is ShardState.SPLIT) != bool(page.children):
        raise BadValue("children", "a shard that is split has children, and no other has")
    if page.state is ShardState.WAITING:
        raise BadValue("state", "a shard that was written to does not wait any more")
    if any(child.key == page.shard for child in page.children):
        raise BadValue("children", f"{page.shard} cannot be its own child; the predicate was not split")


def check_shards(shards: Sequence[Shard]) -> None:
    twice = [key for key, times in Counter(shard.key for shard in shards).items() if times > 1]
    if twice:
        raise BadValue("shards", f"{twice[0]} is there twice; each predicate makes one shard")


def new_shard_row(run: str, shard: Shard, parent: str | None = None) -> ShardRow:
    return ShardRow(run=run, shard=shard, state=ShardState.WAITING, fence=0, cursor=None, parent=parent)


def begin_shard(row: ShardRow, fence: int, now: Instant) -> ShardRow | None:
    """None: a later worker has it."""
    if fence < row.fence:
        return None
    if fence == row.fence and row.attempts:  # the same worker, which lost an answer and asks where it stands
        return row
    started_at = now if row.started_at is None else row.started_at
    return reopen_shard(
        replace(row, fence=fence, attempts=row.attempts + 1, resumed_at=row.cursor, started_at=started_at)
    )


def reopen_shard(row: ShardRow) -> ShardRow:
    """What is finished stays finished. What a guard stopped, somebody has looked at: else no worker would come."""
    if row.state in (ShardState.DONE, ShardState.SPLIT):
        return row
    return replace(row, state=ShardState.RUNNING, why=None, finished_at=None)


def accepts_page(row: ShardRow, page: PageWrite) -> bool:
    """False: somebody with a larger fence has it, or the page was written before."""
    if page.fence < row.fence or row.state not in OPEN or is_same_cursor(page.before, row.cursor) is False:
        return False
    # A cursor that stays where it is cannot tell a page from its repetition; the page's own hash can.
    stays = page.state is ShardState.RUNNING and is_same_cursor(page.before, page.after)
    return not (stays and page.page_hash and row.recent[-1:] == (page.page_hash,))


def is_same_cursor(one: Mapping[str, object] | None, other: Mapping[str, object] | None) -> bool:
    return canonical(one) == canonical(other)


def apply_page(row: ShardRow, page: PageWrite, written: WriteCounts, now: Instant) -> ShardRow:
    """The shard after a page that may turn."""
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


def note_shard(row: ShardRow, fence: int, guards: Mapping[str, int], why: str | None) -> ShardRow | None:
    """None: a later worker has it, or it has ended."""
    if fence < row.fence or row.state not in OPEN:
        return None
    return replace(
        row, fence=fence, guards=dict(Counter(row.guards) + Counter(guards)), why=row.why if why is None else why
    )


def add_profile(known: Profile, more: Profile) -> Profile:
    """Both together. Once there are enough paths, new ones are left out, and those that are known go on counting."""
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
    """What the source still has. A record that is bad is there as well: else its row would be taken for deleted."""
    living = [line[0] for line in lines if not line[IS_DELETED]]
    return living + [row.external_id for row in bad if row.external_id is not None and is_storable_id(row.external_id)]


class StoredRow(NamedTuple):
    """What is stored of a row, as far as news are judged by it."""

    stamp: Instant
    content_hash: str
    is_deleted: bool


class PageChanges(NamedTuple):
    new: list[Line]
    changed: list[Line]
    counts: WriteCounts


def classify_rows(lines: Sequence[Line], known: Mapping[str, StoredRow], quarantined: int) -> PageChanges:
    """Older rows never replace newer ones. Equal ones are not written again, unless one is deleted and one is not."""
    new, changed, stale = [], [], 0
    for line in lines:
        stored = known.get(line[0])
        if stored is None:
            new.append(line)
        elif line[1] < stored.stamp:
            stale += 1
        elif line[2] != stored.content_hash or line[IS_DELETED] != stored.is_deleted:
            changed.append(line)
    unchanged = len(lines) - len(new) - len(changed) - stale
    return PageChanges(new, changed, WriteCounts(len(new), len(changed), unchanged, stale, quarantined))
