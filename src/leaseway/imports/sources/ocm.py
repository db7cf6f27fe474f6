"""Open Charge Map: points of interest by id.

Peculiarities: an unknown country code means the whole world, so countries are looked up first; an empty list proves
nothing; ids and dates have no upper bound; the order by id is an order by date when the secondary database answers; and
a user agent that looks like a robot is refused.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from email.utils import parsedate_to_datetime
from itertools import pairwise
from typing import Any, TypeVar

import msgspec

from leaseway.domain.errors import BadValue, TerminalError
from leaseway.domain.ids import SECOND_US, Instant
from leaseway.domain.limits.limit import Limit
from leaseway.domain.redact import Redactor
from leaseway.domain.validators import EPOCH, MICROSECOND
from leaseway.imports.domain.boxes import Box, expand_box, owns
from leaseway.imports.domain.page import Page, Record
from leaseway.imports.domain.partition import Cursor, Predicate, Shard, parse_instant
from leaseway.imports.sources.port import BadReply, RequestClient, SourceCapabilities, SourceProbe, SourceRefused
from leaseway.imports.sources.status_mapping import WrongBody, body_sample, check_status

BASE_URL = "https://api.openchargemap.io"
USER_AGENT = "leaseway-import"
PAGE_LIMIT = 1_000
CONFIRM_MAX = 100
KEY = re.compile(r"\{?[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\}?", re.IGNORECASE)
ROBOT_NAMES = ("robot", "crawler", "spider", "slurp", "googlebot", "apache-httpclient", "dart:io", "okhttp/3.9.1")
ROBOT_BEGINNINGS = ("php", "nameofagent")
ABUSE = "fme/2020"
ROBOTS_STATUS = 503
OK = 200
VOLATILE = ("IsRecentlyVerified", "DateLastVerified", "AddressInfo.Distance")
"""Computed for each request, so not part of the content."""

Body = TypeVar("Body")

CAPS = SourceCapabilities(
    cursor="keyset",
    order="ID",
    filters=frozenset({"id", "country", "since", "window", "box", "deleted"}),
    bounds={"id": (True, False), "window": (True, False)},
    granularity_us=60 * SECOND_US,
    lag_us=600 * SECOND_US,  # the mirror follows every five minutes and itself looks back ten minutes
    deletes=frozenset({"flag", "confirm"}),
)
DELISTED = "1000,1001,1002,1020"
"""Statuses of records that are no longer listed. Not 1005: that is an older version of a listed record."""


class OpenChargeMap:
    """`base_url` is without "/v3". Open Charge Map asks for contact details in `user_agent`."""

    name = "ocm"
    caps = CAPS
    key_field = "ID"
    stamp_field = "DateLastStatusUpdate"
    volatile = VOLATILE
    page_limit = PAGE_LIMIT
    confirm_max = CONFIRM_MAX

    def __init__(self, key: str, base_url: str = BASE_URL, user_agent: str = USER_AGENT) -> None:
        if not KEY.fullmatch(key.strip()):
            raise BadValue("key", "must look like 01234567-89ab-cdef-0123-456789abcdef; get one at openchargemap.org")
        self._redactor = Redactor([key.strip()])
        self._headers = {"x-api-key": key.strip(), "User-Agent": check_user_agent(user_agent)}
        self._base_url = base_url.rstrip("/").removesuffix("/v3")
        self._country_ids: dict[str, int] = {}

    @property
    def limit(self) -> Limit:
        """Open Charge Map publishes no limit and bans clients manually. This follows its usage policy."""
        return Limit(self.name, "1/second", concurrency=2)

    async def probe(self, http: RequestClient) -> SourceProbe:
        reply = await self._ask(http, "system/status", {})
        status = decode_reply(reply, dict[str, Any])
        id_max = status.get("maxPOIId")
        if not isinstance(id_max, int):
            raise BadReply(f"system/status: maxPOIId must be an integer (is {id_max!r})")
        countries = await self._countries(http)
        return SourceProbe(id_max=id_max, server_time=server_time(reply.headers), values={"country": sorted(countries)})

    async def fetch(self, shard: Shard, cursor: Cursor | None, limit: int, http: RequestClient) -> Page:
        """One request. In each process, the first shard with countries also requests their ids."""
        predicate = shard.predicate
        country_ids = await self._country_ids_for(predicate.get("country", ()), http)
        after = start_after(predicate, cursor)
        reply = await self._ask(http, "poi", query_params(predicate, after, country_ids, limit))
        records = decode_reply(reply, list[dict[str, Any]])
        return build_page(records, predicate, server_time(reply.headers), len(reply.content))

    async def present(self, ids: Sequence[str], http: RequestClient) -> frozenset[str]:
        """By `chargepointid`. Ids that are not integers cannot exist."""
        asked = [id for id in ids if id.isascii() and id.isdecimal()]
        if not asked:
            return frozenset()
        fixed = {"sortby": "id_asc", "compact": "true", "verbose": "false", "maxresults": str(len(asked))}
        reply = await self._ask(http, "poi", {**fixed, "chargepointid": ",".join(asked)})
        found = frozenset(str(record.get("ID")) for record in decode_reply(reply, list[dict[str, Any]]))
        if strangers := sorted(found - frozenset(asked)):
            raise TerminalError(f"Open Charge Map sent {strangers[0]!r}, which was not requested")
        return found

    def is_ours(self, shard: Shard) -> Callable[[Record], bool]:
        """Checks the filters that the API must apply. Upper bounds are applied here and not checked."""
        predicate = shard.predicate
        low = predicate.get("id", [None, None])[0]
        country_ids = {self._country_ids.get(code) for code in predicate.get("country", ())}
        since = changed_since(predicate)
        since_us = None if since is None else parse_instant(since)

        def is_ours(record: Record) -> bool:
            return (
                (low is None or not isinstance(number := record.get("ID"), int) or number >= low)
                and (not country_ids or record_country_id(record) in country_ids)
                and (since_us is None or is_since(record.get("DateLastStatusUpdate"), since_us))
            )

        return is_ours

    async def _ask(self, http: RequestClient, path: str, params: Mapping[str, str]) -> Any:
        url = f"{self._base_url}/v3/{path}"
        reply = await http.request("GET", url, params={**params, "client": "leaseway"}, headers=self._headers)
        self._check(reply, path)
        return reply

    def _check(self, reply: Any, path: str) -> None:
        if reply.status_code == OK:  # redacting a sample costs more than reading a page
            return
        sample = body_sample(reply.content, self._redactor)
        if reply.status_code == ROBOTS_STATUS and "robots" in sample:
            raise SourceRefused(f"Open Charge Map refused the user_agent as a robot: {sample}")
        check_status(reply.status_code, f"Open Charge Map /{path}", sample)

    async def _countries(self, http: RequestClient) -> dict[str, int]:
        if not self._country_ids:
            reply = await self._ask(http, "referencedata", {})
            listed = decode_reply(reply, dict[str, Any]).get("Countries")
            pairs = [(each.get("ISOCode"), each.get("ID")) for each in listed or () if isinstance(each, dict)]
            found = {code: number for code, number in pairs if isinstance(code, str) and isinstance(number, int)}
            if not found:
                raise BadReply("referencedata: contains no countries")
            self._country_ids = found
        return self._country_ids

    async def _country_ids_for(self, codes: Sequence[str], http: RequestClient) -> list[int]:
        if not codes:
            return []
        known = await self._countries(http)
        unknown = [code for code in codes if code not in known]
        if unknown:
            raise BadValue(
                "country",
                f"Open Charge Map does not know {', '.join(unknown)}; codes have two capital letters, for example ES",
            )
        return [known[code] for code in codes]


def check_user_agent(user_agent: str) -> str:
    lower = user_agent.lower()
    bad = [name for name in (*ROBOT_NAMES, ABUSE) if name in lower]
    bad += [name for name in ROBOT_BEGINNINGS if lower.startswith(name)]
    if bad or not user_agent.strip() or not user_agent.isprintable():
        problem = f"Open Charge Map refuses user agents that contain {bad[0]!r}" if bad else "must be printable text"
        raise BadValue(
            "user_agent", f"{problem} (is {user_agent!r}); use for example acme-import/1.0 (ops@acme.example)"
        )
    return user_agent


# -- requests ---------------------------------------------------------------------------------------------------------


def start_after(predicate: Predicate, cursor: Cursor | None) -> int:
    if cursor is not None:
        return int(cursor["after"])
    low = predicate.get("id", [None, None])[0]
    return 0 if low is None else low - 1


def query_params(predicate: Predicate, after: int, country_ids: Sequence[int], limit: int) -> dict[str, str]:
    fixed = {"sortby": "id_asc", "compact": "true", "verbose": "false", "includecomments": "true"}
    params = {**fixed, "greaterthanid": str(after), "maxresults": str(limit)}
    if country_ids:
        params["countryid"] = ",".join(map(str, country_ids))
    if (since := changed_since(predicate)) is not None:
        params["modifiedsince"] = since
    if "deleted" in predicate:
        params["submissionstatustypeid"] = DELISTED
    if "box" in predicate:
        south, west, north, east = expand_box(box_in(predicate))
        params["boundingbox"] = f"({south:.7f},{west:.7f}),({north:.7f},{east:.7f})"
    return params


def box_in(predicate: Predicate) -> Box:
    south, west, north, east = predicate["box"]
    return south, west, north, east


def changed_since(predicate: Predicate) -> str | None:
    """The end of a window is neither requested nor applied: newer records are written, too, and do not move the
    watermark.
    """
    since: str | None = predicate.get("since") or predicate.get("window", [None, None])[0]
    return since


# -- replies ----------------------------------------------------------------------------------------------------------


def decode_reply(reply: Any, kind: type[Body]) -> Body:
    try:
        return msgspec.json.decode(reply.content, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise WrongBody(f"Open Charge Map returned an unexpected body ({error})", body_sample(reply.content)) from error


def build_page(records: list[dict[str, Any]], predicate: Predicate, now: Instant | None, size_bytes: int) -> Page:
    ids = [record["ID"] for record in records if isinstance(record.get("ID"), int)]
    if records and not ids:
        raise BadReply("Open Charge Map returned records without an ID")
    high = predicate.get("id", [None, None])[1]
    is_ascending = all(low < up for low, up in pairwise(ids))
    # In the wrong order, a record beyond the end proves nothing. The guards get all records.
    is_end = True if high is not None and is_ascending and ids and ids[-1] >= high else None
    kept = drop_foreign_records(records, predicate) if is_ascending else records
    following = {"after": ids[-1]} if ids else None
    return Page(
        records=kept,
        raw_count=len(records),
        next=following,
        is_end=is_end,
        server_time=now,
        size_bytes=size_bytes,
    )


def drop_foreign_records(records: list[dict[str, Any]], predicate: Predicate) -> list[dict[str, Any]]:
    """Drop records beyond the bounds that the API cannot apply."""
    high = predicate.get("id", [None, None])[1]
    if high is not None:
        records = [record for record in records if not isinstance(record.get("ID"), int) or record["ID"] < high]
    if "box" in predicate:
        records = [record for record in records if lies_in(box_in(predicate), record)]
    return records


def lies_in(box: Box, record: Record) -> bool:
    """A record without a position is kept: it is a bad row, not a foreign record."""
    address = record.get("AddressInfo")
    if not isinstance(address, dict):
        return True
    latitude, longitude = address.get("Latitude"), address.get("Longitude")
    if not isinstance(latitude, int | float) or not isinstance(longitude, int | float):
        return True
    return owns(box, latitude, longitude)


def record_country_id(record: Record) -> Any:
    address = record.get("AddressInfo")
    return address.get("CountryID") if isinstance(address, dict) else None


def is_since(stamp: Any, since: Instant) -> bool:
    try:
        return parse_instant(stamp) >= since
    except (TypeError, ValueError):
        return True  # a bad row, not a foreign record


def server_time(headers: Mapping[str, str]) -> Instant | None:
    try:
        return (parsedate_to_datetime(headers["Date"]) - EPOCH) // MICROSECOND
    except (KeyError, TypeError, ValueError):
        return None
