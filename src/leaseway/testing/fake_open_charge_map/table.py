"""The API's table, and the mirror that readers see: a change reaches the mirror after a lag, and a row that is
refreshed there is missing for a moment.
"""

import heapq
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator

import msgspec

from leaseway.domain.ids import SECOND_US, Instant
from leaseway.testing.fake_open_charge_map.data import FIRST_ID, mix
from leaseway.testing.fake_open_charge_map.poi import Poi, compact_tail, on_the_minute


class Table:
    def __init__(self, pois: Iterable[Poi], now: Callable[[], Instant]) -> None:
        self.truth: dict[int, Poi] = {poi.id: poi for poi in pois}
        """The current records, whatever the mirror shows."""
        self.lag_seconds = 0.0
        self._now = now
        self._mirror = dict(self.truth)
        self._ids = sorted(self._mirror)
        self._by_country: dict[int | None, list[int]] = {}
        for number in self._ids:
            self._by_country.setdefault(self._mirror[number].country, []).append(number)
        self._tails: dict[int, bytes] = {}
        self._absent_until: dict[int, Instant] = {}
        self._changes = 0
        self._applied: dict[int, int] = {}
        self._pending: list[tuple[Instant, int, int, Poi | None]] = []

    # -- changes --

    def update(self, ids: Iterable[int], comment: str | None = None) -> int:
        """Change these records: their stamps are now, rounded to the minute."""
        known = [self.truth[number] for number in ids if number in self.truth]
        stamp = on_the_minute(self._now())
        for poi in known:
            text = comment if comment is not None else f"change {self._changes + 1}"
            self.put(msgspec.structs.replace(poi, modified=max(stamp, poi.modified), comment=text))
        return len(known)

    def insert(self, count: int) -> list[int]:
        """New records with the highest ids."""
        first = self.id_max + 1
        stamp = on_the_minute(self._now())
        fresh = [Poi(first + step, f"New {first + step}", 1, 51.5, -0.1, stamp, stamp) for step in range(count)]
        for poi in fresh:
            self.put(poi)
        return [poi.id for poi in fresh]

    def publish(self, ids: Iterable[int]) -> int:
        """Old records become visible: readers have already passed their ids."""
        hidden = [self.truth[number] for number in ids if number in self.truth and not self.truth[number].is_readable]
        stamp = on_the_minute(self._now())
        for poi in hidden:
            self.put(msgspec.structs.replace(poi, modified=stamp, status=50, submission=200))
        return len(hidden)

    def delete(self, ids: Iterable[int]) -> int:
        known = [number for number in ids if number in self.truth]
        for number in known:
            del self.truth[number]
            self._later(number, None)
        return len(known)

    def put(self, poi: Poi) -> None:
        self.truth[poi.id] = poi
        self._later(poi.id, poi)

    def refresh(self, ids: Iterable[int], seconds: float) -> None:
        """The mirror deletes these records and inserts them again after this time."""
        until = self._now() + round(seconds * SECOND_US)
        self._absent_until.update(dict.fromkeys(ids, until))

    def some(self, count: int, salt: int) -> list[int]:
        """Pseudo-random ids that are the same every time."""
        ids = self._ids
        return [ids[mix(salt * 1_009 + step) % len(ids)] for step in range(count)] if ids else []

    def _later(self, number: int, poi: Poi | None) -> None:
        self._changes += 1
        share = mix(self._changes) % 1_000 / 1_000
        at = self._now() + round(self.lag_seconds * share * SECOND_US)
        heapq.heappush(self._pending, (at, self._changes, number, poi))
        self._catch_up()

    def _catch_up(self) -> None:
        now = self._now()
        while self._pending and self._pending[0][0] <= now:
            _, change, number, poi = heapq.heappop(self._pending)
            # Two changes of one record can arrive in the wrong order; the mirror never goes back.
            if change > self._applied.get(number, 0):
                self._applied[number] = change
                self._show(number, poi)
        for number in [number for number, until in self._absent_until.items() if until <= now]:
            del self._absent_until[number]

    def _show(self, number: int, poi: Poi | None) -> None:
        old = self._mirror.pop(number, None)
        self._tails.pop(number, None)
        if old is not None and (poi is None or poi.country != old.country):
            drop(self._by_country[old.country], number)
        if old is not None and poi is None:
            drop(self._ids, number)
        if poi is not None:
            self._mirror[number] = poi
            if old is None:
                insort(self._ids, number)
            if old is None or poi.country != old.country:
                insort(self._by_country.setdefault(poi.country, []), number)

    # -- reads --

    @property
    def id_max(self) -> int:
        return max(self._ids[-1] if self._ids else FIRST_ID - 1, max(self.truth, default=0) if self._pending else 0)

    def readable(self) -> dict[int, Instant]:
        """Id and stamp of all published records: what a complete import must contain."""
        return {poi.id: poi.modified for poi in self.truth.values() if poi.is_readable}

    def ascending(self, after: int | None, countries: Iterable[int] | None) -> Iterator[Poi]:
        """The mirror's records with higher ids, in order."""
        self._catch_up()
        low = -1 if after is None else after
        if countries is None:
            chosen: Iterator[int] = beyond(self._ids, low)
        else:
            lists = [self._by_country.get(country, []) for country in sorted(set(countries))]
            chosen = heapq.merge(*(beyond(ids, low) for ids in lists))
        absent = self._absent_until
        return (self._mirror[number] for number in chosen if number not in absent)

    def encode(self) -> None:
        """Encode all records now instead of on first read: some seconds for 235,000."""
        for poi in self._mirror.values():
            self.tail(poi)

    def tail(self, poi: Poi) -> bytes:
        """The encoded record, built once per change."""
        tail = self._tails.get(poi.id)
        if tail is None:
            tail = self._tails[poi.id] = compact_tail(poi)
        return tail


def beyond(ids: list[int], low: int) -> Iterator[int]:
    return map(ids.__getitem__, range(bisect_right(ids, low), len(ids)))


def drop(ids: list[int], number: int) -> None:
    del ids[bisect_left(ids, number)]
