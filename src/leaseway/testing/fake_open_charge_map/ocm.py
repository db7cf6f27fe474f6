"""The rules of Open Charge Map's API v3, as in its published server, including its peculiarities.

Parameter names are case-insensitive, and unreadable values are ignored silently. There is no total, no next page, no
upper bound for dates, and no guaranteed order unless one is requested.
"""

import math
import re
import zlib
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from itertools import islice

import msgspec
from msgspec import Struct

from leaseway.domain.ids import Instant
from leaseway.testing.fake_open_charge_map.faults import Faults
from leaseway.testing.fake_open_charge_map.poi import (
    EPOCH,
    ID_BY_CODE,
    NEVER_SHOWN,
    PUBLISHED,
    REMOVED,
    Poi,
    compact_head,
    date_text,
    encode,
    reference,
    whole,
)
from leaseway.testing.fake_open_charge_map.table import Table
from leaseway.testing.provider import Answer

TEXT = {"Content-Type": "text/plain;charset=UTF-8"}
GUID = re.compile(r"\{?[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\}?")
NO_KEY = b"You must specify an API key using the key query parameter or x-api-key header."
BAD_KEY = b"Invalid API key."
BANNED = b"Blocked for API abuse. Repeated duplicate calls may be automatically banned."
ROBOTS = b'{"status":"error","description":"API requests by robots are temporarily disabled."}'
ROBOT_NAMES = ("robot", "crawler", "spider", "slurp", "googlebot", "apache-httpclient", "dart:io", "okhttp/3.9.1")
ROBOT_BEGINNINGS = ("php", "nameofagent")
WHOLE_NUMBER = re.compile(r"\s*-?\d{1,18}\s*")
CORNER = re.compile(r"\(\s*(-?[\d.]+)\s*,\s*(-?[\d.]+)\s*\)")
RESULTS = 100

Query = Mapping[str, str]
Envelope = tuple[float, float, float, float]


class Asked(Struct, frozen=True, kw_only=True):
    """The parameters of one request, as the server interprets them."""

    limit: int
    after: int | None
    countries: frozenset[int] | None
    since: Instant | None
    created_since: Instant | None
    ids: frozenset[int] | None
    submissions: frozenset[int]
    statuses: frozenset[int] | None
    envelope: Envelope | None
    order: str


# -- admission --------------------------------------------------------------------------------------------------------


def refusal(query: Query, headers: Mapping[str, str], keys: frozenset[str] | None) -> Answer | None:
    """None: admitted. `keys` are the accepted keys; None accepts any key of the right form."""
    agent = headers.get("user-agent", "").lower()
    if "fme/2020" in agent:
        return Answer(403, BANNED, TEXT)
    key = (query.get("key") or headers.get("x-api-key") or "").strip().lower()
    if key in ("", "test", "null"):
        return Answer(403, NO_KEY, TEXT)
    if not GUID.fullmatch(key) or (keys is not None and key not in keys):
        return Answer(403, BAD_KEY, TEXT)
    if any(name in agent for name in ROBOT_NAMES) or agent.startswith(ROBOT_BEGINNINGS):
        return Answer(503, ROBOTS)
    return None


# -- pages ------------------------------------------------------------------------------------------------------------


def asked(query: Query, faults: Faults) -> Asked:
    limit = int(query["maxresults"]) if WHOLE_NUMBER.fullmatch(query.get("maxresults", "")) else RESULTS
    submissions = frozenset(number for number in numbers(query, "submissionstatustypeid") if number > 0)
    return Asked(
        limit=min(limit, faults.page_max) if faults.page_max else limit,
        after=int(query["greaterthanid"]) if WHOLE_NUMBER.fullmatch(query.get("greaterthanid", "")) else None,
        countries=None if faults.ignores_filters else requested_countries(query, faults.unknown_country_is_world),
        since=None if faults.ignores_filters else parse_date(query.get("modifiedsince", "")),
        created_since=parse_date(query.get("createdsince", "")),
        ids=numbers(query, "chargepointid") or numbers(query, "id") or None,
        submissions=submissions or PUBLISHED,
        statuses=numbers(query, "statustypeid") or None,
        envelope=parse_envelope(query.get("boundingbox", "")),
        order=query.get("sortby", "").strip().lower(),
    )


def requested_countries(query: Query, unknown_is_world: bool) -> frozenset[int] | None:
    """A country code overrides ids. An unknown code is dropped, and the filter with it."""
    code = query.get("countrycode", "").strip().upper()
    if code in ID_BY_CODE:
        return frozenset({ID_BY_CODE[code]})
    if code and not unknown_is_world:
        return frozenset()
    return numbers(query, "countryid") or None


