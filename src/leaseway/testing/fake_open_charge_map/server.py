"""limits ─► key and user agent ─► faults ─► a page

The server: a provider of the test kit whose replies are those of Open Charge Map, or of a list. Requests to `/_admin`
are neither counted nor limited.
"""

import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from email.utils import formatdate
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from leaseway.domain.errors import BadValue
from leaseway.domain.ids import SECOND_US, Instant
from leaseway.domain.limits.limit import Rate, parse_rate
from leaseway.testing.fake_open_charge_map import admin, lists, ocm
from leaseway.testing.fake_open_charge_map.data import synthetic
from leaseway.testing.fake_open_charge_map.faults import Faults, is_due, parse_faults
from leaseway.testing.fake_open_charge_map.lists import STYLES, Listing
from leaseway.testing.fake_open_charge_map.poi import Poi
from leaseway.testing.fake_open_charge_map.table import Table
from leaseway.testing.provider import USUAL, Act, Answer, Provider, ReceivedRequest, build_act, serving

HTML = b"<!DOCTYPE html><html><body><h1>Scheduled maintenance</h1></body></html>"


def wall_us() -> Instant:
    return time.time_ns() // 1_000


class FakeApi(Provider):
    """`url`, counters (`refused`, `most_in_any_window`), `table` and `faults`; table and faults can be changed while it
    runs.
    """

    def __init__(
        self,
        pois: Iterable[Poi],
        rates: Sequence[Rate] = (),
        listings: Mapping[str, Listing] | None = None,
        keys: Iterable[str] | None = None,
        now: Callable[[], Instant] = wall_us,
    ) -> None:
        super().__init__(rates)
        self.rates = rates
        self.table = Table(pois, now)
        self.listings = dict(listings or {})
        self.pages = 0
        """How many requests for pages were not refused."""
        self._keys = None if keys is None else frozenset(key.lower() for key in keys)
        self._now = now
        self._faults = Faults()

    @property
    def faults(self) -> Faults:
        return self._faults

    @faults.setter
    def faults(self, faults: Faults) -> None:
        self._faults = faults
        self.table.lag_seconds = faults.lag_seconds

    def report(self) -> dict[str, Any]:
        most = {str(rate): self.most_in_any_window(rate.window_us / SECOND_US) for rate in self.rates}
        accepted = sum(arrival.is_accepted for arrival in self.arrivals)
        counts = {"requests": len(self.arrivals), "accepted": accepted, "refused": self.refused, "pages": self.pages}
        return {**counts, "rows": len(self.table.readable()), "most": most}

    def arrived(self, act: Act, request: ReceivedRequest) -> Act:
        if not request.path.startswith(admin.PATH):
            return super().arrived(act, request)
        if act is not USUAL:  # meant for another request
            self._acts.appendleft(act)
        return build_act(admin.answer(self, request))

    def usual(self, request: ReceivedRequest) -> Answer:
        url = urlsplit(request.path)
        query = {name.lower(): text for name, text in parse_qsl(url.query)}
        answer = self._routed(url.path.rstrip("/").lower(), query, request)
        return answer._replace(headers={"Date": formatdate(self._now() / SECOND_US, usegmt=True), **answer.headers})

    def _routed(self, path: str, query: Mapping[str, str], request: ReceivedRequest) -> Answer:
        style, _, name = path.lstrip("/").partition("/")
        if style in STYLES and name in self.listings:
            listing, url = self.listings[name], f"{self.url}{urlsplit(request.path).path}"
            return self._page(lambda: lists.list_page(style, listing, query, url), lists.empty_body(style))
        if path.startswith("/v3"):
            return ocm.refusal(query, request.headers, self._keys) or self._ocm(path, query)
        return Answer(404)

    def _ocm(self, path: str, query: Mapping[str, str]) -> Answer:
        if "/poi" in path:
            return self._page(lambda: self._pois(query), b"[]")
        if "/referencedata" in path:
            return Answer(body=ocm.reference_data())
        return Answer(body=ocm.status(self.table)) if path == "/v3/system/status" else Answer(404)

    def _pois(self, query: Mapping[str, str]) -> Answer:
        rows = ocm.found(self.table, ocm.asked(query, self._faults), self._faults)
        return Answer(body=ocm.listing(self.table, rows, query, self._faults, self._now()))

    def _page(self, usual: Callable[[], Answer], empty: bytes) -> Answer:
        """The usual page, or the fault of this one."""
        self.pages += 1
        number, faults = self.pages, self._faults
        self._move(number)
        if is_due(faults.error_every, number):
            return Answer(faults.error_status)
        if is_due(faults.html_every, number):
            return Answer(body=HTML, headers={"Content-Type": "text/html"})
        answer = Answer(body=empty) if is_due(faults.empty_every, number) else usual()
        if is_due(faults.truncated_every, number):
            answer = answer._replace(sent_bytes_max=len(answer.body) // 2)
        return answer._replace(delay_seconds=faults.slow_seconds) if is_due(faults.slow_every, number) else answer

    def _move(self, number: int) -> None:
        """Data changes while it is read."""
        faults, table = self._faults, self.table
        if is_due(faults.changes_every, number):
            table.update(table.some(faults.changed_rows, number))
            table.insert(faults.inserted_rows)
        if is_due(faults.absent_every, number):
            chosen = table.some(faults.absent_rows, -number)
            table.update(chosen if faults.absent_changed else ())
            table.refresh(chosen, faults.absent_seconds)


@asynccontextmanager
async def fake_api(
    pois: Iterable[Poi] | int = 1_000,
    *,
    limits: Sequence[str] = (),
    faults: Faults | Mapping[str, Any] | None = None,
    listings: Mapping[str, Listing] | None = None,
    keys: Iterable[str] | None = None,
    now: Callable[[], Instant] = wall_us,
    port: int = 0,
) -> AsyncIterator[FakeApi]:
    """A fake API within a block. `pois` are its records, or the number of synthetic ones."""
    if isinstance(limits, str):
        raise BadValue("limits", f"must be a list of rates: limits=[{limits!r}]")
    rates = [parse_rate("limits", limit) for limit in limits]
    it = FakeApi(synthetic(pois) if isinstance(pois, int) else pois, rates, listings, keys, now)
    it.faults = parse_faults(faults or {})
    async with serving(it, port):
        yield it
