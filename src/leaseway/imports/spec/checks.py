"""Relations between fields that no single field can check. Every problem names the field and the way out."""

import re
from collections.abc import Iterator
from urllib.parse import urlsplit

from leaseway.domain.errors import BadValue
from leaseway.domain.limits.limit import WINDOWS_MAX, parse_rate
from leaseway.domain.validators import url_scheme
from leaseway.imports.domain import timestamps
from leaseway.imports.domain.jsonpath import parse_path
from leaseway.imports.domain.page import RESERVED
from leaseway.imports.spec.model import (
    HEADER,
    AuthSpec,
    IdRange,
    KeysetPaging,
    LinkPaging,
    PagingSpec,
    Resource,
    RunBudget,
    SinglePaging,
    SinkSpec,
    SourceSpec,
    Spec,
    TokenPaging,
    Windows,
)
from leaseway.imports.spec.parser import child_field
from leaseway.imports.spec.resource_checks import check_deletes, check_filter, check_incremental, check_partition

Problem = tuple[str, str]

SECRET_HEADERS = frozenset({"authorization", "proxy-authorization", "x-api-key", "api-key", "x-auth-token", "cookie"})
SECRET_PARAMS = frozenset({"api_key", "apikey", "api-key", "access_token", "auth_token", "password"})
HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
TEMPLATE = re.compile(r"\{\{|\{%|\$\{")
TAKEN = ("leaseway_", "sqlite_", "pg_")
SINKS = ("sqlite", "postgresql", "mongodb", "mongodb+srv", "parquet")


def check_spec(spec: Spec) -> Iterator[Problem]:
    yield from check_source(spec.source)
    yield from check_resource(spec.resource, is_file=spec.source.file is not None)
    yield from check_deletes(spec)
    yield from check_sink(spec.sink)
    if spec.budget is not None:
        yield from check_budget(spec.budget)


# -- source -----------------------------------------------------------------------------------------------------------


def check_source(source: SourceSpec) -> Iterator[Problem]:
    if (source.base_url is None) == (source.file is None):
        yield "source", "needs either base_url or file, and not both"
    if source.base_url is not None:
        yield from check_url(source.base_url)
    if source.file is not None:
        yield from check_file(source)
    elif source.format is not None:
        yield "source.format", "is for files only; records of a base_url are JSON"
    for name, value in source.headers.items():
        yield from check_header(child_field("source.headers", name), name, value)
    for number, origin in enumerate(source.trusted):
        parts = urlsplit(origin)
        if parts.scheme not in ("http", "https") or not parts.netloc or parts.path.strip("/"):
            yield f"source.trusted[{number}]", f"must be an origin such as https://api.example (is {origin!r})"
    if source.auth is not None:
        yield from check_auth(source.auth)
    yield from check_limits(source.limits)


def check_url(url: str) -> Iterator[Problem]:
    try:
        parts = urlsplit(url)
        has_login = parts.username is not None or parts.password is not None
        has_host = bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError as error:
        yield "source.base_url", f"is not a URL: {error}"
        return
    if has_login:
        yield "source.base_url", "must not contain a password; name its environment variable in source.auth"
    elif parts.scheme not in ("http", "https") or not has_host:
        yield "source.base_url", f"must begin with https:// or http:// and a host (is {url!r})"
    elif parts.query or parts.fragment:
        yield "source.base_url", "must not have a query; put parameters into resource.params"
    elif TEMPLATE.search(url):
        yield "source.base_url", "looks like a template; templates are not supported, so write the URL itself"


def check_file(source: SourceSpec) -> Iterator[Problem]:
    name = str(source.file).lower()
    if name.endswith((".gz", ".zip", ".bz2", ".xz", ".zst")):
        yield "source.file", "is compressed; decompress it first, so that a run can resume within the file"
    elif source.format is None and not name.endswith((".jsonl", ".ndjson", ".csv")):
        yield "source.format", f"is required, jsonl or csv: the name {source.file!r} does not tell"
    for field in ("auth", "headers", "limits", "concurrency"):
        if getattr(source, field):
            yield f"source.{field}", "is for a base_url; remove it"


def check_header(place: str, name: str, value: str) -> Iterator[Problem]:
    if not HEADER_NAME.fullmatch(name) or not value.isprintable() or not value.isascii():
        yield place, "must be a header name with printable ASCII text"
    elif name.lower() in SECRET_HEADERS:
        yield place, f'contains a secret; write source.auth = {{ header = "{name}", env = "MY_KEY" }} instead'
    elif TEMPLATE.search(value):
        yield place, "looks like a template; templates are not supported, so write the text itself"


def check_auth(auth: AuthSpec) -> Iterator[Problem]:
    if auth.env is None and auth.file is None and auth.refresh_file is None and auth.refresh_env is None:
        yield "source.auth.env", "is missing; it names the environment variable with the secret, or set file"
    if auth.env is not None and auth.file is not None:
        yield "source.auth", "needs either env or file, the place of the secret, and not both"
    yield from check_auth_kind(auth)
    if auth.header is not None and not HEADER_NAME.fullmatch(auth.header):
        yield "source.auth.header", f"must be a header name such as X-API-Key (is {auth.header!r})"
    if auth.scheme is not None and auth.header is None and auth.token_url is None:
        yield "source.auth.scheme", "is for a header; remove it, because a param has no scheme"


