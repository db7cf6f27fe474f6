"""Paging by position: cursor ─► offset or page number; reply ─► next cursor.

A position means another record after a record before it was inserted or deleted. Each page of offset paging therefore
starts one record early: if that record is not the last one of the previous page, the records have moved, and reading
goes back until it finds where it was. Page numbers cannot overlap, so a run with them proves less.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from leaseway.domain.errors import TerminalError
from leaseway.imports.domain.jsonpath import MISSING, parse_path
from leaseway.imports.domain.page import Record
from leaseway.imports.domain.partition import Cursor, Predicate
from leaseway.imports.rows import KEY_LENGTH_MAX
from leaseway.imports.sources.port import BadReply
from leaseway.imports.spec.model import HEADER, OffsetPaging, PageNumberPaging

KEYS_KEPT = 5
"""Keys of the last records. Several, because the last record itself may be deleted."""
PASSES_MAX = 3
"""How often reading starts again at the beginning, after none of these records was found."""


class PageQuery(NamedTuple):
    predicate: Predicate
    cursor: Cursor | None
    limit: int


class PageReply(NamedTuple):
    url: str
    body: Any
    headers: Mapping[str, str]
    raw: Sequence[Record]


class NextPage(NamedTuple):
    next: Cursor | None
    is_end: bool | None
    skip: int = 0
    """Records at the beginning of the page that were read before."""
    is_shifted: bool = False
    """Records before this page appeared or disappeared since the last page."""


def limit_param(page: Any, limit: int) -> dict[str, Any]:
    return {} if page.limit_param is None else {page.limit_param: limit}


class OffsetPager:
    def __init__(self, page: OffsetPaging, key: str) -> None:
        self._page = page
        self._key = parse_path("key", key).first

    def params(self, asked: PageQuery) -> dict[str, Any]:
        return {self._page.param: self._start(asked), **limit_param(self._page, asked.limit)}

    def _start(self, asked: PageQuery) -> int:
        return query_offset(asked) - (1 if self._overlaps(asked) else 0)

    def _overlaps(self, asked: PageQuery) -> bool:
        """A page of one record has no room for the last one of the previous page."""
        return asked.cursor is not None and "last" in asked.cursor and asked.limit > 1 and query_offset(asked) > 0

    def onward(self, asked: PageQuery, answer: PageReply) -> NextPage:
        total = read_count(self._page.total, answer)
        require_count(self._page.total, asked, answer)
        if not self._overlaps(asked):
            return self._after(asked, answer, total, 0)
        assert asked.cursor is not None
        place = self._place_of(asked.cursor["last"], answer.raw)
        if place is None:
            return self._step_back(asked, asked.cursor, len(answer.raw), total)
        expected = int(asked.cursor.get("done", asked.cursor["offset"])) - 1
        is_last = self._read_key(answer.raw[place]) == asked.cursor["last"][-1]
        is_shifted = self._start(asked) + place != expected or not is_last
        return self._after(asked, answer, total, place + 1)._replace(is_shifted=is_shifted)

    def _after(self, asked: PageQuery, answer: PageReply, total: int | None, skip: int) -> NextPage:
        done = self._start(asked) + len(answer.raw)
        is_end = None if total is None else done >= total
        if is_end is False and len(answer.raw) <= skip:
            is_end = None  # contradictory: there should be more
        goes_on = len(answer.raw) > skip and not is_end
        cursor = {**offset_cursor(done, total), **self._keys_of(answer.raw), **same_pass(asked)}
        return NextPage(cursor if goes_on else None, is_end, skip)

    def _step_back(self, asked: PageQuery, cursor: Cursor, count: int, total: int | None) -> NextPage:
        """Records before this page were deleted, and the following ones moved forward. Nothing of it is written."""
        start = self._start(asked)
        if start > 0:
            back = {**offset_cursor(max(start - asked.limit + 2, 1), total), "last": cursor["last"]}
            back["done"] = cursor.get("done", cursor["offset"])
            return NextPage({**back, **same_pass(asked)}, False, skip=count)
        if (number := pass_number(asked) + 1) > PASSES_MAX:
            raise TerminalError(
                f"resource.page: the records are in another order in every reply; sort them with resource.page.fixed, "
                f"or use another cursor than {self._page.kind!r}"
            )
        return NextPage({**offset_cursor(0, total), "pass": number}, False, skip=count, is_shifted=True)

    def _place_of(self, last: Sequence[Any], raw: Sequence[Record]) -> int | None:
        """The position of the newest of these keys."""
        keys = [self._read_key(record) for record in raw]
        places = {key: place for place, key in reversed(list(enumerate(keys)))}  # the first place of each
        return next((places[key] for key in reversed(last) if key in places), None)

    def _keys_of(self, raw: Sequence[Record]) -> dict[str, Any]:
        keys = [key for record in raw[-KEYS_KEPT:] if (key := self._read_key(record)) is not None]
        return {"last": keys} if keys else {}

    def _read_key(self, record: Record) -> str | int | None:
        key = self._key(record)
        is_key = isinstance(key, int) or (isinstance(key, str) and len(key) <= KEY_LENGTH_MAX)
        return key if is_key and not isinstance(key, bool) else None


class PageNumberPager:
    """The cursor counts records, not pages, so the page size can change. If pages of the new size do not start at the
    cursor, records that were read before are skipped.
    """

    def __init__(self, page: PageNumberPaging) -> None:
        self._page = page

    def params(self, asked: PageQuery) -> dict[str, Any]:
        if self._page.limit_param is None:
            return {self._page.param: self._number(asked)}
        limit = self._limit(asked)
        return {self._page.param: query_offset(asked) // limit + self._page.start, self._page.limit_param: limit}

    def _number(self, asked: PageQuery) -> int:
        return self._page.start if asked.cursor is None else int(asked.cursor["page"])

    def _limit(self, asked: PageQuery) -> int:
        return asked.limit if asked.cursor is None else min(asked.limit, int(asked.cursor["size"]))

    def onward(self, asked: PageQuery, answer: PageReply) -> NextPage:
        require_count(self._page.total, asked, answer)
        require_count(self._page.pages, asked, answer)
        if self._page.limit_param is None:
            return self._after_number(asked, answer)
        limit, done = self._limit(asked), query_offset(asked)
        if len(answer.raw) > limit:
            # Then page numbers do not mean what they should, and records would be missed.
            sent, name = (
                f"{len(answer.raw):,} records were returned where {limit:,} were requested",
                self._page.limit_param,
            )
            raise BadReply(f"{sent}: the source does not support {name!r}; remove resource.page.limit_param")
        total = read_count(self._page.total, answer)
        if (fewer := shrunk_by(asked, total)) > 0:
            size = len(answer.raw) if asked.cursor is None else asked.cursor["size"]
            back = {**offset_cursor(max(done - fewer, 0), total), "size": size, "pass": pass_number(asked) + 1}
            # The records of this page are read again in their new places.
            return NextPage(back, False, skip=len(answer.raw), is_shifted=True)
        skip = done % limit
        done_now = done + max(len(answer.raw) - skip, 0)
        is_end = self._is_end(answer, done // limit + 1, done_now)
        # The first page shows the real page size of the source.
        size = len(answer.raw) if asked.cursor is None else asked.cursor["size"]
        goes_on = done_now > done and not is_end
        return NextPage(
            {**offset_cursor(done_now, total), "size": size, **same_pass(asked)} if goes_on else None,
            confirmed_end(is_end, answer),
            skip,
        )

    def _is_end(self, answer: PageReply, passed: int, done: int) -> bool | None:
        total, pages = read_count(self._page.total, answer), read_count(self._page.pages, answer)
        if total is not None:
            return done >= total
        return None if pages is None else passed >= pages

    def _after_number(self, asked: PageQuery, answer: PageReply) -> NextPage:
        number = self._number(asked)
        pages = read_count(self._page.pages, answer)
        is_end = None if pages is None else number - self._page.start + 1 >= pages
        return NextPage({"page": number + 1} if answer.raw and not is_end else None, confirmed_end(is_end, answer))


def offset_cursor(done: int, total: int | None) -> dict[str, Any]:
    """A cursor that counts records, with the total at that time if the source reports it."""
    return {"offset": done} if total is None else {"offset": done, "total": total}


def pass_number(asked: PageQuery) -> int:
    """How often reading has gone back. Pages that are read again are not mistaken for a loop."""
    return 0 if asked.cursor is None else int(asked.cursor.get("pass", 0))


def same_pass(asked: PageQuery) -> dict[str, int]:
    number = pass_number(asked)
    return {"pass": number} if number else {}


def shrunk_by(asked: PageQuery, total: int | None) -> int:
    """How many records disappeared since the last page. The following records moved forward by as many, and this page
    may have missed them, so reading goes back by as many.
    """
    before = None if asked.cursor is None else asked.cursor.get("total")
    return 0 if before is None or total is None else int(before) - total


def query_offset(asked: PageQuery) -> int:
    return 0 if asked.cursor is None else int(asked.cursor["offset"])


def confirmed_end(is_end: bool | None, answer: PageReply) -> bool | None:
    """An empty page with more to come is contradictory, so nothing is known about the end."""
    return None if is_end is False and not answer.raw else is_end


def reply_reader(field: str, text: str) -> Callable[[PageReply], Any]:
    """Reads a value of a reply: from its body, or from a header."""
    if not text.startswith(HEADER):
        first = parse_path(field, text).first
        return lambda answer: first(answer.body)
    name = text.removeprefix(HEADER).strip().lower()
    return lambda answer: next((value for key, value in answer.headers.items() if key.lower() == name), MISSING)


def require_count(path: str | None, asked: PageQuery, answer: PageReply) -> None:
    """Some sources count on the first page only. If even that has no count, the path is wrong."""
    if path is None or asked.cursor is not None or not answer.raw:
        return
    if reply_reader("page", path)(answer) is MISSING:
        raise BadReply(f"resource.page: {path} must lead to a count (is missing)")


def read_count(path: str | None, answer: PageReply) -> int | None:
    if path is None:
        return None
    value = reply_reader("page", path)(answer)
    if isinstance(value, str) and len(value) <= KEY_LENGTH_MAX and value.isascii() and value.isdecimal():
        value = int(value)
    if value is MISSING or value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise BadReply(f"resource.page: {path} must be a count (is {str(value)[:100]!r})")
    return value