def found(table: Table, wanted: Asked, faults: Faults) -> list[Poi]:
    rows = filter(matcher(wanted), table.ascending(wanted.after, wanted.countries))
    count = max(wanted.limit, 0)
    if wanted.order == "id_asc" and not faults.reordered:
        return list(islice(rows, count))
    return sorted(rows, key=order_key(wanted))[:count]


def order_key(wanted: Asked) -> Callable[[Poi], int]:
    if wanted.order in ("created_asc", "id_asc"):  # the latter only where it is reordered
        return lambda poi: poi.created
    if wanted.order == "modified_asc":
        return lambda poi: poi.modified
    if wanted.envelope is not None:
        return lambda poi: zlib.crc32(poi.id.to_bytes(8))  # "spatial index order": no guaranteed order
    return lambda poi: -poi.id


def matcher(wanted: Asked) -> Callable[[Poi], bool]:
    """Only the necessary tests: most pages are requested by id alone."""
    tests: list[Callable[[Poi], bool]] = []
    if (since := wanted.since) is not None:
        tests.append(lambda poi: poi.modified >= since)
    if (created := wanted.created_since) is not None:
        tests.append(lambda poi: poi.created >= created)
    if (ids := wanted.ids) is not None:
        tests.append(lambda poi: poi.id in ids)
    if (statuses := wanted.statuses) is not None:
        tests.append(lambda poi: poi.status in statuses)
    if (envelope := wanted.envelope) is not None:
        tests.append(lambda poi: is_within(poi.latitude, poi.longitude, envelope))
    submissions = wanted.submissions - {NEVER_SHOWN}
    return lambda poi: poi.submission in submissions and poi.status not in REMOVED and all(test(poi) for test in tests)


def is_within(latitude: float, longitude: float, envelope: Envelope) -> bool:
    """The upper and lower edges are great circles, not parallels."""
    south, west, north, east = envelope
    if not west <= longitude <= east:
        return False
    if east - west >= 180:
        return south <= latitude <= north
    return arc(south, west, east, longitude) <= latitude <= arc(north, west, east, longitude)


def arc(latitude: float, west: float, east: float, longitude: float) -> float:
    """The latitude at which the great circle between two points of one latitude meets a meridian."""
    if abs(latitude) == 90 or west == east:
        return latitude
    top = math.tan(math.radians(latitude)) / math.cos(math.radians((east - west) / 2))
    return math.degrees(math.atan(top * math.cos(math.radians(longitude - (west + east) / 2))))


def listing(table: Table, rows: Iterable[Poi], query: Query, faults: Faults, now: Instant) -> bytes:
    compact, verbose = flag(query, "compact", absent=False), flag(query, "verbose", absent=True)
    camelcase = flag(query, "camelcase", absent=False)
    if compact and not verbose and not camelcase:
        parts = [compact_head(poi, now, faults.is_volatile) + table.tail(poi) for poi in rows]
    else:
        parts = [whole(poi, now, compact=compact, verbose=verbose, camelcase=camelcase) for poi in rows]
    return b"[" + b",".join(parts) + b"]"


# -- other resources --------------------------------------------------------------------------------------------------


def status(table: Table) -> bytes:
    rows = table.truth.values()
    return encode(
        {
            "systemVersion": "3.0.0",
            "poiDataLastModified": date_text(max((poi.modified for poi in rows), default=0)),
            "poiDataLastCreated": date_text(max((poi.created for poi in rows), default=0)),
            "maxPOIId": table.id_max,
            "dataHash": "",
        }
    )


def reference_data() -> bytes:
    return msgspec.json.encode(reference())


# -- values -----------------------------------------------------------------------------------------------------------


def numbers(query: Query, name: str) -> frozenset[int]:
    return frozenset(int(part) for part in query.get(name, "").split(",") if WHOLE_NUMBER.fullmatch(part))


def flag(query: Query, name: str, *, absent: bool) -> bool:
    """A parameter that is present but unreadable is false."""
    text = query.get(name, "").strip().lower()
    return text == "true" if text else absent


def parse_date(text: str) -> Instant | None:
    try:
        date = datetime.fromisoformat(text)
    except ValueError:
        return None
    return round(((date if date.tzinfo else date.replace(tzinfo=UTC)) - EPOCH).total_seconds() * 1_000_000)


def parse_envelope(text: str) -> Envelope | None:
    """The corners in any order. A box across the antimeridian becomes its complement."""
    corners = [(float(latitude), float(longitude)) for latitude, longitude in CORNER.findall(text)[:2]]
    if len(corners) < 2:
        return None
    (a, b), (c, d) = corners
    return min(a, c), min(b, d), max(a, c), max(b, d)
