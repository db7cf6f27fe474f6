"""Ways of paging: cursor ─► request parameters; reply ─► next cursor and whether the end is reached.

`is_end` is True only if the reply says so, False if it says that there is more, and None if it says nothing.
"""

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Protocol
from urllib.parse import parse_qsl, urlencode, urljoin, urlsplit, urlunsplit

from leaseway.imports.domain.jsonpath import MISSING, FirstWhere, JsonPath, parse_path
from leaseway.imports.domain.page import Record
from leaseway.imports.rows import KEY_LENGTH_MAX
from leaseway.imports.sources.port import BadReply
from leaseway.imports.sources.positional_paging import (
    NextPage,
    OffsetPager,
    PageNumberPager,
    PageQuery,
    PageReply,
    confirmed_end,
    limit_param,
    reply_reader,
)
from leaseway.imports.spec.model import (
    HEADER,
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


class Pager(Protocol):
    def params(self, asked: PageQuery) -> dict[str, Any]: ...

    def onward(self, asked: PageQuery, answer: PageReply) -> NextPage: ...


def make_pager(resource: Resource, auth_param: str | None, trusted: Sequence[str] = ()) -> Pager:
    match resource.page:
        case KeysetPaging() as page:
            return KeysetPager(page, resource.key)
        case OffsetPaging() as page:
            return OffsetPager(page, resource.key)
        case PageNumberPaging() as page:
            return PageNumberPager(page)
        case LinkPaging() as page:
            return LinkPager(page, auth_param, trusted)
        case TokenPaging() as page:
            return TokenPager(page)
        case SinglePaging() as page:
            return SinglePager(page)


class KeysetPager:
    def __init__(self, page: KeysetPaging, key: str) -> None:
        self._page = page
        self._name = key
        self._get = parse_path("key", key).first
        self._more = None if page.more is None else reply_reader("page.more", page.more)
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
            return NextPage(None, confirmed_end(self._said_end(answer), answer))
        keys = self._keys(answer)
        high = (asked.predicate.get("id") or (None, None))[1]
        # With ascending ids, no record of the shard follows. In the wrong order this would prove nothing.
        is_past = high is not None and isinstance(keys[-1], int) and keys[-1] >= high - 1 and are_ascending(keys)
        is_end = True if is_past else self._said_end(answer)
        return NextPage(None if is_end else {"after": keys[-1]}, is_end)

    def _said_end(self, answer: PageReply) -> bool | None:
        more = MISSING if self._more is None else self._more(answer)
        return None if more is MISSING or more is None else is_no(more)

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


class LinkPager:
    def __init__(self, page: LinkPaging, auth_param: str | None, trusted: Sequence[str] = ()) -> None:
        self._page = page
        self._read = None if page.next is None else reply_reader("page.next", page.next)
        self._links = None if page.next is None else list_of_links(page.next)
        self._auth_param = auth_param
        self._trusted = {urlsplit(url)[:2] for url in trusted}

    def params(self, asked: PageQuery) -> dict[str, Any]:
        return limit_param(self._page, asked.limit) if asked.cursor is None else {}

    def onward(self, asked: PageQuery, answer: PageReply) -> NextPage:
        link = next_link(answer.headers) if self._read is None else self._read(answer)
        if link is None or link is MISSING or link == "":
            has_links = self._links is not None and isinstance(self._links.first(answer.body), list)
            is_said = link is not MISSING or bool(answer.raw) or has_links
            return NextPage(None, True if is_said else None)
        return NextPage({"next": self._cleaned(answer.url, link)}, False)

    def _cleaned(self, url: str, link: Any) -> str:
        """The URL of the next page without the secret, because cursors are stored."""
        if not isinstance(link, str) or len(link) > TOKEN_LENGTH_MAX:
            raise BadReply(f"the link to the next page is not a URL: {str(link)[:100]!r}")
        target = urlsplit(urljoin(url, link))
        origin = (target.scheme, target.netloc)
        if origin != urlsplit(url)[:2] and origin not in self._trusted:
            # Every request contains the key, which is meant for this source only.
            where = f"{target.scheme}://{target.netloc}"
            raise BadReply(
                f"the link to the next page leads to another server: {where}; if it is the same source, add it to "
                "source.trusted"
            )
        query = [pair for pair in parse_qsl(target.query, keep_blank_values=True) if pair[0] != self._auth_param]
        return urlunsplit(target._replace(query=urlencode(query), fragment=""))


class TokenPager:
    def __init__(self, page: TokenPaging) -> None:
        self._page = page
        self._read = reply_reader("page.next", page.next)
        self._more = None if page.more is None else reply_reader("page.more", page.more)
        self._is_in_body = page.param.startswith("$.")

    def params(self, asked: PageQuery) -> dict[str, Any]:
        token = {} if asked.cursor is None else {self._page.param: asked.cursor["token"]}
        return {**token, **limit_param(self._page, asked.limit)}

    def onward(self, asked: PageQuery, answer: PageReply) -> NextPage:
        token = self._read(answer)
        more = MISSING if self._more is None else self._more(answer)
        if more is not MISSING and more is not None and is_no(more):
            return NextPage(None, True)
        if token is None or token is MISSING or token == "":
            is_said = more is MISSING and (token is not MISSING or bool(answer.raw))
            return NextPage(None, True if is_said else None)
        kinds = (str, int, float, list, dict) if self._is_in_body else (str, int)
        if not isinstance(token, kinds) or len(str(token)) > TOKEN_LENGTH_MAX:
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


def is_no(value: Any) -> bool:
    """Headers contain texts."""
    return value.strip().lower() in ("", "false", "0", "no") if isinstance(value, str) else not value


def list_of_links(text: str) -> JsonPath | None:
    """The list in which a link is searched by its relation: without the link, the source says that nothing follows."""
    if text.startswith(HEADER):
        return None
    steps = parse_path("page.next", text).steps
    places = [place for place, step in enumerate(steps) if isinstance(step, FirstWhere)]
    return JsonPath(steps[: places[-1]]) if places else None


def are_ascending(keys: Sequence[Any]) -> bool:
    return all(low < high for low, high in pairwise(keys))


def next_link(headers: Mapping[str, str]) -> Any:
    """The URL of a Link header with rel="next", or MISSING."""
    found = NEXT_LINK.search(headers.get("link") or headers.get("Link") or "")
    return MISSING if found is None else found[1]


def describe_fields(record: Any) -> str:
    if not isinstance(record, dict):
        return f"the first one is not an object but {type(record).__name__}; check resource.records"
    return f"they have {', '.join(sorted(map(str, record))[:NAMES_SHOWN])} …; check resource.key"
