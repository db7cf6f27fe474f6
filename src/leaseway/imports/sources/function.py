"""A page function ─► a source, with the same guards as any other source.

    shard, cursor ─► the function ─► check of the returned value ─► a page

Invalid return values are reported with what was expected and where. Nothing is written, and the shard is parked,
because the function would return the same again.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from leaseway.domain.errors import LeasewayError, UsageError
from leaseway.domain.http import HttpStatusError
from leaseway.domain.limits.limit import Limit
from leaseway.domain.outcome import Fail, Snooze
from leaseway.imports.domain.jsonpath import MISSING, parse_path
from leaseway.imports.domain.page import Page, Record
from leaseway.imports.domain.partition import Cursor, Predicate, Shard, canonical
from leaseway.imports.sources.factory import source_limit
from leaseway.imports.sources.paging import KeysetPager, are_ascending
from leaseway.imports.sources.port import (
    BadReply,
    HeavyPage,
    RequestClient,
    SourceCapabilities,
    SourceProbe,
    SourceRefused,
)
from leaseway.imports.sources.positional_paging import PageQuery, PageReply
from leaseway.imports.sources.predicates import DELETED, PredicateFilters, RecordTest
from leaseway.imports.sources.status_mapping import REFUSING, body_sample, check_status
from leaseway.imports.spec.importer_options import (
    BadPage,
    PageFunction,
    describe_error,
    describe_function,
    describe_value,
    error_line,
    page_parameters,
    render_short,
)
from leaseway.imports.spec.model import IdRange, KeysetPaging, Spec

EXPECTED = "a Page, a list of records, or (records, next_cursor)"
CallFunction = Callable[[PageFunction, dict[str, Any], RequestClient | None], Awaitable[Any]]
"""Calls the function with these arguments, and with `http` if there is one."""
MISTAKES = (TypeError, AttributeError, NameError, ImportError, LookupError, ArithmeticError, AssertionError)
"""Errors that the function would raise again."""


class FunctionSource:
    """`call` calls the function, in the event loop or in a thread."""

    confirm_max = 0

    def __init__(self, spec: Spec, function: PageFunction, call: CallFunction) -> None:
        self.name = spec.source.name
        self._spec, self._function, self._call = spec, function, call
        self._given = page_parameters(function)
        self._where = describe_function(function)
        self._key = parse_path("key", spec.resource.key).first
        self._narrowing = PredicateFilters(spec.resource)
        page = spec.resource.page
        self._pager = KeysetPager(page, spec.resource.key) if isinstance(page, KeysetPaging) else None
        self.caps = self._caps()

    def _caps(self) -> SourceCapabilities:
        stamp, deletes = self._spec.resource.stamp, self._spec.resource.deletes
        has_feed = deletes is not None and deletes.flag is not None
        return SourceCapabilities(
            cursor="token" if self._pager is None else "keyset",
            order=None if self._pager is None else self._spec.resource.key,
            filters=self._narrowing.names | ({DELETED} if has_feed else set()),
            bounds=self._narrowing.applied(),
            granularity_us=0 if stamp is None else stamp.granularity_us,
            lag_us=0 if stamp is None else stamp.lag_us,
            deletes=frozenset({"flag"} if has_feed else ()),
        )

    @property
    def page_limit(self) -> int:
        return self._spec.resource.page.limit

    @property
    def limit(self) -> Limit | None:
        return source_limit(self._spec)

    def record_key(self, record: Record) -> Any:
        if self._pager is not None:
            return self._pager.record_key(record)
        key = self._key(record)
        return None if key is MISSING else key

    def is_ours(self, shard: Shard) -> RecordTest:
        return self._narrowing.is_ours(shard.predicate)

    async def probe(self, http: RequestClient) -> SourceProbe:
        """Sends no request: everything is declared."""
        partition, country = self._spec.resource.partition, self._spec.resource.filters.get("country")
        upper = partition.upper if isinstance(partition, IdRange) else None
        values = {} if country is None else {"country": [str(value) for value in country.values or ()]}
        return SourceProbe(id_max=upper if isinstance(upper, int) else None, values=values)

    async def present(self, ids: Sequence[str], http: RequestClient) -> frozenset[str]:
        raise UsageError(f"{self.name}: {self._where} fetches pages; single records cannot be requested from it")

    async def fetch(self, shard: Shard, cursor: Cursor | None, limit: int, http: RequestClient) -> Page:
        asked = PageQuery(shard.predicate, self._start_cursor(shard.predicate, cursor), limit)
        returned = await self._called({"shard": shard, "cursor": asked.cursor, "limit": limit}, http)
        page = self._kept(self._to_page(returned, asked), asked.predicate)
        if page.next is not None and canonical(page.next) == canonical(asked.cursor):
            raise self._invalid(f"a page whose next cursor is the given cursor,  {canonical(page.next)}")
        return page

    def _start_cursor(self, predicate: Predicate, cursor: Cursor | None) -> Cursor | None:
        """Ids are integers, so a range starts after the id before it, and the function needs no ranges."""
        low = (predicate.get("id") or (None, None))[0]
        return {"after": low - 1} if cursor is None and self._pager is not None and low is not None else cursor

    # -- calling --

    async def _called(self, arguments: dict[str, Any], http: RequestClient) -> Any:
        given = {name: value for name, value in arguments.items() if name in self._given}
        try:
            return await self._call(self._function, given, http if "http" in self._given else None)
        except TimeoutError as error:
            raise HeavyPage(f"{self._where} takes too long") from error
        except HttpStatusError as error:
            self._check_reply(error.reply, error)
            raise
        except (LeasewayError, Fail, Snooze):
            raise
        except MISTAKES as error:
            what = f"{describe_error(error)}{error_line(error, self._function)}"
            raise BadPage(f"{self._where} raised {what}; it must return {EXPECTED}") from error
        except ValueError as error:  # for example a body that is not JSON
            raise BadReply(
                f"{self._where} raised {describe_error(error)}{error_line(error, self._function)}"
            ) from error
        except Exception as error:
            self._check_reply(getattr(error, "response", None), error)
            raise

    def _check_reply(self, reply: Any, error: Exception) -> None:
        """An HTTP client's error with a reply means what its status means."""
        status = getattr(reply, "status_code", None)
        if not isinstance(status, int):
            return
        if status in REFUSING:
            raise SourceRefused(
                f"{self._where}: the source answers {status}: the key is wrong or has no permission"
            ) from error
        check_status(status, self._where, body_sample(getattr(reply, "content", b"")))

    # -- checking --

    def _to_page(self, returned: Any, asked: PageQuery) -> Page:
        match returned:
            case Page():
                page = self._checked(returned)
            case list():
                page = self._page_from_list(self._records(returned), asked)
            case (list() as found, following):
                records = self._records(found)
                is_end = False if following is not None else True if records else None
                page = Page(records=records, raw_count=len(records), next=self._cursor(following), is_end=is_end)
            case _:
                raise self._invalid(describe_value(returned))
        return page if self._pager is None else self._in_order(page, asked, self._pager)

    def _page_from_list(self, records: list[Record], asked: PageQuery) -> Page:
        count = len(records)
        if self._pager is not None:
            return Page(records=records, raw_count=count, next=None)
        # A limit of 1 only asks whether any record exists.
        if count >= asked.limit > 1:
            raise self._invalid(
                f"a full list of {count:,} records, which leaves open whether there are more",
                "(records, next_cursor), or Page.last(records) if that is all",
            )
        return Page(records=records, raw_count=count, next=None, is_end=True if records else None)

    def _in_order(self, page: Page, asked: PageQuery, pager: KeysetPager) -> Page:
        """With ascending keys, the last key determines the next cursor and whether the shard ends here."""
        try:
            onward = pager.onward(asked, PageReply("", None, {}, page.records))
        except BadReply as error:
            raise self._invalid(f"records without a usable key: {error}", "records with keys") from error
        if page.is_end or onward.is_end:
            page = replace(page, next=None, is_end=True)
        elif page.next is None and page.is_end is None:
            page = replace(page, next=onward.next)
        return page

    def _kept(self, page: Page, predicate: Predicate) -> Page:
        """Drop records that do not belong to the shard and that the function could not filter."""
        if self._pager is not None and not are_ascending(self._pager.keys_in(page.records)):
            return page  # the guards must see the wrong order, which may be in dropped records
        keeps = self._narrowing.keeps(predicate)
        return replace(page, records=[record for record in page.records if keeps(record)])

    def _checked(self, page: Page) -> Page:
        """Check the fields of a page that the function built."""
        if not isinstance(page.raw_count, int) or not isinstance(page.is_end, bool | None):
            raise self._invalid(f"a Page with raw_count {page.raw_count!r} and is_end {page.is_end!r}")
        records = self._records(page.records)
        if records and page.next is None and page.is_end is None and self._pager is None:
            raise self._invalid(
                "a Page with records but without `next` and `is_end`",
                "one with `next`, or Page.last(records)",
            )
        return replace(page, records=records, next=self._cursor(page.next))

    def _records(self, found: Any) -> list[Record]:
        if not isinstance(found, list | tuple):
            raise self._invalid(f"a Page whose records are {describe_value(found)}", "a list of records")
        stranger = next((number for number, each in enumerate(found) if not isinstance(each, dict)), None)
        if stranger is not None:
            raise self._invalid(f"a list whose item {stranger} is {describe_value(found[stranger])}", "objects (dict)")
        return list(found)

    def _cursor(self, cursor: Any) -> Cursor | None:
        if cursor is None:
            return None
        try:
            if isinstance(cursor, Mapping) and cursor == msgspec.json.decode(canonical(cursor)):
                return cursor
        except (TypeError, ValueError):
            pass
        raise self._invalid(
            f"the next cursor {render_short(cursor)}", 'a table of plain JSON, such as {"offset": 200}, or None'
        )

    def _invalid(self, returned: str, expected: str = EXPECTED) -> BadPage:
        return BadPage(f"{self._where} returned {returned}; it must return {expected}")
