"""One point of interest, as stored and as the API returns it.

Dates are those of a SQL Server `smalldatetime`: rounded to the nearest minute, so a fresh change can be up to 30
seconds in the future.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from importlib import resources
from typing import Any

import msgspec
from msgspec import Struct

from leaseway.domain.ids import Instant

TITLES: dict[str, dict[int, str]] = {
    "ChargerTypes": {1: "Level 1: low", 2: "Level 2: medium", 3: "Level 3: high"},
    "ConnectionTypes": {1: "Type 1 (J1772)", 2: "CHAdeMO", 25: "Type 2 (Socket Only)", 33: "CCS (Type 2)"},
    "CurrentTypes": {10: "AC (Single-Phase)", 20: "AC (Three-Phase)", 30: "DC"},
    "DataProviders": {1: "Open Charge Map Contributors"},
    "Operators": {1: "(Unknown Operator)"},
    "StatusTypes": {
        0: "Unknown",
        30: "Temporarily Unavailable",
        50: "Operational",
        75: "Partly Operational (Mixed)",
        100: "Not Operational",
        150: "Planned For Future Date",
        200: "Removed (Decommissioned)",
        210: "Removed (Duplicate Listing)",
    },
    "SubmissionStatusTypes": {
        1: "Submission Under Review",
        50: "Imported and Under Review",
        100: "Imported and Published",
        200: "Submission Published",
        250: "Submission Rejected - Incomplete",
        1000: "Delisted",
        1001: "Delisted - Duplicate",
        1002: "Delisted - No Longer Active/Decommissioned",
        1005: "Delisted - Superseded by Update",
        1010: "Delisted - Not Public Information/Is Private Residence",
        1020: "Delisted - Removed by Import Data Provider",
    },
    "UsageTypes": {0: "(Unknown)", 1: "Public", 4: "Public - Membership Required", 5: "Public - Pay At Location"},
}


def countries() -> list[dict[str, Any]]:
    text = resources.files(__package__).joinpath("countries.tsv").read_text(encoding="utf-8")
    return [country(*line.split("\t")) for line in text.splitlines()]


def country(number: str, code: str, continent: str, title: str) -> dict[str, Any]:
    return {"ISOCode": code, "ContinentCode": continent or None, "ID": int(number), "Title": title}


COUNTRY_BY_ID = {country["ID"]: country for country in countries()}
ID_BY_CODE: dict[str, int] = {country["ISOCode"]: country["ID"] for country in COUNTRY_BY_ID.values()}


def titled(table: str, number: int) -> dict[str, Any] | None:
    title = TITLES[table].get(number)
    return None if title is None else {"ID": number, "Title": title}


@cache
def reference() -> dict[str, Any]:
    lists = {
        table: [{"ID": number, "Title": title} for number, title in titles.items()] for table, titles in TITLES.items()
    }
    return {**lists, "Countries": list(COUNTRY_BY_ID.values())}


MINUTE_US = 60_000_000
RECENT_US = 182 * 86_400 * 1_000_000
PUBLISHED = frozenset({100, 200})
NEVER_SHOWN = 1010
REMOVED = frozenset({200, 210})
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
CAPITALS = re.compile(r"^(?:[A-Z]+(?=[A-Z][a-z])|[A-Z]+$|[A-Z])")
NOT_ASCII = re.compile(r"[^\x00-\x7f]+")
TITLE_LENGTH_MAX = 100
PLAIN = (str, int, float, bool)

encode = msgspec.json.Encoder().encode


class Poi(Struct, frozen=True, gc=False):
    id: int
    title: str
    country: int | None
    latitude: float
    longitude: float
    created: Instant
    modified: Instant
    """`DateLastStatusUpdate`, rounded to the minute."""
    reference: str = ""
    province: str | None = None
    points: int = 1
    status: int = 50
    submission: int = 200
    comment: str | None = None

    @property
    def is_readable(self) -> bool:
        """Returned if no status is requested."""
        return self.submission in PUBLISHED and self.status not in REMOVED


def on_the_minute(instant: Instant) -> Instant:
    return (instant + MINUTE_US // 2) // MINUTE_US * MINUTE_US


def date_text(instant: Instant) -> str:
    day, second = divmod(instant // 1_000_000, 86_400)
    return f"{day_text(day)}T{second // 3_600:02}:{second // 60 % 60:02}:{second % 60:02}Z"


@lru_cache(10_000)
def day_text(day: int) -> str:
    return (EPOCH + timedelta(days=day)).date().isoformat()


def compact_tail(poi: Poi) -> bytes:
    """The record as `compact=true&verbose=false` returns it, without its beginning, which is computed for each
    request.
    """
    return ascii_json(without_own_nulls(compact(poi)))[1:]


def compact_head(poi: Poi, now: Instant, is_volatile: bool) -> bytes:
    """These two fields change although the record does not: they must not count as content."""
    seen = now if is_volatile else poi.modified
    recent = b"true" if poi.modified > now - RECENT_US else b"false"
    return b'{"IsRecentlyVerified":%s,"DateLastVerified":"%s",' % (recent, date_text(seen).encode())


def whole(poi: Poi, now: Instant, *, compact: bool, verbose: bool, camelcase: bool) -> bytes:
    """Any other format, built for each request."""
    record = {**computed(poi, now), **stored(poi)}
    if not compact:
        record |= expanded(poi)
        record["AddressInfo"] = {**record["AddressInfo"], "Country": COUNTRY_BY_ID.get(poi.country or 0)}
    shaped: Any = record if verbose else without_nulls(record)
    return ascii_json(camel(shaped) if camelcase else shaped)


def computed(poi: Poi, now: Instant) -> dict[str, Any]:
    names = (
        "DataProvider OperatorInfo UsageType StatusType SubmissionStatus UserComments PercentageSimilarity MediaItems"
    )
    return {
        **dict.fromkeys(names.split()),
        "IsRecentlyVerified": poi.modified > now - RECENT_US,
        "DateLastVerified": date_text(poi.modified),
    }


def expanded(poi: Poi) -> dict[str, Any]:
    return {
        "DataProvider": titled("DataProviders", 1),
        "OperatorInfo": titled("Operators", 1),
        "UsageType": titled("UsageTypes", 1),
        "StatusType": titled("StatusTypes", poi.status),
        "SubmissionStatus": titled("SubmissionStatusTypes", poi.submission),
    }


def stored(poi: Poi) -> dict[str, Any]:
    return {
        "ID": poi.id,
        "UUID": poi_uuid(poi),
        "ParentChargePointID": None,
        "DataProviderID": 1,
        "DataProvidersReference": poi.reference or None,
        "OperatorID": 1,
        "OperatorsReference": None,
        "UsageTypeID": 1,
        "UsageCost": None,
        "AddressInfo": address(poi),
        "Connections": [connection(poi, number) for number in range(1 + poi.id % 2)],
        "NumberOfPoints": poi.points,
        "GeneralComments": poi.comment,
        "DatePlanned": None,
        "DateLastConfirmed": None,
        "StatusTypeID": poi.status,
        "DateLastStatusUpdate": date_text(poi.modified),
        "MetadataValues": None,
        "DataQualityLevel": 1,
        "DateCreated": date_text(poi.created),
        "SubmissionStatusTypeID": poi.submission,
    }


def compact(poi: Poi) -> dict[str, Any]:
    """Without fields that are never present, as in most pages: a page of a thousand takes milliseconds."""
    title = poi.title[:TITLE_LENGTH_MAX]
    return {
        "ID": poi.id,
        "UUID": poi_uuid(poi),
        "DataProviderID": 1,
        "DataProvidersReference": poi.reference or None,
        "OperatorID": 1,
        "UsageTypeID": 1,
        "AddressInfo": without_own_nulls(
            {
                "ID": poi.id + 300,
                "Title": title,
                "Town": title,
                "StateOrProvince": poi.province,
                "CountryID": poi.country,
                "Latitude": poi.latitude,
                "Longitude": poi.longitude,
                "DistanceUnit": 0,
            }
        ),
        "Connections": [compact_connection(poi, number) for number in range(1 + poi.id % 2)],
        "NumberOfPoints": poi.points,
        "GeneralComments": poi.comment,
        "StatusTypeID": poi.status,
        "DateLastStatusUpdate": date_text(poi.modified),
        "DataQualityLevel": 1,
        "DateCreated": date_text(poi.created),
        "SubmissionStatusTypeID": poi.submission,
    }


def compact_connection(poi: Poi, number: int) -> dict[str, Any]:
    return {
        "ID": poi.id * 10 + number,
        "ConnectionTypeID": (25, 33)[number],
        "StatusTypeID": 50,
        "LevelID": (2, 3)[number],
        "PowerKW": (22.0, 150.0)[number],
        "CurrentTypeID": (20, 30)[number],
        "Quantity": poi.points,
    }


def poi_uuid(poi: Poi) -> str:
    return f"{poi.id * 2_654_435_761 % 2**32:08X}-0000-4000-8000-{poi.id:012X}"


def address(poi: Poi) -> dict[str, Any]:
    nothing = "ContactTelephone1 ContactTelephone2 ContactEmail AccessComments RelatedURL Distance"
    return {
        "ID": poi.id + 300,
        "Title": poi.title[:TITLE_LENGTH_MAX],
        "AddressLine1": None,
        "AddressLine2": None,
        "Town": poi.title[:TITLE_LENGTH_MAX],
        "StateOrProvince": poi.province,
        "Postcode": None,
        "CountryID": poi.country,
        "Latitude": poi.latitude,
        "Longitude": poi.longitude,
        **dict.fromkeys(nothing.split()),
        "DistanceUnit": 0,
    }


def connection(poi: Poi, number: int) -> dict[str, Any]:
    return {
        "ID": poi.id * 10 + number,
        "ConnectionTypeID": (25, 33)[number],
        "Reference": None,
        "StatusTypeID": 50,
        "LevelID": (2, 3)[number],
        "Amps": None,
        "Voltage": None,
        "PowerKW": (22.0, 150.0)[number],
        "CurrentTypeID": (20, 30)[number],
        "Quantity": poi.points,
        "Comments": None,
    }


def without_own_nulls(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if value is not None} if None in record.values() else record


def without_nulls(record: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value if value.__class__ in PLAIN else nested_without_nulls(value)
        for name, value in record.items()
        if value is not None
    }


def nested_without_nulls(value: Any) -> Any:
    return without_nulls(value) if isinstance(value, dict) else [without_nulls(inner) for inner in value]


def camel(value: Any) -> Any:
    """ID ─► id, AddressInfo ─► addressInfo, ISOCode ─► isoCode: leading capitals become lowercase."""
    if isinstance(value, Mapping):
        return {CAPITALS.sub(lambda found: found[0].lower(), name): camel(inner) for name, inner in value.items()}
    return [camel(inner) for inner in value] if isinstance(value, list) else value


def ascii_json(value: Any) -> bytes:
    """The API escapes every character that is not ASCII, with capital hex digits."""
    text = encode(value)
    return text if text.isascii() else NOT_ASCII.sub(escaped, text.decode()).encode()


def escaped(found: re.Match[str]) -> str:
    return escapes(found[0])


@lru_cache(10_000)
def escapes(text: str) -> str:
    units = text.encode("utf-16-be").hex().upper()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
