"""The requests and replies of `ctx.http`, and its errors. They are leaseway's own, so that the HTTP library below can
change.

HttpError               a request failed
├── ConnectFailed       no connection; nothing was sent
│   └── ProxyRefused    the proxy did not connect to the provider; nothing was sent
├── ReplyTimeout        the provider was silent for too long; it may still be working on the request
├── ReplyLost           the connection ended before the reply was complete, or the reply is not HTTP
├── ReplyUnreadable     the body cannot be decompressed
└── HttpStatusError     raised by `raise_for_status`
"""

import json as json_module
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any
from urllib.parse import parse_qsl, quote_plus, urlsplit

from leaseway.domain.errors import BadValue, LeasewayError

NAME_FORM = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
"""RFC 9110: a token."""
CONTROLS = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
"""A line break in a header would start another header. A tab is allowed."""
CHARSET = re.compile(r"charset\s*=\s*\"?([\w.:-]+)", re.IGNORECASE)
UNQUOTED = re.compile(r"[A-Za-z0-9_.~-]*")
"""Texts that a query contains as they are."""
UNSET: Any = object()

HeaderPairs = Iterable[tuple[str, str]]
Params = Mapping[str, Any] | Iterable[tuple[str, Any]]


class HttpError(LeasewayError):
    """A request of `ctx.http` failed."""


class ConnectFailed(HttpError):
    """No connection to the provider could be made. Nothing was sent."""


class ProxyRefused(ConnectFailed):
    """The proxy did not connect to the provider. Nothing was sent."""


class ReplyTimeout(HttpError, TimeoutError):
    """The provider was silent for too long. It may still be working on the request."""


class ReplyLost(HttpError):
    """The connection ended before the reply was complete, or the reply is not HTTP. The provider may have processed the
    request."""


class ReplyUnreadable(HttpError):
    """The body of the reply cannot be decompressed."""


class HttpStatusError(HttpError):
    """The reply has a status that is not a success."""

    def __init__(self, message: str, reply: "HttpReply") -> None:
        super().__init__(message)
        self.reply = reply


class HttpHeaders(Mapping[str, str]):
    """Headers in the order in which they were sent. Names are compared without case; the values of a name that occurs
    several times are joined by a comma, except in `pairs`."""

    def __init__(self, headers: "Mapping[str, str] | HeaderPairs" = ()) -> None:
        self.pairs: tuple[tuple[str, str], ...]
        if isinstance(headers, HttpHeaders):
            self.pairs = headers.pairs
        else:
            self.pairs = tuple(headers.items() if isinstance(headers, Mapping) else headers)

    @cached_property
    def _by_name(self) -> dict[str, str]:
        joined: dict[str, str] = {}
        for name, value in self.pairs:
            name = name.lower()
            joined[name] = f"{joined[name]}, {value}" if name in joined else value
        return joined

    def __getitem__(self, name: str) -> str:
        return self._by_name[name.lower()]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.lower() in self._by_name

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    def __repr__(self) -> str:
        """Without the values, which may be secrets."""
        return f"HttpHeaders({', '.join(self._by_name)})"


class HttpRequest:
    """One request, ready to be sent, as often as necessary."""

    __slots__ = ("content", "headers", "method", "timeout_seconds", "url")

    def __init__(
        self,
        method: str,
        url: str,
        *,
        headers: HttpHeaders = HttpHeaders(),  # noqa: B008 - immutable
        content: bytes = b"",
        timeout_seconds: float = 30.0,
    ) -> None:
        self.method = method
        self.url = url
        self.headers = headers
        self.content = content
        self.timeout_seconds = timeout_seconds
        """How long the provider may stay silent."""

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or ""

    @property
    def params(self) -> dict[str, str]:
        """The query of the URL. Of a name that occurs several times, the last value."""
        return dict(parse_qsl(urlsplit(self.url).query, keep_blank_values=True))

    def __repr__(self) -> str:
        """Without the query, which may contain a secret."""
        return f"<{self.method} {self.url.partition('?')[0]}>"


class HttpReply:
    """A complete reply of a provider, of any status."""

    def __init__(
        self,
        status_code: int,
        *,
        headers: Mapping[str, str] | HeaderPairs = (),
        content: bytes = b"",
        text: str | None = None,
        json: Any = UNSET,
        request: HttpRequest | None = None,
    ) -> None:
        """`text` or `json`: the body, instead of `content`, for tests."""
        self.status_code = status_code
        self.headers = headers if isinstance(headers, HttpHeaders) else HttpHeaders(headers)
        self.content = content
        """The body, decompressed."""
        self.request = request
        """What was sent."""
        if json is not UNSET:
            self.content = encode_json(json)
        elif text is not None:
            self.content = text.encode()

    @property
    def text(self) -> str:
        """The body as text, in the encoding that the reply names; UTF-8 if it names none."""
        named = CHARSET.search(self.headers.get("content-type", ""))
        try:
            return self.content.decode(named[1] if named else "utf-8", "replace")
        except LookupError:  # an encoding that Python does not know
            return self.content.decode("utf-8", "replace")

    def json(self) -> Any:
        """The body, decoded from JSON. Raises ValueError if it is not JSON."""
        return json_module.loads(self.content)

    @property
    def is_success(self) -> bool:
        """Whether the status is 2xx."""
        return 200 <= self.status_code < 300

    def raise_for_status(self) -> "HttpReply":
        """Raise `HttpStatusError` unless the status is 2xx; return the reply itself, so that calls can be chained."""
        if self.is_success:
            return self
        where = "" if self.request is None else f"{self.request.method} {self.request.host}: "
        raise HttpStatusError(f"{where}status {self.status_code}", self)

    def __repr__(self) -> str:
        return f"<HttpReply {self.status_code}, {len(self.content):,} bytes>"


