"""The port of a source."""

from collections.abc import Sequence
from typing import Any, Literal, Protocol

from msgspec import Struct

from leaseway.domain.errors import TerminalError, TransientError
from leaseway.domain.ids import Instant
from leaseway.imports.domain.page import Page
from leaseway.imports.domain.partition import Cursor, Shard


class SourceCapabilities(Struct, frozen=True, kw_only=True):
    """What a source can do. Plans rely on it, and the guards check it on every page."""

    cursor: Literal["keyset", "token", "offset", "page", "link", "none"]
    order: str | None = None
    """The field by which records are strictly ascending, if they are."""
    filters: frozenset[str] = frozenset()
    """Supported filters: id, country, window, box …"""
    bounds: dict[str, tuple[bool, bool]] = {}
    """Whether the source applies the lower and the upper bound of a range. leaseway applies the others."""
    page_max: int | None = None
    short_page_is_end: bool = False
    granularity_us: int = 0
    lag_us: int = 0
    """How long until a change becomes visible."""
    deletes: frozenset[Literal["flag", "confirm"]] = frozenset()
    """How the source reports deletions: with a feed of deleted records (`flag`), or on request by id (`confirm`)."""


class SourceProbe(Struct, frozen=True, kw_only=True):
    """What a source reports about itself before it is read. None: unknown."""

    rows: int | None = None
    id_max: int | None = None
    server_time: Instant | None = None
    values: dict[str, list[str]] = {}
    """Values of a filter, for example the existing countries."""
    counts: dict[str, dict[str, int]] = {}
    """Rows per value."""


class HeavyPage(TransientError):
    """The source could not deliver a page of this size: too slow, too large, or repeated server errors."""

    def __init__(self, problem: str, *, is_size: bool = False) -> None:
        super().__init__(problem)
        self.is_size = is_size
        """True: a request for the same page would fail in the same way. False: an error of the server."""


class BadReply(TransientError):
    """An unusable body: not JSON, or not the declared shape."""

    is_json = True
    """False: something else answers, such as a proxy or a maintenance page."""


class SourceBusy(BadReply):
    """The source asks to come back later (425, 429)."""


class SourceRefused(TerminalError):
    """The key is wrong or has no permission (401, 403). Repeating the request does harm."""


class RequestClient(Protocol):
    """What a source sends requests with: `ctx.http` in a job, a plain client elsewhere."""

    async def request(self, method: str, url: str, *args: Any, **options: Any) -> Any: ...


class Source(Protocol):
    """The shard's predicate determines what is requested. {"deleted": True} requests the feed of deleted records."""

    name: str
    caps: SourceCapabilities
    confirm_max: int

    async def probe(self, http: RequestClient) -> SourceProbe:
        """Sends a few requests at most."""
        ...

    async def fetch(self, shard: Shard, cursor: Cursor | None, limit: int, http: RequestClient) -> Page:
        """The page after the cursor, or the first page. Sends one request. Raises what `ctx.http` raises, and
        `BadReply` for an unusable body.
        """
        ...

    async def present(self, ids: Sequence[str], http: RequestClient) -> frozenset[str]:
        """Which of these ids the source still has. Called only if `deletes` contains `confirm`, with at most
        `confirm_max` ids, and sends one request.
        """
        ...
