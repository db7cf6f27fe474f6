"""Sources with a built-in client: the client provides fields that the spec must not repeat.

tables with `kind = "ocm"` ─► the same tables with the client's fields, or a problem for each field that is too many
"""

from collections.abc import Iterator, Mapping
from typing import Any

from leaseway.imports.spec.parser import Problems, child_field

OCM_URL = "https://api.openchargemap.io"

OCM: dict[str, Any] = {
    "path": "/v3/poi",
    "key": "ID",
    "stamp": {"field": "DateLastStatusUpdate", "granularity": "1m", "lag": "10m"},
    "volatile": ["IsRecentlyVerified", "DateLastVerified", "AddressInfo.Distance"],
}
OCM_PAGE = {
    "cursor": "keyset",
    "param": "greaterthanid",
    "start": 0,
    "limit_param": "maxresults",
    "limit": 1_000,
    "fixed": {"sortby": "id_asc"},
}
OCM_AUTH = {"header": "X-API-Key"}
OCM_COUNTRY = {"param": "countryid", "values_from": "/v3/referencedata#$.Countries[*].ISOCode"}
OCM_FILTERS = {
    "window": {"lower": "modifiedsince", "path": "DateLastStatusUpdate", "format": "iso"},
    "box": {
        "param": "boundingbox",
        "box": "(south,west),(north,east)",
        "latitude": "AddressInfo.Latitude",
        "longitude": "AddressInfo.Longitude",
        "is_geodesic": True,
    },
}
OCM_FLAG: dict[str, Any] = {"params": {}}
"""The client requests the feed itself."""
OCM_PARTITION = {"by": "id_range", "size": 20_000}
OCM_LIMITS = {"limits": ["1/second"], "concurrency": 2}
"""Open Charge Map publishes no limit and bans clients manually. This follows its usage policy."""

OPEN = {
    "source.auth": {"env"},
    "source.headers": {"User-Agent"},
    "resource.page": {"limit", "limit_min"},
    "resource.filters": {"country"},
    "resource.filters.country": {"values", "rows"},
    "resource.deletes.flag": {"params"},
}
"""The fields that a spec may set in a table. All others belong to the client; unknown fields are refused later."""
CLIENTS = {"source": {"file", "format"}, "resource": {"params", "records", *OCM}}


def apply_preset(data: dict[str, Any], problems: Problems) -> dict[str, Any]:
    """Other kinds, and values that are not tables, are returned unchanged: the parser reports problems."""
    if table_at(data, "source").get("kind") != "ocm":
        return data
    problems.extend(preset_conflicts(data))
    return {**data, "source": complete_source(data), "resource": complete_resource(data)}


def table_at(data: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Returns an empty table if there is none."""
    found: Any = data
    for name in place.split("."):
        found = found.get(name) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}


def preset_conflicts(data: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for place, names in CLIENTS.items():
        for name in sorted(names & table_at(data, place).keys()):
            yield (
                child_field(place, name),
                "is set by kind = 'ocm'; remove it, or describe the API with kind = 'json'",
            )
    for place, names in OPEN.items():
        for name in sorted(table_at(data, place).keys() - names):
            yield (
                child_field(place, name),
                f"is not for kind = 'ocm'; allowed here: {', '.join(sorted(names)) or 'nothing'}",
            )


def complete_source(data: Mapping[str, Any]) -> dict[str, Any]:
    source = table_at(data, "source")
    paced = {} if "limits" in source or "concurrency" in source else OCM_LIMITS
    return {"base_url": OCM_URL, **paced, **source, "auth": merge_allowed(data, "source.auth", OCM_AUTH)}


def complete_resource(data: Mapping[str, Any]) -> Any:
    resource = data.get("resource", {})
    if not isinstance(resource, dict):
        return resource
    country = {"param": "countryid"} if "values" in table_at(data, "resource.filters.country") else OCM_COUNTRY
    deletes = table_at(data, "resource.deletes")
    flagged = {"flag": merge_allowed(data, "resource.deletes.flag", OCM_FLAG)} if "flag" in deletes else {}
    filters = {**OCM_FILTERS, "country": merge_allowed(data, "resource.filters.country", country)}
    return {
        "partition": OCM_PARTITION,
        **resource,
        **OCM,
        "page": merge_allowed(data, "resource.page", OCM_PAGE),
        **({"deletes": {**deletes, **flagged}} if flagged else {}),
        "filters": filters if isinstance(resource.get("filters", {}), dict) else resource["filters"],
    }


def merge_allowed(data: Mapping[str, Any], place: str, known: Mapping[str, Any]) -> Any:
    """The client's fields plus the allowed fields of the spec."""
    above, _, name = place.rpartition(".")
    given = table_at(data, above).get(name, {})
    if not isinstance(given, dict):
        return given
    return {**known, **{field: value for field, value in given.items() if field in OPEN[place]}}