# -- what is sent -----------------------------------------------------------------------------------------------------


def build_url(url: str, params: Params | None) -> str:
    """The URL with the parameters added to its query."""
    if not isinstance(url, str):
        raise BadValue("url", f"must be a text (is {type(url).__name__})")
    has_query = check_url(url)
    query = "" if params is None else encode_query(params)
    if not query:
        return url
    address, mark, fragment = url.partition("#")
    return f"{address}{'&' if has_query else '' if address.endswith('?') else '?'}{query}{mark}{fragment}"


@lru_cache(maxsize=1_000)
def check_url(url: str) -> bool:
    """Refuse what is not a URL. Returns whether it has a query. Most jobs of a kind request the same one."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise BadValue("url", f"is not a URL ({error})") from error
    if parts.scheme not in ("http", "https") or not host:
        raise BadValue("url", "must begin with http:// or https:// and name a host")
    return bool(parts.query)


def encode_query(params: Params, field: str = "params") -> str:
    """What `urlencode` returns for these pairs, in a third of the time."""
    return "&".join([f"{quote_part(name)}={quote_part(value)}" for name, value in query_pairs(params, field)])


def quote_part(part: Any) -> str:
    """Most names and values of a query need no quoting."""
    if isinstance(part, str) and UNQUOTED.fullmatch(part):
        return part
    return quote_plus(part if isinstance(part, str | bytes) else str(part))


def query_pairs(params: Params, field: str) -> Iterator[tuple[str, str]]:
    """A list is sent as several values. None is an empty text, True and False are in lower case."""
    for name, value in params.items() if isinstance(params, dict | Mapping) else require_pairs(params, field):
        if isinstance(value, str):  # first, because most are, and the check below takes ten times as long
            yield name, value
            continue
        for each in value if isinstance(value, Sequence) and not isinstance(value, bytes) else (value,):
            yield name, render_value(each)


def require_pairs(params: object, field: str) -> list[tuple[str, Any]]:
    pairs = list(params) if isinstance(params, Iterable) and not isinstance(params, str | bytes) else None
    if pairs is None or not all(isinstance(each, tuple | list) and len(each) == 2 for each in pairs):
        problem = f"must be a mapping or pairs; a text is content=, or a part of the URL (is {type(params).__name__})"
        raise BadValue(field, problem)
    return pairs


def render_value(value: Any) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case str():
            return value
        case int() | float():
            return str(value)
    raise BadValue("params", f"must be texts and numbers (is {type(value).__name__})")


def encode_body(json: Any, content: str | bytes | None, form: Params | None) -> tuple[bytes, str | None]:
    """The body of a request, and its content type."""
    if (json is not None) + (content is not None) + (form is not None) > 1:
        raise BadValue("content", "give only one of json, content and data")
    if content is not None and not isinstance(content, str | bytes):
        raise BadValue("content", f"must be str or bytes, which can be sent again (is {type(content).__name__})")
    if json is not None:
        return encode_json(json), "application/json"
    if form is not None:
        return encode_query(form, "data").encode(), "application/x-www-form-urlencoded"
    return (content.encode(), "text/plain; charset=utf-8") if isinstance(content, str) else (content or b"", None)


def encode_json(value: Any) -> bytes:
    try:
        return json_module.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise BadValue("json", f"cannot be written as JSON: {error}") from error


def merge_headers(given: Mapping[str, str] | None, others: Mapping[str, str]) -> HttpHeaders:
    """The given headers, and those of the others that are not given."""
    rest = others if isinstance(others, HttpHeaders) else HttpHeaders(others)
    if not given:
        return rest
    if not hasattr(given, "items"):
        raise BadValue("headers", f"must be a mapping of texts (is {type(given).__name__})")
    pairs = []
    for name, value in given.items():
        if not isinstance(value, str) or not NAME_FORM.fullmatch(name) or CONTROLS.search(value):
            raise BadValue("headers", f"{name!r}: must have a valid name and a text of one line")
        pairs.append((name, value))
    names = {name.lower() for name, _ in pairs}
    return HttpHeaders([*pairs, *(each for each in rest.pairs if each[0].lower() not in names)])
