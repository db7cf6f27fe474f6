"""Any JSON API over HTTP, described by a spec.

shard, cursor ─► one GET ─► status ─► JSON ─► records ─► those of the shard, and the next cursor
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, cast
from urllib.parse import urlencode

from leaseway.domain.errors import BadValue, TerminalError
from leaseway.domain.http import HttpReply
from leaseway.domain.ids import Instant
from leaseway.domain.limits.limit import Limit
from leaseway.domain.limits.rate_limit_headers import TooLarge, parse_date_us
from leaseway.imports.domain.jsonpath import MISSING, JsonPath, decode_body, parse_path
from leaseway.imports.domain.page import Page, Record
from leaseway.imports.domain.partition import Cursor, Shard
from leaseway.imports.sources.credentials import Credentials
from leaseway.imports.sources.paging import KeysetPager, are_ascending, make_pager
from leaseway.imports.sources.port import BadReply, HeavyPage, RequestClient, SourceCapabilities, SourceProbe
from leaseway.imports.sources.positional_paging import NextPage, PageQuery, PageReply, limit_param, read_count
from leaseway.imports.sources.predicates import DELETED, PredicateFilters, RecordTest
from leaseway.imports.sources.status_mapping import (
    EndOfSource,
    NoSuchPage,
    UnusableRequest,
    WrongBody,
    act_on_status,
    body_sample,
    check_status,
)
from leaseway.imports.spec.model import Filter, IdRange, OffsetPaging, PageNumberPaging, Resource, Spec

VALUES_MAX = 10_000
UNAUTHORIZED = 401
BODY_PATH = "$."
ACCEPT = "application/json, */*;q=0.5"
"""JSON, also where its media type has another name, such as application/vnd.api+json."""

Bodies = Mapping[str, Any]
"""Replies by path."""


class LookupResult(NamedTuple):
    first: Any
    all: list[Any]


def list_references(resource: Resource) -> list[str]:
    upper = resource.partition.upper if isinstance(resource.partition, IdRange) else None
    of_filters = [each for filter_ in resource.filters.values() for each in (filter_.values_from, filter_.rows_from)]
    return [each for each in (upper, *of_filters) if isinstance(each, str)]


def look_up(reference: str, bodies: Bodies) -> LookupResult:
    path, _, place = reference.partition("#")
    compiled = parse_path(reference, place)
    return LookupResult(compiled.first(bodies[path]), compiled.all(bodies[path]))


def read_id_max(resource: Resource, bodies: Bodies) -> int | None:
    upper = resource.partition.upper if isinstance(resource.partition, IdRange) else None
    if not isinstance(upper, str):
        return upper
    value = look_up(upper, bodies).first
    if not isinstance(value, int) or isinstance(value, bool):
        is_now = "nothing" if value is MISSING else repr(value)
        raise BadReply(f"resource.partition.upper: {upper} must lead to an integer (leads to {is_now[:100]})")
    return value


def read_values(resource: Resource, bodies: Bodies) -> dict[str, list[str]]:
    """The values of each filter, in order."""
    values: dict[str, list[str]] = {}
    for name, filter_ in resource.filters.items():
        if filter_.values is not None:
            values[name] = [str(value) for value in filter_.values]
        elif filter_.values_from is not None:
            found = [value for value in look_up(filter_.values_from, bodies).all if isinstance(value, str | int)]
            if not found or len(found) > VALUES_MAX:
                place = f"resource.filters.{name}.values_from"
                raise BadReply(f"{place}: {filter_.values_from} leads to {len(found):,} values")
            values[name] = list(dict.fromkeys(str(value) for value in found))
    return values


def read_counts(resource: Resource, bodies: Bodies) -> dict[str, dict[str, int]]:
    """Rows per value, where the source reports them."""
    filters = resource.filters.items()
    return {
        name: read_filter_counts(f"resource.filters.{name}", each, bodies) for name, each in filters if each.rows_from
    }


def read_filter_counts(place: str, filter_: Filter, bodies: Bodies) -> dict[str, int]:
    values = look_up(str(filter_.values_from), bodies).all
    counts = look_up(str(filter_.rows_from), bodies).all
    if len(values) != len(counts):
        problem = f"leads to {len(counts):,} numbers, and values_from to {len(values):,} values"
        raise BadReply(f"{place}.rows_from: {filter_.rows_from} {problem}; both lists must have the same length")
    strange = next((count for count in counts if not isinstance(count, int) or isinstance(count, bool)), None)
    if strange is not None:
        raise BadReply(f"{place}.rows_from: {filter_.rows_from} must lead to integers (is {str(strange)[:40]!r})")
    return {str(value): count for value, count in zip(values, counts, strict=True)}


class JsonSource:
    """The resource of one spec. `environ` contains the secret that the spec names."""

    def __init__(self, spec: Spec, environ: Mapping[str, str]) -> None:
        if spec.source.base_url is None:
            raise BadValue("source.base_url", "is missing")
        self.name = spec.source.name
        self._spec, self._resource = spec, spec.resource
        self._base = spec.source.base_url.rstrip("/")
        self._credentials = Credentials(spec, environ)
        self._redactor = self._credentials.redactor
        self.share_tokens = self._credentials.share_tokens
        self._headers = {"Accept": ACCEPT, **spec.source.headers}
        self._records = parse_path("records", self._resource.records)
        self._key = parse_path("key", self._resource.key).first
        self._narrowing = PredicateFilters(self._resource)
        self._pager = make_pager(self._resource, self._credentials.param, spec.source.trusted)
        deletes = self._resource.deletes
        self._flag_params = None if deletes is None or deletes.flag is None else deletes.flag.params
        self._confirm = None if deletes is None or deletes.sweep is None else deletes.sweep.confirm
        self.confirm_max = 0 if self._confirm is None else self._confirm.batch
        self.caps = self._caps()

    # -- capabilities --

    def _caps(self) -> SourceCapabilities:
        page, stamp = self._resource.page, self._resource.stamp
        return SourceCapabilities(
            cursor=cast(Any, page.kind),
            order=self._resource.key if isinstance(self._pager, KeysetPager) else None,
            filters=self._narrowing.names | ({DELETED} if self._flag_params is not None else set()),
            bounds=self._narrowing.applied(),
            page_max=page.limit,
            short_page_is_end=page.short_page_is_end,
            granularity_us=0 if stamp is None else stamp.granularity_us,
            lag_us=0 if stamp is None else stamp.lag_us,
            deletes=self._deletes(),
        )

    def _deletes(self) -> frozenset[Literal["flag", "confirm"]]:
        ways: list[Literal["flag", "confirm"]] = []
        ways += ["flag"] if self._flag_params is not None else []
        ways += ["confirm"] if self._confirm is not None else []
        return frozenset(ways)

    @property
    def page_limit(self) -> int:
        return self._resource.page.limit

    @property
    def limit(self) -> Limit | None:
        """The source's limit as in the spec, or None."""
        source = self._spec.source
        if not source.limits and source.concurrency is None:
            return None
        return Limit(source.limit_name or source.name, *source.limits, concurrency=source.concurrency)

    def record_key(self, record: Record) -> Any:
        """The id of a record as in cursors, or None."""
        if isinstance(self._pager, KeysetPager):
            return self._pager.record_key(record)
        key = self._key(record)
        return None if key is MISSING else key

    def is_ours(self, shard: Shard) -> RecordTest:
        """Whether a record belongs to the shard, for filters that the source itself must apply."""
        return self._narrowing.is_ours(shard.predicate)

    # -- fetching --

    async def fetch(self, shard: Shard, cursor: Cursor | None, limit: int, http: RequestClient) -> Page:
        asked = PageQuery(shard.predicate, cursor, limit)
        url = self._url(self._resource.path)
        params = {
            **self._resource.params,
            **self._resource.page.fixed,
            **(self._flag_params or {} if DELETED in shard.predicate else {}),
            **self._narrowing.params(shard.predicate),
            **self._pager.params(asked),
        }
        if cursor is not None and "next" in cursor:
            url, params = str(cursor["next"]), {}
        try:
            reply, body = await self._ask(http, url, params)
        except (NoSuchPage, UnusableRequest) as error:
            is_end = isinstance(error, EndOfSource)
            if not is_end and (isinstance(error, UnusableRequest) or not self._may_end_by_status(cursor)):
                raise type(error)(f"{error}{self._narrowing.why_refused(shard.predicate)}") from error
            return Page(records=(), raw_count=0, next=None, is_end=is_end or None)
        raw = self._raw(body, reply)
        onward = self._pager.onward(asked, PageReply(url, body, reply.headers, raw))
        return self._page(asked, raw, onward, reply)

    def _may_end_by_status(self, cursor: Cursor | None) -> bool:
        """Some sources answer 404 or 400 instead of an empty page. If the source reports where its end is, a missing
        page is an error.
        """
        page = self._resource.page
        is_counted = getattr(page, "total", None) is not None or getattr(page, "pages", None) is not None
        return cursor is not None and isinstance(page, OffsetPaging | PageNumberPaging) and not is_counted

    def _page(self, asked: PageQuery, raw: list[Record], onward: NextPage, reply: HttpReply) -> Page:
        return Page(
            records=self._kept(asked, raw[onward.skip :]),
            raw_count=len(raw),
            skipped=onward.skip,
            is_shifted=onward.is_shifted,
            next=onward.next,
            is_end=onward.is_end,
            server_time=server_time(reply),
            size_bytes=len(reply.content),
        )

    def _kept(self, asked: PageQuery, raw: list[Record]) -> list[Record]:
        if isinstance(self._pager, KeysetPager) and not are_ascending(self._pager.keys_in(raw)):
            return raw  # the guards must see the wrong order, which may be in dropped records
        keeps = self._narrowing.keeps(asked.predicate)
        return [record for record in raw if keeps(record)]

    def _raw(self, body: Any, reply: HttpReply) -> list[Record]:
        """All records of a reply."""
        if self._records.has_star:
            if self._records.all(body) or self._has_list(body):
                return self._records.all(body)
            found: Any = MISSING
        else:
            found = self._records.first(body)
        if isinstance(found, list):
            return found
        is_now = "is missing" if found is MISSING else f"is {describe_type(found)}"
        problem = f"resource.records: {self._resource.records} must lead to a list ({is_now})"
        raise WrongBody(problem, body_sample(reply.content, self._redactor))

    def _has_list(self, body: Any) -> bool:
        """Whether the value before the first [*] is a list, which may be empty."""
        steps = self._records.steps
        return isinstance(JsonPath(steps[: steps.index(None)]).first(body), list)

    async def present(self, ids: Sequence[str], http: RequestClient) -> frozenset[str]:
        """A reply with other records than requested is an error: the source ignored the parameter."""
        if self._confirm is None:
            raise BadValue("resource.deletes.sweep.confirm", "is missing, so ids cannot be requested")
        params = {
            **self._resource.params,
            **self._resource.page.fixed,
            **limit_param(self._resource.page, max(len(ids), 1)),
            self._confirm.param: self._confirm.separator.join(ids),
        }
        reply, body = await self._ask(http, self._url(self._resource.path), params)
        # As stored in the table: a key such as "007" is a number in cursors only.
        keys = map(self._key, self._raw(body, reply))
        found = frozenset(str(key) for key in keys if key is not None and key is not MISSING)
        if strangers := sorted(found - frozenset(ids)):
            problem = f"resource.deletes.sweep.confirm.param: a request for ids with {self._confirm.param!r} returned"
            raise TerminalError(
                f"{problem} {strangers[0]!r}, which was not requested; the source may not support the parameter"
            )
        return found

    async def _ask(self, http: RequestClient, url: str, params: Mapping[str, Any]) -> tuple[HttpReply, Any]:
        """A page."""
        query, body = split_params(self._resource, params)
        return await self._send(http, self._resource.method, url, query, body)

    async def _look_up(self, http: RequestClient, path: str) -> tuple[HttpReply, Any]:
        return await self._send(http, "GET", self._url(path), {}, None)

    async def _send(
        self, http: RequestClient, method: str, url: str, params: Mapping[str, Any], body: Any
    ) -> tuple[HttpReply, Any]:
        where = f"{method} {url.partition('?')[0]}"
        login = await self._credentials.headers(http)
        reply = await self._send_once(http, method, url, params, body, login)
        if reply.status_code == UNAUTHORIZED and self._credentials.forget_token(login):
            reply = await self._send_once(http, method, url, params, body, await self._credentials.headers(http))
        act_on_status(self._resource, reply.status_code, f"{where} answers {reply.status_code}")
        # If the key is a parameter, a redirect repeats it.
        location = reply.headers.get("location", "").partition("?")[0]
        if not reply.is_success:  # redacting a sample costs more than reading a page
            check_status(reply.status_code, where, body_sample(reply.content, self._redactor), location or None)
        return reply, self._decoded(where, reply)

    async def _send_once(
        self,
        http: RequestClient,
        method: str,
        url: str,
        params: Mapping[str, Any],
        body: Any,
        login: Mapping[str, str],
    ) -> HttpReply:
        where = f"{method} {url.partition('?')[0]}"
        query = {name: render_param(value) for name, value in {**params, **self._credentials.params()}.items()}
        if "?" in url and query:  # the URL of a next page has its own query
            url, query = f"{url}&{urlencode(query)}", {}
        more = {} if body is None else {"json": body, "retry": True}
        headers = {**self._headers, **login}
        try:
            reply: HttpReply = await http.request(method, url, params=query or None, headers=headers, **more)
        except TimeoutError as error:
            raise HeavyPage(f"{where} takes too long", is_size=True) from error
        except TooLarge as error:
            raise HeavyPage(str(error), is_size=True) from error
        return reply

    def _decoded(self, where: str, reply: HttpReply) -> Any:
        try:
            return decode_body(reply.content)
        except (ValueError, RecursionError) as error:
            sample = body_sample(reply.content, self._redactor)
            is_html = "html" in reply.headers.get("content-type", "").lower() or sample.lstrip()[:1] == "<"
            problem = "HTML" if is_html else "nothing" if not reply.content.strip() else f"no JSON ({error})"
            raise WrongBody(f"{where} answers {problem}", sample, is_json=False) from error

    def _url(self, path: str) -> str:
        return f"{self._base}/{path.lstrip('/')}" if path.strip("/") else self._base

    # -- probing --

    async def probe(self, http: RequestClient) -> SourceProbe:
        """One request for each path that the spec refers to, and one for the first record."""
        bodies: dict[str, Any] = {}
        times: list[Instant | None] = []
        for reference in list_references(self._resource):
            path = reference.partition("#")[0]
            if path not in bodies:
                reply, bodies[path] = await self._look_up(http, path)
                times.append(server_time(reply))
        rows = None
        if not bodies or getattr(self._resource.page, "total", None) is not None:
            rows, time = await self._first_page(http)
            times.append(time)
        known = [time for time in times if time is not None]
        # The earliest time: seeing a change twice does no harm, missing one does.
        return SourceProbe(
            rows=rows,
            id_max=read_id_max(self._resource, bodies),
            server_time=min(known, default=None),
            values=read_values(self._resource, bodies),
            counts=read_counts(self._resource, bodies),
        )

    async def _first_page(self, http: RequestClient) -> tuple[int | None, Instant | None]:
        asked = PageQuery({}, None, 1)
        params = {**self._resource.params, **self._resource.page.fixed, **self._pager.params(asked)}
        reply, body = await self._ask(http, self._url(self._resource.path), params)
        total = getattr(self._resource.page, "total", None)
        return read_count(total, PageReply("", body, reply.headers, [])), server_time(reply)


def split_params(resource: Resource, params: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
    """Query and body. A parameter whose name is a path, such as $.variables.after, goes into the body: None for GET."""
    if resource.method == "GET":
        return dict(params), None
    body: dict[str, Any] = copy.deepcopy(resource.body)
    for name, value in params.items():
        if name.startswith(BODY_PATH):
            place_value(body, name, value)
    return {name: value for name, value in params.items() if not name.startswith(BODY_PATH)}, body


def place_value(body: dict[str, Any], path: str, value: Any) -> None:
    *outer, last = [str(step) for step in parse_path("param", path).steps]
    for name in outer:
        below = body.get(name)
        if not isinstance(below, dict):
            below = body[name] = {}
        body = below
    body[last] = value


def server_time(reply: HttpReply) -> Instant | None:
    text = reply.headers.get("date")
    return None if text is None else parse_date_us(text)


def render_param(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def describe_type(value: Any) -> str:
    kinds = {dict: "an object", str: "text", bool: "true or false", type(None): "null"}
    return kinds.get(type(value), "a number")