def check_auth_kind(auth: AuthSpec) -> Iterator[Problem]:
    has_login = auth.user is not None or auth.token_url is not None
    if not has_login and (auth.header is None) == (auth.param is None):
        yield "source.auth", "needs either header or param, and not both; or user, or token_url"
    if has_login and auth.param is not None:
        yield "source.auth.param", "remove it: a user name or a token is sent in a header"
    if auth.user is not None and auth.token_url is not None:
        yield "source.auth.user", "remove it: with token_url, the client is named by client_id"
    if (auth.token_url is None) != (auth.client_id is None):
        yield "source.auth", "needs both token_url and client_id, or neither"
    if auth.token_url is not None and not auth.token_url.startswith(("https://", "http://")):
        yield "source.auth.token_url", f"must begin with https:// or http:// (is {auth.token_url!r})"
    if auth.scope is not None and auth.token_url is None:
        yield "source.auth.scope", "is for token_url; remove it"
    for field in ("refresh_file", "refresh_env"):
        if getattr(auth, field) is not None and auth.token_url is None:
            yield f"source.auth.{field}", "needs token_url, which exchanges the refresh token for a token"
    if auth.refresh_file is not None and auth.refresh_env is not None:
        yield "source.auth", "needs either refresh_file, for one machine, or refresh_env, and not both"


def check_limits(limits: list[str]) -> Iterator[Problem]:
    windows: dict[int, str] = {}
    for number, text in enumerate(limits):
        place = f"source.limits[{number}]"
        try:
            rate = parse_rate(place, text)
        except BadValue as error:
            yield place, error.problem
            continue
        if rate.window_us in windows:
            yield place, f"{text!r} has the same window as {windows[rate.window_us]!r}; keep the smaller one"
        windows[rate.window_us] = text
    if len(limits) > WINDOWS_MAX:
        yield "source.limits", f"has {len(limits)} rates; at most {WINDOWS_MAX} are kept"


# -- resource ---------------------------------------------------------------------------------------------------------


def check_resource(resource: Resource, is_file: bool) -> Iterator[Problem]:
    yield from check_paths(resource)
    unreadable = list(check_durations(resource))
    yield from unreadable
    if is_file:
        yield from check_file_resource(resource)
    elif TEMPLATE.search(resource.path) or "?" in resource.path or "#" in resource.path:
        yield "resource.path", f"must be a plain path; put parameters into resource.params (is {resource.path!r})"
    for name in resource.params:
        if name.lower() in SECRET_PARAMS:
            yield (
                child_field("resource.params", name),
                f'is a secret; write source.auth = {{ param = "{name}", env = "MY_KEY" }}',
            )
    yield from check_page(resource.page)
    yield from check_body(resource)
    for name, filter_ in resource.filters.items():
        yield from check_filter(f"resource.filters.{name}", filter_)
    if not unreadable:
        yield from check_partition(resource)
        yield from check_incremental(resource)
    yield from check_columns(resource)


def check_paths(resource: Resource) -> Iterator[Problem]:
    singles = {"resource.key": resource.key}
    if resource.stamp is not None:
        singles["resource.stamp.field"] = resource.stamp.field
    singles |= {f"resource.volatile[{number}]": path for number, path in enumerate(resource.volatile)}
    singles |= {f"resource.columns.{name}.path": column.path for name, column in resource.columns.items()}
    singles |= {child_field("resource.quality", path): path for path in resource.quality}
    if resource.deletes is not None and resource.deletes.record is not None:
        singles["resource.deletes.record.field"] = resource.deletes.record.field
    for name in ("more", "total", "pages", "next"):
        if (text := getattr(resource.page, name, None)) is not None and not text.startswith(HEADER):
            singles[f"resource.page.{name}"] = text
    for name, filter_ in resource.filters.items():
        for field in ("path", "latitude", "longitude"):
            if (text := getattr(filter_, field)) is not None:
                singles[f"resource.filters.{name}.{field}"] = text
    for place, text in singles.items():
        yield from check_path(place, text, is_single=not place.startswith(("resource.columns", "resource.volatile")))
    yield from check_path("resource.records", resource.records)
    for place, text in references(resource):
        yield from check_path(place, text.partition("#")[2])


def references(resource: Resource) -> Iterator[tuple[str, str]]:
    for name, filter_ in resource.filters.items():
        if filter_.values_from is not None:
            yield f"resource.filters.{name}.values_from", filter_.values_from
        if filter_.rows_from is not None:
            yield f"resource.filters.{name}.rows_from", filter_.rows_from
    if isinstance(resource.partition, IdRange) and isinstance(resource.partition.upper, str):
        yield "resource.partition.upper", resource.partition.upper


