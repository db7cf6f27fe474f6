"""Ways of paging: cursor ─► request parameters; reply ─► next cursor and whether the end is reached.

`is_end` is True only if the reply says so, False if it says that there is more, and None if it says nothing.
"""

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Protocol
from urllib.parse import parse_qsl, urlencode, urljoin, urlsplit, urlunsplit

from leaseway.imports.domain.jsonpath import MISSING, parse_path
from leaseway.imports.domain.page import Record
from leaseway.imports.domain.shard import Cursor, Predicate
from leaseway.imports.rows import KEY_LENGTH_MAX
from leaseway.imports.sources.port import BadReply
from leaseway.imports.spec.model import (
    KeysetPaging,
    LinkPaging,
    OffsetPaging,
    PageNumberPaging,
    Resource,
    SinglePaging,
    TokenPaging,
)

NEXT_LINK = re.compile(r"<([^>]*)>\s*;[^,<]*\brel\s*=\s*\"?(?:[^\",<]*\s)?next\b", re.IGNORECASE)
TOKEN_LENGTH_MAX = 4_000
NAMES_SHOWN = 8


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


class Pager(Protocol):
    def params(self, asked: PageQuery) -> dict[str, Any]: ...

    def onward(self, asked: PageQuery, answer: PageReply) -> NextPage: ...


def make_pager(resource: Resource, auth_param: str | None) -> Pager:
    match resource.page:
        case KeysetPaging() as page:
            return KeysetPager(page, resource.key)
        case OffsetPaging() as page:
            return OffsetPager(page)
        case PageNumberPaging() as page:
            return PageNumberPager(page)
        case LinkPaging() as page:
            return LinkPager(page, auth_param)
        case TokenPaging() as page:
            return TokenPager(page)
        case SinglePaging() as page:
            return SinglePager(page)


def limit_param(page: Any, limit: int) -> dict[str, Any]:
    return {} if page.limit_param is None else {page.limit_param: limit}


class KeysetPager:
    def __init__(self, page: KeysetPaging, key: str) -> None:
        self._page = page
        self._name = key
        self._get = parse_path("key", key).first
        self._more = None if page.more is None else parse_path("page.more", page.more)
        self._is_numeric = isinstance(page.start, int)

    def record_key(self, record: Record) -> Any:
        """The key to compare and to continue after, or None."""
        key = self._get(record)
        if isinstance(key, str) and len(key) > KEY_LENGTH_MAX:
            return None  # a bad row
        if isinstance(key, str) and self._is_numeric and key.isascii() and key.isdecimal():
            return int(key)
        return key if isinstance(key, int | str) and not isinstance(key, bool) and key != "" else None

    def params(self, asked: PageQuery) -> dict[str, Any]:
        after = self._after(asked)
        if after is None:
            return limit_param(self._page, asked.limit)
        value = after + 1 if self._page.is_inclusive and isinstance(after, int) else after
        return {self._page.param: value, **limit_param(self._page, asked.limit)}

    def _after(self, asked: PageQuery) -> Any:
        if asked.cursor is not None:
            return asked.cursor["after"]
        low = (asked.predicate.get("id") or (None, None))[0]
        # Ids are integers: from `low` on is the same as after `low` - 1.
        return self._page.start if low is None else low - 1

    def onward(self, asked: PageQuery, answer: PageReply) -> NextPage:
        if not answer.raw:
            return NextPage(None, confirmed_end(self._said_end(answer.body), answer))
        keys = self._keys(answer)
        high = (asked.predicate.get("id") or (None, None))[1]
        # With ascending ids, no record of the shard follows. In the wrong order this would prove nothing.
        is_past = high is not None and isinstance(keys[-1], int) and keys[-1] >= high - 1 and are_ascending(keys)
        is_end = True if is_past else self._said_end(answer.body)
        return NextPage(None if is_end else {"after": keys[-1]}, is_end)

    def _said_end(self, body: Any) -> bool | None:
        more = MISSING if self._more is None else self._more.first(body)
        return None if more is MISSING or more is None else not more

    def keys_in(self, raw: Sequence[Record]) -> list[Any]:
        return [key for key in map(self.record_key, raw) if key is not None]

    def _keys(self, answer: PageReply) -> list[Any]:
        """At least one key, and all of one type."""
        keys = self.keys_in(answer.raw)
        if not keys:
            raise BadReply(
                f"none of {len(answer.raw):,} records has the key {self._name!r}; {describe_fields(answer.raw[0])}"
            )
        if len({type(key) for key in keys}) > 1:
            raise BadReply(f"the key {self._name!r} is a number in some records and text in others")
        return keys


