"""Tables ─► structs, field by field, so that every problem has its field and none hides another.

A source with a built-in client has a preset: the client provides fields that the spec must not repeat.
"""

import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct
from msgspec.structs import fields

Problems = list[tuple[str, str]]

SHOWN_LENGTH = 60
KINDS = {"str": "text", "int": "an integer", "float": "a number", "bool": "true or false"}
KINDS |= {"array": "a list", "object": "a table", "null": "nothing"}
BOUND = re.compile(r"Expected `\w+` (>=|<=|>|<) ([\d.e+-]+)")
LENGTH = re.compile(r"Expected `(\w+)` of length (>=|<=|) ?(\d+)")
PATTERN = re.compile(r"Expected `str` matching regex '(.*)'$")
TYPES = re.compile(r"Expected `([^`]+)`, got `([^`]+)`")
AT_LEAST = {">=": "at least", "<=": "at most", ">": "more than", "<": "less than", "": "exactly"}
PLACE = re.compile(r" - at `\$?(.*)`$")
EXAMPLES = {
    r"^[a-z][a-z0-9_-]{0,62}$": "must be lowercase letters, digits, _ and -, and start with a letter",
    r"^[a-z_][a-z0-9_]{0,62}$": "must be lowercase letters, digits and _, and not start with a digit",
    r"^[a-z_][a-z0-9_]{0,62}(\.[a-z_][a-z0-9_]{0,62})?$": "must be table or schema.table, in a-z, 0-9 and _",
    r"^[A-Za-z_][A-Za-z0-9_]{0,200}$": "must be the name of an environment variable, such as API_KEY",
    r"^/[^#]*#.+$": "must be a path of the source and a JSON path into its reply, such as '/status#$.maxId'",
    r"^(?:[0-9]{1,9}(?:ms|[smhdw]))+$": "must be a duration such as '90s', '15m', '1h30m' or '7d'",
}


def parse_value(type_: Any, data: Any, place: str, problems: Problems) -> Any:
    """Returns the value, or None after adding at least one problem."""
    options = union_members(type_)
    structs = [option for option in options if isinstance(option, type) and issubclass(option, Struct)]
    if structs and not (data is None and NoneType in options):
        return parse_struct(structs, data, place, problems)
    if get_origin(type_) is dict and isinstance(data, dict):
        return parse_table(type_, data, place, problems)
    return parse_leaf(type_, data, place, problems)


def union_members(type_: Any) -> tuple[Any, ...]:
    return get_args(type_) if get_origin(type_) in (Union, UnionType) else (type_,)


def parse_struct(structs: list[type[Struct]], data: Any, place: str, problems: Problems) -> Any:
    if not isinstance(data, dict):
        problems.append((place or "spec", f"must be a table (is {render_given(data)})"))
        return None
    tag_field = structs[0].__struct_config__.tag_field
    if tag_field is None:
        return parse_fields(structs[0], data, place, problems)
    by_tag = {struct.__struct_config__.tag: struct for struct in structs}
    tag = data.get(tag_field)
    if tag_field not in data or not isinstance(tag, str) or tag not in by_tag:
        is_now = "is missing" if tag is None else f"is {render_given(tag)}"
        problem = f"must be one of {', '.join(map(str, by_tag))} ({is_now})"
        problems.append((child_field(place, tag_field), problem + suggestion(tag or "", by_tag)))
        return None
    rest = {name: value for name, value in data.items() if name != tag_field}
    return parse_fields(by_tag[tag], rest, place, problems)


def parse_fields(struct: type[Struct], data: dict[str, Any], place: str, problems: Problems) -> Any:
    before, values = len(problems), {}
    hints = get_type_hints(struct, include_extras=True)
    known = {field.encode_name: field for field in fields(struct)}
    for name in data:
        if name not in known:
            problems.append((place or "spec", f"unknown key {name!r}{suggestion(name, known, list_all=True)}"))
    for name, field in known.items():
        if name in data:
            values[field.name] = parse_value(hints[field.name], data[name], child_field(place, name), problems)
        elif field.required:
            problems.append((child_field(place, name), "is missing"))
    return struct(**values) if len(problems) == before else None


def parse_table(type_: Any, data: dict[str, Any], place: str, problems: Problems) -> Any:
    """A table whose keys the user chooses."""
    key_type, value_type = get_args(type_)
    values = {}
    for name, value in data.items():
        parse_leaf(key_type, name, child_field(place, name), problems, is_key=True)
        values[name] = parse_value(value_type, value, child_field(place, name), problems)
    return values


def parse_leaf(type_: Any, data: Any, place: str, problems: Problems, is_key: bool = False) -> Any:
    try:
        return msgspec.convert(data, type_)
    except msgspec.ValidationError as error:
        text = str(error)
        inside = PLACE.search(text)
        value = value_at(data, inside[1]) if inside else data
        problem = explain_error(PLACE.sub("", text), type_, value)
        problems.append((place + (inside[1] if inside else ""), f"the name {problem}" if is_key else problem))
        return None


def explain_error(text: str, type_: Any, value: Any) -> str:
    """The decoder's message as a sentence about the field."""
    is_now = f" (is {render_given(value)})"
    if found := BOUND.search(text):
        return f"must be {AT_LEAST[found[1]]} {format_number(found[2])}{is_now}"
    if found := LENGTH.search(text):
        what = "characters" if found[1] == "str" else "entries"
        return f"must have {AT_LEAST[found[2]]} {format_number(found[3])} {what}{is_now}"
    if found := PATTERN.search(text):
        return EXAMPLES.get(found[1].replace("\\\\", "\\"), f"must match {found[1]}") + is_now
    if found := TYPES.search(text):
        return f"must be {type_names(found[1])}{is_now}"
    if text.startswith("Invalid enum value"):
        choices = literal_values(type_)
        one_of = "one of " if len(choices) > 1 else ""
        return f"must be {one_of}{', '.join(choices)}{is_now}{suggestion(value, choices)}"
    return f"{text[:1].lower()}{text[1:]}{is_now}"


def type_names(names: str) -> str:
    return " or ".join(KINDS.get(name.strip(), name.strip()) for name in names.split("|") if name.strip() != "null")


def literal_values(type_: Any) -> list[str]:
    """The values of a Literal or an enum, anywhere in the type."""
    if get_origin(type_) is Annotated:
        return literal_values(get_args(type_)[0])
    if isinstance(type_, type) and hasattr(type_, "__members__"):
        return [str(member.value) for member in type_.__members__.values()]
    choices: list[str] = []
    for option in get_args(type_):
        choices.extend(literal_values(option) if get_args(option) else [] if option is NoneType else [str(option)])
    return choices


def suggestion(name: object, known: Any, list_all: bool = False) -> str:
    names = [str(each) for each in known]
    close = get_close_matches(str(name).lower(), names, n=1, cutoff=0.6)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; there are {', '.join(names)}" if list_all else ""


def child_field(place: str, name: str) -> str:
    """The field name in TOML syntax."""
    word = name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else f'"{name}"'
    return f"{place}.{word}" if place else word


def value_at(data: Any, place: str) -> Any:
    for index in re.findall(r"\[(\d+)\]", place):
        data = data[int(index)]
    return data


def render_given(value: object) -> str:
    text = {True: "true", False: "false"}.get(value) if isinstance(value, bool) else None
    if text is None:
        text = "a table" if isinstance(value, dict) else repr(value)
    return text if len(text) <= SHOWN_LENGTH else f"{text[:SHOWN_LENGTH]}…"


def format_number(text: str) -> str:
    return f"{float(text):,.12g}"


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
