"""Guards: what must not be trusted about a page, and the reaction. Every guard has a name and is counted.

    ceiling          more pages, rows or bytes than a shard may have            split or park
    repeated_page    the same ids as a recent page, or no ids and the same      park
                     next cursor
    stuck_cursor     the next cursor is not after this one                      park
    order_violated   ids do not ascend as the source declares                   retry, then fail; park if the first page
                                                                                never ascends
    empty_page       an empty page does not prove the end                       confirm
    shifted          records moved while pages were read by position            the run is at best unverified
    truncated        a full page, and no way to request the next one            split or park
    filter_ignored   a record that does not belong to this shard                park before anything is written
    source_failed    the source cannot be read                                  park
    bad_rows         too many bad records, or a page without a single key       park
    heavy_page       the source cannot deliver a page of this size              halve the page size
    source_error     an error of the source (5xx)                               the same page once more
    wrong_body       not JSON, or not the declared shape                        retry, then fail; park if every first
                                                                                page is the same
    duplicate        a record that this shard contained before                  warn if there are many
    yield_collapse   far fewer rows than the last complete run had              the run is suspect
    throttled        the source asks for a longer wait than a handler allows    the job waits, no attempt is used
    shared           not a guard: the rest of a shard was split for idle workers

A shard is done only with positive proof of its end. In doubt, a page is fetched again or made smaller, or the shard is
parked for an operator.
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from leaseway.imports.domain.page import Page, Record
from leaseway.imports.domain.partition import Cursor, canonical
from leaseway.imports.domain.run_state import ShardRow

RECENT_MAX = 8
LIMIT_MIN = 50
GROW_AFTER_PAGES = 20


class Ceilings(Struct, frozen=True, kw_only=True):
    pages: int = 100_000
    rows: int = 50_000_000
    size_bytes: int = 1 << 40


class Expectation(Struct, frozen=True, kw_only=True):
    """The request, and what the source declares about its pages."""

    limit: int
    cursor: Cursor | None
    key: Callable[[Record], Any]
    """The id of a record, or None."""
    is_ordered: bool
    """Ids ascend strictly, within pages and across them."""
    is_ours: Callable[[Record], bool]
    """Whether a record belongs to the shard, for filters that the source itself must apply."""
    has_next: bool
    """Whether the source can be asked for a page after this one."""
    short_page_is_end: bool
    ceilings: Ceilings = Ceilings()


class ContinueShard(Struct, frozen=True):
    page_hash: str


class EndShard(Struct, frozen=True):
    page_hash: str


class ConfirmEnd(Struct, frozen=True):
    """The page looks like the end. Request one record past the cursor; the second empty answer confirms the end."""

    page_hash: str


class SplitShard(Struct, frozen=True):
    guard: str
    why: str
    keeps_page: bool
    page_hash: str = ""


class ParkShard(Struct, frozen=True):
    guard: str
    why: str


class RetryPage(Struct, frozen=True):
    """The page may be correct the next time: the attempt fails, and the job is retried later."""

    guard: str
    why: str


PageVerdict = ContinueShard | EndShard | ConfirmEnd | SplitShard | ParkShard | RetryPage


def judge_page(page: Page, row: ShardRow, expected: Expectation) -> PageVerdict:
    """Judge a page before any of it is written."""
    stranger = next((record for record in page.records if not expected.is_ours(record)), None)
    if stranger is not None:
        return ParkShard(
            "filter_ignored",
            f"record {expected.key(stranger)!r} does not belong to this shard: the source ignored the filter",
        )
    ids = [expected.key(record) for record in page.records]
    if expected.is_ordered and (problem := find_disorder(ids, expected.cursor)) is not None:
        return RetryPage("order_violated", problem)
    passed = [] if expected.cursor is None or "pass" not in expected.cursor else [("pass", expected.cursor["pass"])]
    page_hash = hash_ids([*(ids or [canonical(page.next)]), *passed])
    if ids and page_hash in row.recent:
        return ParkShard("repeated_page", f"the same {len(ids):,} records were returned again")
    if page.next is not None and page_hash in row.recent:
        return ParkShard(
            "repeated_page", f"an empty page has the same next cursor as a recent one: {canonical(page.next)}"
        )
    if page.next is not None and canonical(page.next) == canonical(expected.cursor or {}):
        if page.is_empty:
            # A feed of changes that has nothing new: the next cursor is the current one.
            return ConfirmEnd(page_hash)
        return ParkShard("stuck_cursor", f"the next cursor is the current one: {canonical(page.next)}")
    if page.next is None:
        return judge_last_page(page, expected, page_hash)
    if page.is_end:
        return EndShard(page_hash)
    is_short = page.is_end is None and page.raw_count < expected.limit
    if is_short and expected.short_page_is_end and page.raw_count:
        return EndShard(page_hash)
    if is_short and page.is_empty:
        return ConfirmEnd(page_hash)
    # A short page is written like any other, and the next one is its confirmation.
    return check_ceilings(page, row, expected.ceilings, page_hash)


def find_disorder(ids: Sequence[Any], cursor: Cursor | None) -> str | None:
    before = None if cursor is None else cursor.get("after")
    for each in ids:
        if each is None:
            continue  # a bad row; it is counted elsewhere
        if before is not None and not is_after(each, before):
            return f"record {each!r} came after {before!r}"
        before = each
    return None


def is_after(one: Any, other: Any) -> bool:
    try:
        return bool(one > other)
    except TypeError:  # numbers and texts have no common order
        return False


def judge_last_page(page: Page, expected: Expectation, page_hash: str) -> PageVerdict:
    if page.is_end:
        return EndShard(page_hash)
    if page.raw_count >= expected.limit and not expected.has_next:
        return SplitShard(
            "truncated", f"a full page of {page.raw_count:,}, and the next page cannot be requested", keeps_page=True
        )
    return EndShard(page_hash) if expected.short_page_is_end and page.raw_count else ConfirmEnd(page_hash)


def check_ceilings(page: Page, row: ShardRow, ceilings: Ceilings, page_hash: str) -> PageVerdict:
    over = {
        "pages": row.pages + 1 >= ceilings.pages,
        "rows": row.rows + len(page.records) >= ceilings.rows,
        "bytes": row.size_bytes + page.size_bytes >= ceilings.size_bytes,
    }
    broken = [name for name, is_over in over.items() if is_over]
    if broken:
        return SplitShard(
            "ceiling", f"it has more {broken[0]} than a shard may have", keeps_page=True, page_hash=page_hash
        )
    return ContinueShard(page_hash)


def hash_ids(ids: Sequence[Any]) -> str:
    # Not encoded as JSON: an id can be text that no encoding accepts, and then only its row is bad, not the page.
    return hashlib.sha256(repr(list(ids)).encode()).hexdigest()[:16]


def halve_page_limit(limit: int, least: int = LIMIT_MIN) -> int:
    """After a page that the source could not deliver. Never below the minimum."""
    return max(limit // 2, min(least, limit))


def grow_page_limit(limit: int, wanted: int, good_pages: int) -> int:
    """After some good pages, a quarter more, up to the configured limit."""
    return min(limit + limit // 4, wanted) if good_pages and good_pages % GROW_AFTER_PAGES == 0 else limit