class OffsetPager:
    def __init__(self, page: OffsetPaging) -> None:
        self._page = page

    def params(self, asked: PageQuery) -> dict[str, Any]:
        return {self._page.param: query_offset(asked), **limit_param(self._page, asked.limit)}

    def onward(self, asked: PageQuery, answer: PageReply) -> NextPage:
        total = read_count(self._page.total, answer.body)
        if (fewer := shrunk_by(asked, total)) > 0:
            return NextPage(offset_cursor(max(query_offset(asked) - fewer, 0), total), False)
        done = query_offset(asked) + len(answer.raw)
        is_end = None if total is None else done >= total
        return NextPage(
            offset_cursor(done, total) if answer.raw and not is_end else None, confirmed_end(is_end, answer)
        )


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
        total = read_count(self._page.total, answer.body)
        if (fewer := shrunk_by(asked, total)) > 0:
            size = len(answer.raw) if asked.cursor is None else asked.cursor["size"]
            return NextPage({**offset_cursor(max(done - fewer, 0), total), "size": size}, False)
        skip = done % limit
        done_now = done + max(len(answer.raw) - skip, 0)
        is_end = self._is_end(answer, done // limit + 1, done_now)
        # The first page shows the real page size of the source.
        size = len(answer.raw) if asked.cursor is None else asked.cursor["size"]
        goes_on = done_now > done and not is_end
        return NextPage(
            {**offset_cursor(done_now, total), "size": size} if goes_on else None, confirmed_end(is_end, answer), skip
        )

    def _is_end(self, answer: PageReply, passed: int, done: int) -> bool | None:
        total, pages = read_count(self._page.total, answer.body), read_count(self._page.pages, answer.body)
        if total is not None:
            return done >= total
        return None if pages is None else passed >= pages

    def _after_number(self, asked: PageQuery, answer: PageReply) -> NextPage:
        number = self._number(asked)
        pages = read_count(self._page.pages, answer.body)
        is_end = None if pages is None else number - self._page.start + 1 >= pages
        return NextPage({"page": number + 1} if answer.raw and not is_end else None, confirmed_end(is_end, answer))


def offset_cursor(done: int, total: int | None) -> dict[str, Any]:
    """A cursor that counts records, with the total at that time if the source reports it."""
    return {"offset": done} if total is None else {"offset": done, "total": total}


def shrunk_by(asked: PageQuery, total: int | None) -> int:
    """How many records disappeared since the last page. The following records moved forward by as many, and this page
    may have missed them, so reading goes back by as many.
    """
    before = None if asked.cursor is None else asked.cursor.get("total")
    return 0 if before is None or total is None else int(before) - total


def query_offset(asked: PageQuery) -> int:
    return 0 if asked.cursor is None else int(asked.cursor["offset"])


class LinkPager:
    def __init__(self, page: LinkPaging, auth_param: str | None) -> None:
        self._page = page
        self._path = None if page.next is None else parse_path("page.next", page.next)
        self._auth_param = auth_param

    def params(self, asked: PageQuery) -> dict[str, Any]:
        return limit_param(self._page, asked.limit) if asked.cursor is None else {}

    def onward(self, asked: PageQuery, answer: PageReply) -> NextPage:
        link = next_link(answer.headers) if self._path is None else self._path.first(answer.body)
        if link is None or link is MISSING or link == "":
            is_said = link is not MISSING or bool(answer.raw)
            return NextPage(None, True if is_said else None)
        return NextPage({"next": self._cleaned(answer.url, link)}, False)

    def _cleaned(self, url: str, link: Any) -> str:
        """The URL of the next page without the secret, because cursors are stored."""
        if not isinstance(link, str) or len(link) > TOKEN_LENGTH_MAX:
            raise BadReply(f"the link to the next page is not a URL: {str(link)[:100]!r}")
        target = urlsplit(urljoin(url, link))
        if (target.scheme, target.netloc) != urlsplit(url)[:2]:
            # Every request contains the key, which is meant for this source only.
            raise BadReply(f"the link to the next page leads to another server: {target.scheme}://{target.netloc}")
        query = [pair for pair in parse_qsl(target.query, keep_blank_values=True) if pair[0] != self._auth_param]
        return urlunsplit(target._replace(query=urlencode(query), fragment=""))


class TokenPager:
    def __init__(self, page: TokenPaging) -> None:
        self._page = page
        self._path = parse_path("page.next", page.next)
        self._more = None if page.more is None else parse_path("page.more", page.more)

    def params(self, asked: PageQuery) -> dict[str, Any]:
        token = {} if asked.cursor is None else {self._page.param: asked.cursor["token"]}
        return {**token, **limit_param(self._page, asked.limit)}

    def onward(self, asked: PageQuery, answer: PageReply) -> NextPage:
        token = self._path.first(answer.body)
        more = MISSING if self._more is None else self._more.first(answer.body)
        if more is False:
            return NextPage(None, True)
        if token is None or token is MISSING or token == "":
            is_said = more is MISSING and (token is not MISSING or bool(answer.raw))
            return NextPage(None, True if is_said else None)
        if not isinstance(token, str | int) or len(str(token)) > TOKEN_LENGTH_MAX:
            raise BadReply(f"the token of the next page must be text or a number (is {str(token)[:100]!r})")
        return NextPage({"token": token}, False)


class SinglePager:
    """A full page is the only sign of truncation, if its size was requested."""

    def __init__(self, page: SinglePaging) -> None:
        self._page = page

    def params(self, asked: PageQuery) -> dict[str, Any]:
        return limit_param(self._page, asked.limit)

    def onward(self, asked: PageQuery, answer: PageReply) -> NextPage:
        may_be_cut = self._page.limit_param is not None and len(answer.raw) >= asked.limit
        return NextPage(None, True if answer.raw and not may_be_cut else None)


def are_ascending(keys: Sequence[Any]) -> bool:
    return all(low < high for low, high in pairwise(keys))


def confirmed_end(is_end: bool | None, answer: PageReply) -> bool | None:
    """An empty page with more to come is contradictory, so nothing is known about the end."""
    return None if is_end is False and not answer.raw else is_end


def read_count(path: str | None, body: Any) -> int | None:
    if path is None:
        return None
    value = parse_path("page", path).first(body)
    if isinstance(value, str) and len(value) <= KEY_LENGTH_MAX and value.isascii() and value.isdecimal():
        value = int(value)
    if value is MISSING or value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise BadReply(f"{path} must be a count (is {str(value)[:100]!r})")
    return value


def next_link(headers: Mapping[str, str]) -> Any:
    """The URL of a Link header with rel="next", or MISSING."""
    found = NEXT_LINK.search(headers.get("link") or headers.get("Link") or "")
    return MISSING if found is None else found[1]


def describe_fields(record: Any) -> str:
    if not isinstance(record, dict):
        return f"the first one is not an object but {type(record).__name__}; check resource.records"
    return f"they have {', '.join(sorted(map(str, record))[:NAMES_SHOWN])} …; check resource.key"
