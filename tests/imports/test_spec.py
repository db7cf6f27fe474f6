"""Every wrong field of a spec is refused with its position and a correction, before the first request."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leaseway.domain.errors import UsageError
from leaseway.imports.spec.reader import BadSpec, Spec, read_spec, schema_text, spec_hash

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "imports"
SCHEMA = ROOT / "docs" / "reference" / "import-spec.schema.json"
OCM = (EXAMPLES / "ocm_by_hand.toml").read_text()

PLAIN = """
version = 1
[source]
name = "shop"
base_url = "https://shop.example/api"
[resource]
path = "/things"
key = "id"
[sink]
url = "sqlite:///shop.db"
table = "things"
"""


def problems_of(text: str) -> list[str]:
    with pytest.raises(BadSpec) as caught:
        read_spec(text, "import.toml")
    return str(caught.value).split("\n")


def with_resource(lines: str) -> str:
    return PLAIN.replace('key = "id"', f'key = "id"\n{lines}')


def with_source(lines: str) -> str:
    return PLAIN.replace('name = "shop"', f'name = "shop"\n{lines}')


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.toml")))
def test_the_examples_are_valid(name: str) -> None:
    """The examples are the first thing that a new user copies."""
    spec = read_spec((EXAMPLES / name).read_text(), name)
    assert name.startswith(spec.source.name)


def test_a_small_spec_needs_little() -> None:
    """A spec that needs many fields keeps new users from starting."""
    spec = read_spec(PLAIN, "import.toml")
    assert spec.resource.page.kind == "none"
    assert spec.resource.partition.kind == "none"
    assert spec.resource.on_bad_row.policy == "quarantine"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("limit = 1000", "limit = 0", "resource.page.limit: must be at least 1 (is 0)"),
        ("limit = 1000", "limit = 1_000_000", "resource.page.limit: must be at most 100,000 (is 1000000)"),
        ("limit = 1000", "limit = 10.5", "resource.page.limit: must be an integer (is 10.5)"),
        ("limit = 1000", "limit = true", "resource.page.limit: must be an integer (is true)"),
        ("limits =", "limts =", "source: unknown key 'limts'; did you mean 'limits'?"),
        ("version = 1", "version = 2", "version: must be 1 (is 2)"),
        ("version = 1\n", "", "version: is missing"),
        ('table = "poi"', "", "sink.table: is missing"),
        (
            'cursor = "keyset"',
            'cursor = "keyst"',
            "resource.page.cursor: must be one of keyset, offset, page, link, token, none (is 'keyst'); "
            "did you mean 'keyset'?",
        ),
        (
            'cursor = "keyset"\n',
            "",
            "resource.page.cursor: must be one of keyset, offset, page, link, token, none (is missing)",
        ),
        (
            'by = "id_range"',
            'by = "ids"',
            "resource.partition.by: must be one of none, id_range, country, window, box (is 'ids')",
        ),
        ("size = 20_000", 'size = "x"', "resource.partition.size: must be an integer (is 'x')"),
        (
            'type = "text"',
            'type = "txt"',
            "resource.columns.title.type: must be one of text, integer, real, boolean, timestamp, json (is 'txt'); "
            "did you mean 'text'?",
        ),
        (
            'policy = "quarantine"',
            'policy = "ignore"',
            "resource.on_bad_row.policy: must be one of quarantine, skip, fail (is 'ignore')",
        ),
        ("max_ratio = 0.01", "max_ratio = 1.5", "resource.on_bad_row.max_ratio: must be at most 1 (is 1.5)"),
        ("pages_max = 200", "page_max = 200", "resource.guards: unknown key 'page_max'; did you mean 'pages_max'?"),
        (
            'granularity = "1m"',
            'granularity = "1 minute"',
            "resource.stamp.granularity: must be a duration such as '90s', '15m', '1h30m' or '7d' (is '1 minute')",
        ),
        ('lag = "5m"', 'lag = "999999999d"', "resource.stamp.lag: must be at most ten years (is '999999999d')"),
        (
            'overlap = "15m"',
            'overlap = "5m"',
            "resource.incremental.overlap: must be at least lag + granularity, 360 s, or changes are lost (is '5m')",
        ),
        (
            "range = [-90, 90]",
            "range = [90, -90]",
            'resource.quality."AddressInfo.Latitude".range: must start with the smaller number (is [90.0, -90.0])',
        ),
        (
            "range = [-90, 90]",
            "range = [-90]",
            'resource.quality."AddressInfo.Latitude".range: must have exactly 2 entries (is [-90])',
        ),
        (
            'key = "ID"',
            'key = "ID[?x]"',
            "resource.key: 'ID[?x]' is not a path: at character 3 ('[?x]'), the only filter is [?name=='value']",
        ),
        ('key = "ID"', 'key = "$"', "resource.key: must be the path of a field; $ is the whole record"),
        ('key = "ID"', 'key = "ids[*]"', "resource.key: must lead to a single value; 'ids[*]' may lead to many"),
        (
            "/referencedata#",
            "referencedata",
            "resource.filters.country.values_from: must be a path of the source and a JSON path into its reply, "
            "such as '/status#$.maxId' (is 'referencedata$.Countries[*].ID')",
        ),
        (
            "compact = true",
            "compact = []",
            "resource.params.compact: must be true or false or an integer or a number or text (is [])",
        ),
        ('limits = ["1/second"]', "limits = [1]", "source.limits[0]: must be text (is 1)"),
        (
            'limits = ["1/second"]',
            'limits = ["fast"]',
            "source.limits[0]: cannot read the rate 'fast'; write it like '100/minute', '20 per 2 s' or '200k/day'",
        ),
        (
            'limits = ["1/second"]',
            'limits = ["1/second", "60 per 1 s"]',
            "source.limits[1]: '60 per 1 s' has the same window as '1/second'; keep the smaller one",
        ),
        ("concurrency = 2", "concurrency = 0", "source.concurrency: must be at least 1 (is 0)"),
        (
            'table = "poi"',
            'table = "po i"',
            "sink.table: must be table or schema.table, in a-z, 0-9 and _ (is 'po i')",
        ),
        (
            'table = "poi"',
            'table = "pg_poi"',
            "sink.table: names that begin with leaseway_, sqlite_, pg_ are reserved; choose another name",
        ),
        (
            'name = "ocm"',
            'name = "OCM!"',
            "source.name: must be lowercase letters, digits, _ and -, and start with a letter (is 'OCM!')",
        ),
        (
            '\ntitle = { path = "Add',
            '\n"Tit le" = { path = "Add',
            'resource.columns."Tit le": the name must be lowercase letters, digits and _, '
            "and not start with a digit (is 'Tit le')",
        ),
        (
            '\ntitle = { path = "Add',
            '\ndocument = { path = "Add',
            "resource.columns.document: is a column that every table has; rename it, for example to document_",
        ),
        (
            'env = "OCM_API_KEY"',
            'env = "1234-5678"',
            "source.auth.env: must be the name of an environment variable, such as API_KEY (is '1234-5678')",
        ),
        (
            'header = "X-API-Key", env',
            'header = "X-API-Key", param = "key", env',
            "source.auth: needs either header or param, and not both; or user, or token_url",
        ),
        (
            'url = "sqlite:///ocm.db"',
            'url = "ocm.db"',
            "sink.url: must begin with one of sqlite://, postgresql://, mongodb://, mongodb+srv://, "
            "parquet:// (is 'ocm.db')",
        ),
        ('{ sortby = "id_asc" }', "{ maxresults = 5 }", "resource.page: uses the parameter 'maxresults' twice"),
        ("[source]\n", "source = 5\n[sourc]\n", "source: must be a table (is 5)"),
    ],
)
def test_a_wrong_field_is_named_with_its_place(old: str, new: str, message: str) -> None:
    """A spec has a hundred fields, and a user must not have to guess which one is wrong."""
    assert old in OCM
    assert f"import.toml: {message}" in problems_of(OCM.replace(old, new, 1))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ('file = "x.csv"', "source: needs either base_url or file, and not both"),
        ('format = "csv"', "source.format: is for files only; records of a base_url are JSON"),
        (
            'headers = { Authorization = "Bearer x" }',
            "source.headers.Authorization: contains a secret; write "
            'source.auth = { header = "Authorization", env = "MY_KEY" } instead',
        ),
        (
            'headers = { X-Day = "{{ today }}" }',
            "source.headers.X-Day: looks like a template; templates are not supported, so write the text itself",
        ),
        (
            'headers = { "X Y" = "a" }',
            'source.headers."X Y": must be a header name with printable ASCII text',
        ),
        (
            'auth = { param = "key", env = "K", scheme = "Bearer" }',
            "source.auth.scheme: is for a header; remove it, because a param has no scheme",
        ),
        ('auth = { env = "K" }', "source.auth: needs either header or param, and not both; or user, or token_url"),
    ],
)
def test_a_source_that_does_not_fit_together(lines: str, message: str) -> None:
    """Fields that contradict each other would make one of them silently ignored."""
    assert f"import.toml: {message}" in problems_of(with_source(lines))


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("ftp://shop.example", "must begin with https:// or http:// and a host (is 'ftp://shop.example')"),
        ("https://", "must begin with https:// or http:// and a host (is 'https://')"),
        ("https://me:secret@shop.example", "must not contain a password; name its environment variable in source.auth"),
        ("https://shop.example?a=b", "must not have a query; put parameters into resource.params"),
        ("https://shop.example:port", "is not a URL: Port could not be cast to integer value as 'port'"),
    ],
)
def test_a_wrong_address(url: str, message: str) -> None:
    """A password in the URL would end up in logs and in the run tables."""
    text = PLAIN.replace("https://shop.example/api", url)
    assert problems_of(text) == [f"import.toml: source.base_url: {message}"]
    assert "secret@" not in str(problems_of(text))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            'partition = { by = "id_range", size = 10 }',
            "resource.partition.by: id_range needs page.cursor = 'keyset', "
            "or [resource.filters.id] with lower and upper",
        ),
        (
            'page = { cursor = "keyset", param = "after" }\n'
            'partition = { by = "id_range", size = 10, lower = 9, upper = 5 }',
            "resource.partition.upper: must be at least lower, 9 (is 5)",
        ),
        (
            'partition = { by = "country" }',
            "resource.partition.by: country needs [resource.filters.country] with param",
        ),
        (
            'partition = { by = "country" }\nfilters.country = { param = "c" }',
            "resource.filters.country: needs values or values_from: an unknown country may mean the whole world",
        ),
        (
            'partition = { by = "window", start = "2026-01-01", step = "30d" }',
            "resource.partition.by: window needs [resource.filters.window] with lower and upper",
        ),
        (
            'partition = { by = "window", start = "2026-01-01", step = "30d" }\n'
            'filters.window = { lower = "since", path = "changed" }',
            "resource.partition.by: window needs resource.filters.window.upper: without it, every window would read "
            "everything after it; use id_range or country",
        ),
        (
            'partition = { by = "window", start = "soon", step = "30d" }\n'
            'filters.window = { lower = "since", upper = "until" }',
            "resource.partition.start: must be an instant such as '2026-04-01T00:00Z' (is 'soon')",
        ),
        (
            'partition = { by = "window", start = "2026-01-01", end = "2025-01-01", step = "30d" }\n'
            'filters.window = { lower = "since", upper = "until" }',
            "resource.partition.end: must be after the start, 2026-01-01 (is '2025-01-01')",
        ),
        (
            'partition = { by = "window", start = "2026-01-01", step = "0s" }\n'
            'filters.window = { lower = "since", upper = "until" }',
            "resource.partition.step: must be greater than zero",
        ),
        ("filters.x = {}", "resource.filters.x: needs param (for values), or lower or upper (for a range)"),
        (
            'filters.x = { param = "a", lower = "b" }',
            "resource.filters.x: needs either param (for values) or lower and upper (for a range), and not both",
        ),
        (
            'filters.x = { lower = "b" }',
            "resource.filters.x.path: is required: the source does not apply the upper end, "
            "so it is checked in each record",
        ),
        (
            'partition = { by = "window", start = "2026-01-01", step = "90s" }\n'
            'stamp = { field = "at", granularity = "1m" }\nfilters.window = { lower = "since", upper = "until" }',
            "resource.partition.step: must be a multiple of stamp.granularity, 1m: stamps would "
            "not tell which window a record belongs to",
        ),
        (
            'partition = { by = "country", then = { by = "window", start = "2026-01-01", step = "30d" } }\n'
            'filters.country = { param = "c", values = ["ES"] }',
            "resource.partition.then.by: window needs [resource.filters.window] with lower and upper",
        ),
        (
            'partition = { by = "country", then = { by = "window", start = "soon", step = "30d" } }\n'
            'filters.country = { param = "c", values = ["ES"] }\nfilters.window = { lower = "a", upper = "b" }',
            "resource.partition.then.start: must be an instant such as '2026-04-01T00:00Z' (is 'soon')",
        ),
        (
            'partition = { by = "country", then = { by = "window", start = "2026-01-01", step = "99999999d" } }',
            "resource.partition.then.step: must be at most ten years (is '99999999d')",
        ),
        (
            'partition = { by = "country", then = { by = "country" } }',
            "resource.partition.then.by: must be one of window (is 'country')",
        ),
        (
            'partition = { by = "country", group_below = 10 }\nfilters.country = { param = "c", values = ["ES"] }',
            "resource.partition.group_below: needs resource.filters.country.rows, as in { AD = 40, ES = 12_000 }, "
            "or rows_from: the number of rows of each country",
        ),
        (
            'filters.country = { param = "c", values = ["ES"], rows = { FR = 3 } }',
            "resource.filters.country.rows: 'FR' is not one of the values",
        ),
        (
            'filters.country = { param = "c", values = ["ES"], rows_from = "/a#$.b" }',
            "resource.filters.country.rows_from: needs values_from, because both lists are read in parallel; "
            "with values, write rows = { ES = 9 }",
        ),
        (
            'filters.country = { param = "c", rows = { FR = -3 } }',
            "resource.filters.country.rows.FR: must be at least 0 (is -3)",
        ),
        (
            'partition = { by = "box" }',
            "resource.partition.by: box needs [resource.filters.box] with param, box, latitude and longitude",
        ),
        (
            'partition = { by = "box", area = [50, 0, 40, 10] }',
            "resource.partition.area: south must be less than north, both between -90 and 90 (is 50, 40)",
        ),
        ('partition = { by = "box", degrees = 200 }', "resource.partition.degrees: must be at most 90 (is 200)"),
        (
            'partition = { by = "box", degrees = 0.02 }',
            "resource.partition.degrees: makes 162,000,000 shards, and 100,000 are the maximum; use larger shards",
        ),
        (
            'filters.box = { param = "bbox", box = "west,south,east" }',
            "resource.filters.box.box: must be one of (south,west),(north,east), west,south,east,north, "
            "south,west,north,east (is 'west,south,east'); did you mean 'west,south,east,north'?",
        ),
        (
            'filters.box = { param = "bbox", box = "west,south,east,north", latitude = "lat" }',
            "resource.filters.box.longitude: is required, because a point on an edge belongs to one box",
        ),
        (
            'filters.box = { box = "west,south,east,north", latitude = "lat", longitude = "lon" }',
            "resource.filters.box.param: is required: the parameter that contains all four sides",
        ),
        (
            'filters.box = { param = "b", box = "west,south,east,north", latitude = "lat[*]", longitude = "lon" }',
            "resource.filters.box.latitude: must lead to a single value; 'lat[*]' may lead to many",
        ),
        (
            'filters.box = { param = "b", box = "west,south,east,north", path = "x", latitude = "a", longitude = "b" }',
            "resource.filters.box.path: is not for a box; a box has param, box, latitude and longitude",
        ),
        (
            'filters.box = { param = "bbox", latitude = "lat" }',
            'resource.filters.box.latitude: is for a box; set its format: box = "west,south,east,north"',
        ),
        ('incremental = { overlap = "1h" }', "resource.incremental.filter: needs [resource.filters.window] with lower"),
        ('incremental = { overlap = "1h" }', "resource.stamp: is required by resource.incremental"),
        ("quality = { id = {} }", "resource.quality.id: checks nothing; set range, one_of or not_null"),
        (
            'params = { api_key = "x" }',
            'resource.params.api_key: is a secret; write source.auth = { param = "api_key", env = "MY_KEY" }',
        ),
        (
            'page = { cursor = "offset", limit = 10, limit_min = 20 }',
            "resource.page.limit_min: must be at most the limit, 10 (is 20)",
        ),
        (
            'page = { cursor = "link", short_page_is_end = true }',
            "resource.page.short_page_is_end: remove it: with cursor = 'link' the source reports the end",
        ),
        (
            'page = { cursor = "keyset", param = "from", is_inclusive = true }',
            "resource.page.is_inclusive: needs an integer as resource.page.start, such as 0",
        ),
        (
            'page = { cursor = "offset", next = "$.next" }',
            "resource.page: unknown key 'next'; there are limit, limit_param, limit_min, fixed, short_page_is_end, "
            "param, total",
        ),
    ],
)
def test_a_resource_that_does_not_fit_together(lines: str, message: str) -> None:
    """Each of these would read nothing, too much or the wrong part, hours later."""
    assert f"import.toml: {message}" in problems_of(with_resource(lines))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("[budget]", "budget: limits nothing; set requests, or price and money"),
        (
            "[budget]\nmoney = 5",
            "budget.price: is required with money: the price of one request",
        ),
        ("[budget]\nmoney = 1\nprice = 2", "budget.money: must be enough for one request, 2 (is 1)"),
        ("[budget]\nrequests = 0", "budget.requests: must be at least 1 (is 0)"),
        ("[budget]\nprice = 0", "budget.price: must be more than 0 (is 0)"),
        ("[budget]\nrequest = 5", "budget: unknown key 'request'; did you mean 'requests'?"),
        ("[budget]\nrequests = 5\ncurrency = ''", "budget.currency: must have at least 1 characters (is '')"),
    ],
)
def test_a_wrong_budget(lines: str, message: str) -> None:
    """A budget without a bound would allow any cost."""
    assert problems_of(f"{PLAIN}\n{lines}") == [f"import.toml: {message}"]


def test_a_budget_is_the_tighter_of_its_bounds_and_no_part_of_the_hash() -> None:
    """A run that has used up its budget must be resumable with a larger one."""
    spec = read_spec(f"{PLAIN}\n[budget]\nrequests = 900\nprice = 0.01\nmoney = 5", "a")
    assert spec.budget is not None
    assert spec.budget.requests_max == 500
    assert spec_hash(spec) == spec_hash(read_spec(PLAIN, "a"))


SHORT = """
version = 1
[source]
name = "ocm"
kind = "ocm"
auth = { env = "OCM_API_KEY" }
[sink]
url = "sqlite:///ocm.db"
table = "poi"
"""


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ('[resource]\nkey = "ID"', "resource.key: is set by kind = 'ocm'; remove it, or describe the API with "),
        ('[resource]\npath = "/poi"', "resource.path: is set by kind = 'ocm'"),
        ("[resource.params]\nverbose = true", "resource.params: is set by kind = 'ocm'"),
        ('[resource.page]\ncursor = "offset"', "resource.page.cursor: is not for kind = 'ocm'; allowed here: li"),
        ("[resource.page]\nlimit = 0", "resource.page.limit: must be at least 1 (is 0)"),
        ('[resource.filters.box]\nparam = "b"', "resource.filters.box: is not for kind = 'ocm'; allowed here: c"),
        (
            '[resource.filters.country]\nparam = "b"',
            "resource.filters.country.param: is not for kind = 'ocm'; allowed",
        ),
        ("[resource.deletes.flag]\nparam = 5", "resource.deletes.flag.param: is not for kind = 'ocm'; allowed"),
        ("[resource.deletes]\nflag = 5", "resource.deletes.flag: must be a table (is 5)"),
        ("[resource]\nfilters = 5", "resource.filters: must be a table (is 5)"),
        ("[resource]\npage = 5", "resource.page: must be a table (is 5)"),
        (
            '[resource.partition]\nby = "window"\nstart = "2020-01-01"\nstep = "30d"',
            "resource.partition.by: window needs resource.filters.window.upper: without it, every window would read",
        ),
        (
            '[resource.partition]\nby = "country"\ngroup_below = 9',
            "resource.partition.group_below: needs resource.filters.country.rows",
        ),
        (
            '[resource.incremental]\noverlap = "5m"',
            "resource.incremental.overlap: must be at least lag + granularity, 66",
        ),
    ],
)
def test_what_a_client_knows_is_not_written(lines: str, message: str) -> None:
    """A field that is ignored would be believed to work."""
    (problem,) = problems_of(f"{SHORT}\n{lines}")
    assert problem.startswith(f"import.toml: {message}")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('auth = { env = "OCM_API_KEY" }', "", "source.auth.env: is missing"),
        ("{ env", '{ header = "K", env', "source.auth.header: is not for kind = 'ocm'; allowed here: env"),
        (
            'kind = "ocm"',
            'kind = "ocm"\nfile = "x.csv"',
            "source.file: is set by kind = 'ocm'; remove it, or describe",
        ),
        (
            'kind = "ocm"',
            'kind = "ocm"\nheaders.X = "y"',
            "source.headers.X: is not for kind = 'ocm'; allowed here: U",
        ),
        ('kind = "ocm"', 'kind = "osm"', "source.kind: must be one of json, ocm (is 'osm'); did you mean 'ocm'?"),
    ],
)
def test_a_client_needs_little_and_takes_nothing_else(old: str, new: str, message: str) -> None:
    """A field that the built-in client ignores would be believed to work."""
    assert problems_of(SHORT.replace(old, new))[0].startswith(f"import.toml: {message}")


def test_the_spec_of_a_client_says_what_the_client_does() -> None:
    """The client and the spec both state these properties; the planner, the table and the hash use the spec."""
    from leaseway.imports.sources.ocm import CAPS, PAGE_LIMIT, VOLATILE, OpenChargeMap

    resource = read_spec(SHORT, "a").resource
    assert (resource.key, resource.page.limit, tuple(resource.volatile)) == (CAPS.order, PAGE_LIMIT, VOLATILE)
    assert resource.stamp is not None
    assert resource.stamp.field == OpenChargeMap.stamp_field
    assert (resource.stamp.granularity_us, resource.stamp.lag_us) == (CAPS.granularity_us, CAPS.lag_us)
    assert {"id", *resource.filters} <= CAPS.filters
    read_spec(f"{SHORT}\n[resource.deletes]\nflag = {{}}", "its parameters are the client's")


@pytest.mark.parametrize(
    ("file", "message"),
    [
        (
            "things.jsonl.gz",
            "source.file: is compressed; decompress it first, so that a run can resume within the file",
        ),
        ("things.txt", "source.format: is required, jsonl or csv: the name 'things.txt' does not tell"),
        ("things.csv", "resource.path: is for a base_url; remove it"),
    ],
)
def test_a_wrong_file(file: str, message: str) -> None:
    """A wrong file must be refused with the field to change, before the run starts."""
    text = PLAIN.replace('base_url = "https://shop.example/api"', f'file = "{file}"')
    assert f"import.toml: {message}" in problems_of(text)


def test_all_problems_are_told_at_once() -> None:
    """Otherwise a user corrects one field, starts again, and meets the next error."""
    text = OCM.replace("limit = 1000", "limit = 0").replace("limits =", "limts =").replace("size = 20_000", "size = 0")
    places = [line.split(": ")[1] for line in problems_of(text)]
    assert places == ["source", "resource.page.limit", "resource.partition.size"]


def test_broken_toml_is_told_with_its_line() -> None:
    """A syntax error in a long file cannot be found without its line."""
    assert problems_of("version = 1\nsource = [") == ["import.toml: TOML: Invalid value (at end of document)"]
    assert "at line 2" in problems_of("version = 1\nsource = ]")[0]


def test_a_spec_of_absurd_size_is_not_read() -> None:
    """A data file passed as a spec must not use up the memory."""
    assert "must be at most 1,000,000 characters" in problems_of("#" * 1_000_001)[0]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=200, deadline=None)
@given(value=JSON, data=st.data())
def test_nonsense_anywhere_is_a_message_and_never_a_crash(value: Any, data: st.DataObject) -> None:
    """A parser that crashes on one odd value tells the user nothing."""
    from leaseway.imports.spec.checks import check_spec
    from leaseway.imports.spec.parser import parse_value

    document: Any = tomllib.loads(OCM)
    target = document
    for _ in range(data.draw(st.integers(0, 3))):
        below = [name for name, each in target.items() if isinstance(each, dict) and each]
        if not below:
            break
        target = target[data.draw(st.sampled_from(below))]
    target[data.draw(st.sampled_from(sorted(target)))] = value
    problems: list[tuple[str, str]] = []
    spec = parse_value(Spec, document, "", problems)
    if not problems:
        problems.extend(check_spec(spec))
    assert all(place and problem for place, problem in problems)


def test_what_changes_the_rows_changes_the_hash() -> None:
    """A run that resumes with another key or filter would mix two imports in one table."""
    before = spec_hash(read_spec(OCM, "a"))
    for old, new in (
        ('key = "ID"', 'key = "UUID"'),
        ("compact = true", "compact = false"),
        ('"IsRecentlyVerified", ', ""),
        ('table = "poi"', 'table = "pois"'),
        ("size = 20_000", "size = 10_000"),
        ('type = "real"', 'type = "text"'),
    ):
        assert spec_hash(read_spec(OCM.replace(old, new, 1), "a")) != before, old


def test_what_does_not_change_the_rows_leaves_the_hash() -> None:
    """A run that was stopped because it was too fast must be resumable at a lower rate."""
    before = spec_hash(read_spec(OCM, "a"))
    for old, new in (
        ('limits = ["1/second"]', 'limits = ["1 per 5 s"]'),
        ("concurrency = 2", "concurrency = 1"),
        ("limit = 1000", "limit = 500"),
        ("pages_max = 200", "pages_max = 500"),
        ("OCM_API_KEY", "OTHER_KEY"),
        ("sqlite:///ocm.db", "postgresql://me:password@host/db"),
        ("# These are computed", "# Those are computed"),
    ):
        assert spec_hash(read_spec(OCM.replace(old, new, 1), "b")) == before, old


def test_the_order_of_keys_does_not_matter_to_the_hash() -> None:
    """A reformatted spec must not refuse to resume a run."""
    swapped = OCM.replace("{ compact = true, verbose = false,", "{ verbose = false, compact = true,")
    assert swapped != OCM
    assert spec_hash(read_spec(swapped, "a")) == spec_hash(read_spec(OCM, "a"))


def test_a_page_number_depends_on_the_size_of_its_page() -> None:
    """Page 7 of another size starts at another row, so a resumed run would skip rows."""
    text = with_resource('page = { cursor = "page", limit_param = "size", limit = 10 }')
    assert spec_hash(read_spec(text, "a")) != spec_hash(read_spec(text.replace("= 10 }", "= 20 }"), "a"))


def test_the_published_schema_is_the_one_in_use() -> None:
    """Editors would underline valid fields."""
    assert SCHEMA.read_text() == schema_text(), (
        "write it anew: ./dev run python -m leaseway.imports.spec.reader > docs/reference/import-spec.schema.json"
    )


def test_the_schema_explains_the_fields() -> None:
    """Editors show this description next to the field."""
    defs = json.loads(schema_text())["$defs"]
    assert defs["Stamp"]["properties"]["lag"]["description"] == "How long until a change becomes visible."
    assert defs["Resource"]["properties"]["path"]["description"] == "Relative to base_url."


def test_a_bad_spec_is_the_users_to_fix() -> None:
    """Only usage errors exit with code 2 and without a traceback."""
    assert issubclass(BadSpec, UsageError)
