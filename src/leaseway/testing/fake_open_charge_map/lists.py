"""Other kinds of APIs, over any list of records: by offset, page number, link, cursor or key.

    /offset/NAME?offset=0&limit=100        {"items": […], "total": 28298}
    /page/NAME?page=1&per_page=100         {"items": […], "page": 1, "pages": 283}
    /link/NAME?limit=100                   {"items": […], "next": "http://…" or null}, and a Link header
    /token/NAME?cursor=…&limit=100         {"items": […], "next_cursor": "…" or null}
    /keyset/NAME?after=…&limit=100         […], in the order of their keys

Any other parameter that is the name of a field filters by equality: country=ES.
"""

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

import msgspec

from leaseway.testing.provider import Answer

Records = Sequence[Mapping[str, Any]]
Query = Mapping[str, str]

LIMIT = 100
OWN = frozenset({"offset", "limit", "page", "per_page", "cursor", "after"})


class Listing(msgspec.Struct, frozen=True):
    """A list of records and how it is served."""

    records: Records
    key: str = "id"
    page_max: int = 1_000
    """A larger page is truncated to this size, and the reply does not say so."""

    def chosen(self, query: Query) -> Records:
        fields = {name: text for name, text in query.items() if name not in OWN}
        if not fields or not self.records:
            return self.records
        known = {name: text for name, text in fields.items() if name in self.records[0]}
        return [record for record in self.records if all(str(record[name]) == text for name, text in known.items())]

    def limit(self, query: Query, name: str = "limit") -> int:
        return max(min(int_param(query, name, LIMIT), self.page_max), 1)


def list_page(style: str, listing: Listing, query: Query, url: str) -> Answer:
    return STYLES[style](listing, listing.chosen(query), query, url)


def by_offset(listing: Listing, records: Records, query: Query, url: str) -> Answer:
    start = int_param(query, "offset", 0)
    return json_answer({"items": records[start : start + listing.limit(query)], "total": len(records)})


def by_page(listing: Listing, records: Records, query: Query, url: str) -> Answer:
    size, page = listing.limit(query, "per_page"), max(int_param(query, "page", 1), 1)
    items = records[(page - 1) * size : page * size]
    return json_answer({"items": items, "page": page, "pages": -(-len(records) // size)})


def by_link(listing: Listing, records: Records, query: Query, url: str) -> Answer:
    start, size = int_param(query, "offset", 0), listing.limit(query)
    is_last = start + size >= len(records)
    following = None if is_last else f"{url}?{urlencode({**query, 'offset': start + size, 'limit': size})}"
    headers = {} if following is None else {"Link": f'<{following}>; rel="next"'}
    return json_answer({"items": records[start : start + size], "next": following}, headers)


def by_token(listing: Listing, records: Records, query: Query, url: str) -> Answer:
    start, size = decode_token(query.get("cursor", "")), listing.limit(query)
    if start is None:
        return json_answer({"error": "this cursor is not one of ours"}, status=400)
    following = None if start + size >= len(records) else encode_token(start + size)
    return json_answer({"items": records[start : start + size], "next_cursor": following})


def by_key(listing: Listing, records: Records, query: Query, url: str) -> Answer:
    ordered = sorted(records, key=lambda record: record[listing.key])
    after = query.get("after", "")
    if after and ordered:
        low: Any = type(ordered[0][listing.key])(after)
        ordered = [record for record in ordered if record[listing.key] > low]
    return json_answer(ordered[: listing.limit(query)])


STYLES: dict[str, Callable[[Listing, Records, Query, str], Answer]] = {
    "offset": by_offset,
    "page": by_page,
    "link": by_link,
    "token": by_token,
    "keyset": by_key,
}


def empty_body(style: str) -> bytes:
    return b"[]" if style == "keyset" else b'{"items":[]}'


def json_answer(value: Any, headers: Mapping[str, str] | None = None, status: int = 200) -> Answer:
    return Answer(status, msgspec.json.encode(value), headers or {})


def encode_token(position: int) -> str:
    return base64.urlsafe_b64encode(f"at {position}".encode()).decode()


def decode_token(token: str) -> int | None:
    try:
        return int(base64.urlsafe_b64decode(token).decode().removeprefix("at ")) if token else 0
    except (ValueError, binascii.Error):
        return None


def int_param(query: Query, name: str, absent: int) -> int:
    text = query.get(name, "")
    return int(text) if text.isdecimal() else absent
