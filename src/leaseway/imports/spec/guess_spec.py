"""One reply of an API ─► a commented spec, as a starting point.

Records, key, stamp, columns and paging are guessed from names and values. Uncertain lines have a comment, and
`import plan` checks the result.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from leaseway.imports.domain.jsonpath import JsonPath
from leaseway.imports.domain.page import RESERVED
from leaseway.imports.domain.timestamps import parse_any, parse_iso

DEPTH_MAX = 3
SAMPLE_MAX = 100
COLUMNS_MAX = 20
NAME_LENGTH_MAX = 50
KEYS = ("id", "uuid", "_id", "key", "code", "guid", "gid", "pk", "iri", "uri", "name")
STAMP = re.compile(r"updat|modif|chang|last_?seen|timestamp", re.IGNORECASE)
TOKENS = ("next_cursor", "nextCursor", "next_page_token", "nextPageToken", "next_token", "nextToken", "continuation")
TOKEN_PARAMS = {"pageToken": "nextPageToken", "page_token": "next_page_token", "continuation": "continuation"}
TOTALS = ("total", "total_count", "totalCount", "count", "numberMatched", "total_results", "totalResults")
OFFSETS = ("offset", "skip", "start", "startindex", "startIndex", "_start")
PAGES = ("page", "_page", "page_number", "pageNumber", "p")
LIMITS = (
    "limit",
    "per_page",
    "_per_page",
    "_limit",
    "page_size",
    "pageSize",
    "size",
    "maxresults",
    "count",
    "rows",
    "take",
)
AFTERS = ("after", "greaterthanid", "since_id", "starting_after", "after_id")
LIMIT = 100


class ApiReply(NamedTuple):
    """A reply, or what an OpenAPI document says about it."""

    url: str
    body: Any
    headers: Mapping[str, str] = {}
    params: Sequence[str] = ()
    """Query parameters that the API is known to have."""


class GuessedPaging(NamedTuple):
    lines: list[str]
    params: frozenset[str] = frozenset()
    """Parameters that the paging sets."""


def guess_spec(reply: ApiReply, name: str, auth: str = "") -> str:
    """The text of a TOML file. Raises ValueError if the reply contains no list of objects."""
    path, records = find_records(reply.body)
    sample = [each for each in records[:SAMPLE_MAX] if isinstance(each, dict)]
    key = guess_key(sample)
    paging = guess_paging(reply, key)
    url = urlsplit(reply.url)
    params = {each: value for each, value in parse_qsl(url.query) if each not in paging.params}
    stamp = guess_stamp(sample)
    lines = [
        "version = 1",
        "",
        "[source]",
        f"name = {quoted(name)}",
        f"base_url = {quoted(f'{url.scheme}://{url.netloc}')}",
        *([auth] if auth else ['# auth = { header = "Authorization", scheme = "Bearer", env = "MY_TOKEN" }']),
        '# limits = ["10/second"]                       # as the API states them, for all workers together',
        "",
        "[resource]",
        f"path = {quoted(url.path or '/')}",
        *([f"params = {inline_table(params)}"] if params else []),
        f"records = {quoted(path)}",
        f"key = {quoted(key)}",
        *([f"stamp = {{ field = {quoted(stamp)} }}            # check: the time of the last change"] if stamp else []),
        "",
        "[resource.page]",
        *paging.lines,
        "",
        "[resource.columns]                             # the whole document is stored as well",
        *column_lines(sample),
        "",
        "[sink]",
        'url = "sqlite:///data.db"',
        f"table = {quoted(table_name(name))}",
    ]
    return "\n".join(lines) + "\n"


# -- records ----------------------------------------------------------------------------------------------------------


def find_records(body: Any) -> tuple[str, list[Any]]:
    """The longest list of objects that is not deep inside."""
    found = sorted(lists_in(body, (), 0), key=lambda each: -len(each[1]))
    if not found:
        raise ValueError("the reply contains no list of objects, so nothing can be imported from it")
    steps, records = found[0]
    return str(JsonPath(steps)), records


def lists_in(value: Any, steps: tuple[str, ...], depth: int) -> Iterator[tuple[tuple[str, ...], list[Any]]]:
    if isinstance(value, list):
        if value and all(isinstance(each, dict) for each in value) and not is_list_of_links(value):
            yield steps, value
    elif isinstance(value, dict) and depth < DEPTH_MAX:
        for name, below in value.items():
            yield from lists_in(below, (*steps, name), depth + 1)


def is_list_of_links(value: list[dict[str, Any]]) -> bool:
    return all("rel" in each and "href" in each for each in value)


def guess_key(sample: Sequence[Mapping[str, Any]]) -> str:
    """A field that every record has, with another value in each."""
    unique = [name for name in sample[0] if is_unique([record.get(name) for record in sample])]
    lowered = {name.lower(): name for name in reversed(unique)}
    known = [lowered[name] for name in KEYS if name in lowered]
    ids = [name for name in unique if re.search(r"(?:_id|Id|ID|Key|_key)$", name)]
    for name in (*known, *ids, *unique):
        return str(JsonPath((name,))).removeprefix("$.")
    raise ValueError("no field of the records has another value in each record, so there is no key")


def is_unique(values: list[Any]) -> bool:
    are_keys = all(isinstance(value, int | str) and not isinstance(value, bool) and value != "" for value in values)
    return are_keys and len(set(map(str, values))) == len(values)


def guess_stamp(sample: Sequence[Mapping[str, Any]]) -> str | None:
    for name in sample[0]:
        values = [record.get(name) for record in sample]
        if STAMP.search(name) and all(not isinstance(each, bool) and parse_any(each) is not None for each in values):
            return str(JsonPath((name,))).removeprefix("$.")
    return None


# -- paging -----------------------------------------------------------------------------------------------------------


def guess_paging(reply: ApiReply, key: str) -> GuessedPaging:
    query = dict(parse_qsl(urlsplit(reply.url).query))
    known = [*query, *reply.params]
    limit = next((name for name in LIMITS if name in known), None)
    size = int(query[limit]) if limit in query and query[limit].isdecimal() else LIMIT
    sizes = [] if limit is None else [f"limit_param = {quoted(limit)}", f"limit = {min(max(size, 1), 100_000)}"]
    taken = frozenset() if limit is None else frozenset({limit})
    if (link := guess_link(reply)) is not None:
        return GuessedPaging(['cursor = "link"', *link, *sizes], taken)
    for guess in (guess_token, guess_position, guess_keyset):
        if (found := guess(reply, known, key)) is not None:
            return GuessedPaging([*found.lines, *sizes], taken | found.params)
    return GuessedPaging(['cursor = "none"                               # check: no sign of a next page'])


def guess_link(reply: ApiReply) -> list[str] | None:
    if 'rel="next"' in reply.headers.get("link", ""):
        return ["# next: in the Link header"]
    body = reply.body if isinstance(reply.body, dict) else {}
    links = body.get("links")
    if isinstance(links, list) and links and is_list_of_links(links):
        return ["next = \"$.links[?rel=='next'].href\""]
    for steps in (("next",), ("links", "next"), ("_links", "next", "href"), ("paging", "next"), ("meta", "next")):
        found = JsonPath(steps).first(body)
        if isinstance(found, str) and found.startswith(("http://", "https://", "/", "?")):
            return [f"next = {quoted(str(JsonPath(steps)))}"]
    return None


def guess_token(reply: ApiReply, known: Sequence[str], key: str) -> GuessedPaging | None:
    body = reply.body if isinstance(reply.body, dict) else {}
    places = [(), *[(name,) for name, below in body.items() if isinstance(below, dict)]]
    for place in places:
        for name in TOKENS:
            if isinstance(JsonPath((*place, name)).first(body), str):
                params = [each for each in known if "token" in each.lower() or "cursor" in each.lower()]
                wanted = next((param for param, field in TOKEN_PARAMS.items() if field == name), "cursor")
                param = params[0] if params else wanted
                lines = [
                    'cursor = "token"',
                    f"param = {quoted(param)}                  # check: the parameter of the token",
                ]
                return GuessedPaging([*lines, f"next = {quoted(str(JsonPath((*place, name))))}"], frozenset({param}))
    return None


def guess_position(reply: ApiReply, known: Sequence[str], key: str) -> GuessedPaging | None:
    kind = [("offset", name) for name in OFFSETS if name in known] + [("page", name) for name in PAGES if name in known]
    if not kind:
        return None
    cursor, param = kind[0]
    body = reply.body if isinstance(reply.body, dict) else {}
    names = [name for name in TOTALS if isinstance(body.get(name), int)]
    total = [f"total = {quoted(f'$.{names[0]}')}"] if names else []
    total = total or (['total = "header:X-Total-Count"'] if "x-total-count" in reply.headers else [])
    stable = ["# is_stable = true    # set it if records never move between pages"] if cursor == "page" else []
    return GuessedPaging(
        [f"cursor = {quoted(cursor)}", f"param = {quoted(param)}", *total, *stable], frozenset({param})
    )


def guess_keyset(reply: ApiReply, known: Sequence[str], key: str) -> GuessedPaging | None:
    param = next((name for name in AFTERS if name in known), None)
    if param is None:
        return None
    _, records = find_records(reply.body)
    start = ["start = 0"] if isinstance(records[0].get(key), int) else []
    lines = [
        'cursor = "keyset"',
        f"param = {quoted(param)}                # check: records come in the order of their keys",
    ]
    return GuessedPaging([*lines, *start], frozenset({param}))


# -- columns ----------------------------------------------------------------------------------------------------------


def column_lines(sample: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    seen: set[str] = set()
    names = dict.fromkeys(name for record in sample for name in record)
    for name in islice(names, COLUMNS_MAX):
        values = [record[name] for record in sample if record.get(name) is not None]
        kind, column = column_type(values), column_name(name)
        column = f"{column}_" if column in RESERVED else column
        if kind is None or column in seen:
            continue
        seen.add(column)
        path = str(JsonPath((name,))).removeprefix("$.")
        yield f"{column} = {{ path = {quoted(path)}, type = {quoted(kind)} }}"


def column_type(values: Sequence[Any]) -> str | None:
    kinds = {type(value) for value in values}
    if not kinds or kinds & {dict, list}:
        return None
    if kinds == {bool}:
        return "boolean"
    if kinds == {int}:
        return "integer" if all(abs(value) < 2**63 for value in values) else None
    if kinds <= {int, float}:
        return "real"
    if kinds != {str}:
        return None
    return "timestamp" if all(parse_iso(value) is not None for value in values) else "text"


def column_name(name: str) -> str:
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    plain = re.sub(r"[^a-z0-9]+", "_", words.lower()).strip("_")[:NAME_LENGTH_MAX]
    return plain if plain and not plain[0].isdigit() else f"c_{plain}"


# -- TOML -------------------------------------------------------------------------------------------------------------


def table_name(name: str) -> str:
    return column_name(name.replace("-", "_"))


def quoted(text: str) -> str:
    return json.dumps(text)


def inline_table(values: Mapping[str, str]) -> str:
    return f"{{ {', '.join(f'{quoted(name)} = {quoted(value)}' for name, value in values.items())} }}"