def check_path(place: str, text: str, is_single: bool = False) -> Iterator[Problem]:
    try:
        path = parse_path(place, text)
    except BadValue as error:
        yield place, error.problem
        return
    if is_single and path.has_star:
        yield place, f"must lead to a single value; {text!r} may lead to many"
    elif is_single and not path.steps:
        yield place, "must be the path of a field; $ is the whole record"


def check_durations(resource: Resource) -> Iterator[Problem]:
    texts = {}
    if (stamp := resource.stamp) is not None:
        texts = {"resource.stamp.granularity": stamp.granularity, "resource.stamp.lag": stamp.lag}
    if isinstance(resource.partition, Windows):
        texts["resource.partition.step"] = resource.partition.step
    if (then := getattr(resource.partition, "then", None)) is not None:
        texts["resource.partition.then.step"] = then.step
    if resource.incremental is not None:
        texts["resource.incremental.overlap"] = resource.incremental.overlap
        texts["resource.incremental.reconcile"] = resource.incremental.reconcile
    for place, text in texts.items():
        try:
            timestamps.duration_us(place, text)
        except BadValue as error:
            yield place, error.problem


def check_file_resource(resource: Resource) -> Iterator[Problem]:
    for field in ("path", "params", "filters"):
        if getattr(resource, field):
            yield f"resource.{field}", "is for a base_url; remove it"
    if not isinstance(resource.page, SinglePaging):
        yield "resource.page.cursor", "is for a base_url; remove it, because a file is read from beginning to end"
    if resource.records != "$":
        yield "resource.records", "is for a base_url; each line of a file is one record"
    if resource.partition.kind != "none":
        yield "resource.partition.by", "must be none: a file is one shard"


def check_page(page: PagingSpec) -> Iterator[Problem]:
    if page.limit_min is not None and page.limit_min > page.limit:
        yield "resource.page.limit_min", f"must be at most the limit, {page.limit:,} (is {page.limit_min:,})"
    taken = [page.limit_param, getattr(page, "param", None), *page.fixed]
    names = [name for name in taken if name is not None]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield "resource.page", f"uses the parameter {name!r} twice"
    if isinstance(page, KeysetPaging) and page.is_inclusive and not isinstance(page.start, int):
        yield "resource.page.is_inclusive", "needs an integer as resource.page.start, such as 0"
    if page.short_page_is_end and isinstance(page, LinkPaging | TokenPaging):
        yield "resource.page.short_page_is_end", f"remove it: with cursor = {page.kind!r} the source reports the end"


def check_body(resource: Resource) -> Iterator[Problem]:
    if resource.body and resource.method != "POST":
        yield "resource.body", 'needs method = "POST"'
    page = resource.page
    names = {"resource.page.param": getattr(page, "param", None), "resource.page.limit_param": page.limit_param}
    names |= {child_field("resource.page.fixed", name): name for name in page.fixed}
    names |= {child_field("resource.params", name): name for name in resource.params}
    for place, name in names.items():
        if name is None or not name.startswith("$"):
            continue
        if resource.method != "POST":
            yield place, f'is a path into the body, which needs method = "POST" (is {name!r})'
        problems = list(check_path(place, name, is_single=True))
        yield from problems
        if not problems and not all(isinstance(step, str) for step in parse_path(place, name).steps):
            yield place, f"must be a path of names, such as $.variables.after (is {name!r})"


def check_columns(resource: Resource) -> Iterator[Problem]:
    for name in resource.columns:
        if name in RESERVED:
            yield f"resource.columns.{name}", f"is a column that every table has; rename it, for example to {name}_"
    for path, made in resource.quality.items():
        if made.range is not None and made.range[0] > made.range[1]:
            yield (
                f"{child_field('resource.quality', path)}.range",
                f"must start with the smaller number (is {list(made.range)})",
            )
        if made.range is None and made.one_of is None and not made.not_null:
            yield child_field("resource.quality", path), "checks nothing; set range, one_of or not_null"


# -- sink -------------------------------------------------------------------------------------------------------------


def check_sink(sink: SinkSpec) -> Iterator[Problem]:
    scheme = url_scheme(sink.url) if "://" in sink.url else ""
    if scheme not in SINKS:
        yield "sink.url", f"must begin with one of {', '.join(f'{name}://' for name in SINKS)} (is {sink.url[:40]!r})"
    if sink.table.rpartition(".")[2].startswith(TAKEN):
        yield "sink.table", f"names that begin with {', '.join(TAKEN)} are reserved; choose another name"
    if scheme == "sqlite" and "." in sink.table:
        yield "sink.table", f"SQLite has no schemas; write {sink.table.rpartition('.')[2]!r} (is {sink.table!r})"


# -- budget -----------------------------------------------------------------------------------------------------------


def check_budget(budget: RunBudget) -> Iterator[Problem]:
    if budget.money is not None and budget.price is None:
        yield "budget.price", "is required with money: the price of one request"
    if budget.requests is None and budget.money is None and budget.price is None:
        yield "budget", "limits nothing; set requests, or price and money"
    if budget.requests_max == 0:
        yield "budget.money", f"must be enough for one request, {budget.price:g} (is {budget.money:g})"
