"""Where pages come from."""

from collections.abc import Sequence
from typing import Any, Literal, Protocol

from msgspec import Struct

from leaseway.domain.errors import TerminalError, TransientError
from leaseway.domain.ids import Instant
from leaseway.imports.domain.page import Page
from leaseway.imports.domain.shard import Cursor, Shard


class SourceCapabilities(Struct, frozen=True, kw_only=True):
    """What a source can do. The planner relies on it, and the guards check it on every page."""

    cursor: Literal["keyset", "token", "offset", "page", "link", "none"]
    order: str | None = None
    """The field by which records come in strictly ascending order, if they do."""
    filters: frozenset[str] = frozenset()
    """Names of predicates that it can express: id, country, window, box …"""
    bounds: dict[str, tuple[bool, bool]] = {}
    """Whether the source itself applies the lower and the upper end of a range. What it does not apply, we do."""
    page_max: int | None = None
    short_page_is_end: bool = False
    granularity_us: int = 0
    lag_us: int = 0
    """How long until a change can be seen."""
    deletes: frozenset[Literal["flag", "confirm"]] = frozenset()
    """How it says that a record is no more: by a feed of such records (`flag`), or when asked for ids (`confirm`)."""


class SourceProbe(Struct, frozen=True, kw_only=True):
    """What a source says about itself before it is read. None: it does not say."""

    rows: int | None = None
    id_max: int | None = None
    server_time: Instant | None = None
    values: dict[str, list[str]] = {}
    """Values of a filter: the countries that there are."""
    counts: dict[str, dict[str, int]] = {}
    """How many rows each of those values has."""


class HeavyPage(TransientError):
    """The source could not bear a page of this size: too long, too large, or it broke down twice."""


class BadReply(TransientError):
    """A body that makes no sense: no JSON, or not of the declared shape."""


class SourceRefused(TerminalError):
    """The key is wrong or has no rights (401, 403): asking again with it does harm."""


class RequestClient(Protocol):
    """What a source may use to ask: `ctx.http` in a job, a plain client elsewhere."""

    async def request(self, method: str, url: str, *args: Any, **options: Any) -> Any: ...


class Source(Protocol):
    """The shard's predicate says what is asked for. {"deleted": True} in it means: the feed of deleted records."""

    name: str
    caps: SourceCapabilities
    confirm_max: int

    async def probe(self, http: RequestClient) -> SourceProbe:
        """Asks at most a few times."""
        ...

    async def fetch(self, shard: Shard, cursor: Cursor | None, limit: int, http: RequestClient) -> Page:
        """The page after the cursor, the first one for None. Asks once. Raises what `ctx.http` raises, and `BadReply`
        for a body that makes no sense."""
        ...

    async def present(self, ids: Sequence[str], http: RequestClient) -> frozenset[str]:
        """Which of these the source still has. Only sources with `confirm` among their `deletes` are asked; as many ids
        as `confirm_max` at once, and one request."""
        ...
