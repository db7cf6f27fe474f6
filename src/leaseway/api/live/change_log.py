"""looks ─► [board] ─► listeners: how everything is, and at which look each thing was found to be so.

A listener has been told everything up to a sequence number. What it lacks is what was found to be different after that.
Where that cannot be known (the number is too old, or of another store) it is told to forget what it knows, and gets
everything anew: a snapshot.

The number of another process is good here as well. What we found at our look t was so before t + M, if looks take less
than M; and whoever told the number S has seen everything that was so before S. So all that we found after S - M is told
again, and nothing is missing. To be told twice how something is does no harm.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from leaseway.api.live.settings import FRAME_BYTES_MAX
from leaseway.domain.ids import SECOND_US, Instant

MARGIN_US = 5 * SECOND_US
"""M. Limits and budgets are looked at once a second only; their looks count from the one before."""
LOOKS_KEPT = 3_000
JOBS_KEPT = 1_000
GONE_KEPT = 1_000
LANES_SHOWN = 200
JOBS_SHOWN = 50
"""In a snapshot, those that changed last."""
BATCHES_KEPT = 100
"""Most listeners lack the same; for those who name a number of their own, what they lack is put together anew."""

_encode = msgspec.json.Encoder().encode


class View(NamedTuple):
    """Who looks. `tenant` None: all of them; operators also see what belongs to nobody."""

    tenant: str | None
    is_operator: bool = False
    reads_imports: bool = False


class Sighting(NamedTuple):
    """How something is. `tenant` None: it belongs to nobody in particular."""

    kind: str
    name: str
    tenant: str | None
    value: Any
    """Compared with what was seen before."""
    shown: Callable[[Any], Any] | None = None
    """Makes the document of it, where it is different. None: the value is the document."""


class Look(NamedTuple):
    now: Instant
    """The store's clock, from before the look."""
    sightings: Sequence[Sighting]
    whole: frozenset[str] = frozenset()
    """Of these kinds it has found all that there are, so that others are gone."""
    missing: Sequence[str] = ()
    """Jobs that were sought and are not there."""
    is_late: bool = False
    """It took longer than the margin."""


class Item(NamedTuple):
    mark: Instant
    tenant: str | None
    value: Any
    """None: it is gone."""
    body: bytes


class Batch(NamedTuple):
    """What one listener is told at once."""

    seq: Instant
    bodies: tuple[bytes, ...] = ()
    """The events, each as JSON."""
    frames: tuple[str, ...] = ()
    """The same in as many frames as it takes; only the last has the number."""


Key = tuple[str, str]
Items = OrderedDict[Key, Item]
"""In the order of their marks."""


class Board:
    def __init__(self) -> None:
        self.seq: Instant = 0
        self._jobs: Items = OrderedDict()
        self._others: Items = OrderedDict()
        self._gone = 0
        self._looks: deque[Instant] = deque(maxlen=LOOKS_KEPT)
        self._own: set[Instant] = set()
        self._horizon: Instant = 0
        """Who was told less than this has missed something that is not here any more."""
        self._batches: dict[tuple[View, Instant | None], Batch] = {}

    # -- looking ----------------------------------------------------------------------------------------------------

    def look(self, look: Look) -> bool:
        """Whether anything is different."""
        self.seq = max(look.now, self.seq + 1)
        self._horizon = self._horizon or self.seq
        different = [self._put(sighting) for sighting in look.sightings]
        found = {(sighting.kind, sighting.name) for sighting in look.sightings}
        lost = [key for key in self._others if key[0] in look.whole and key not in found]
        different += [self._remove(key) for key in [*lost, *(("job", id_) for id_ in look.missing)]]
        self._forget()
        if look.is_late:
            self._horizon = self.seq
        self._remember()
        return any(different)

    def _put(self, sighting: Sighting) -> bool:
        items, key = self._of(sighting.kind), (sighting.kind, sighting.name)
        before = items.get(key)
        if before is not None and before.value == sighting.value:
            return False
        if before is not None and before.value is None:
            self._gone -= 1
        document = sighting.value if sighting.shown is None else sighting.shown(sighting.value)
        body = _encode({"kind": sighting.kind, sighting.kind: document})
        self._set(items, key, Item(self.seq, sighting.tenant, sighting.value, body))
        return True

    def _remove(self, key: Key) -> bool:
        items = self._of(key[0])
        before = items.get(key)
        if before is None or before.value is None:
            return False
        self._gone += 1
        body = before.body[:-1] + b',"gone":true}'
        self._set(items, key, Item(self.seq, before.tenant, None, body))
        return True

    def _of(self, kind: str) -> Items:
        return self._jobs if kind == "job" else self._others

    def _set(self, items: Items, key: Key, item: Item) -> None:
        items[key] = item
        items.move_to_end(key)

    def _forget(self) -> None:
        """Jobs come and go without end. Who was told before the last one that is forgotten gets a snapshot."""
        while len(self._jobs) > JOBS_KEPT:
            _, item = self._jobs.popitem(last=False)
            self._drop(item)
        if self._gone > GONE_KEPT:
            for items in (self._jobs, self._others):
                for key in [key for key, item in items.items() if item.value is None]:
                    self._drop(items.pop(key))

    def _drop(self, item: Item) -> None:
        self._horizon = max(self._horizon, item.mark)
        self._gone -= item.value is None

    def _remember(self) -> None:
        if len(self._looks) == LOOKS_KEPT:
            self._own.discard(self._looks[0])
        self._looks.append(self.seq)
        self._own.add(self.seq)
        self._batches.clear()

    # -- telling ----------------------------------------------------------------------------------------------------

    def is_ahead(self, after: Instant | None) -> bool:
        """Somebody else has looked later than we have."""
        return after is not None and after > self.seq

    def since(self, view: View, after: Instant | None) -> Batch:
        """What this listener lacks. None: it has been told nothing yet."""
        found = self._batches.get((view, after)) or self._batch(view, after)
        if len(self._batches) < BATCHES_KEPT:
            self._batches[view, after] = found
        return found

    def _batch(self, view: View, after: Instant | None) -> Batch:
        is_own = after in self._own
        from_ = None if after is None else after if is_own else after - MARGIN_US
        if from_ is None or from_ < self._horizon or from_ > self.seq:
            bodies = [_encode({"kind": "reset"}), *self._snapshot(view)]
        else:
            bodies = [*self._newer(self._others, view, from_), *self._newer(self._jobs, view, from_)]
            if not is_own:
                # How limits and budgets stood may have been seen some time before the number was given.
                bodies += [item.body for key, item in self._others.items() if key[0] in SHARED and view.is_operator]
        return Batch(self.seq, tuple(bodies), frames_of(self.seq, bodies))

    def _newer(self, items: Items, view: View, from_: Instant) -> list[bytes]:
        """The last ones are the newest, so the rest need not be looked at."""
        found: list[bytes] = []
        for key, item in reversed(items.items()):
            if item.mark <= from_:
                break
            if sees(view, key, item):
                found.append(item.body)
        return found[::-1]

    def _snapshot(self, view: View) -> Iterator[bytes]:
        lanes: list[bytes] = []
        for key, item in reversed(self._others.items()):
            if item.value is not None and sees(view, key, item):
                if key[0] != "lane":
                    yield item.body
                elif len(lanes) < LANES_SHOWN:
                    lanes.append(item.body)
        yield from lanes[::-1]
        newest = reversed(self._jobs.items())
        jobs = (item.body for key, item in newest if item.value is not None and sees(view, key, item))
        yield from list(islice(jobs, JOBS_SHOWN))[::-1]


SHARED = frozenset({"limit", "budget"})
"""Belong to nobody, and are for operators only."""


def sees(view: View, key: Key, item: Item) -> bool:
    if key[0] in SHARED:
        return view.is_operator
    if key[0] == "totals":
        return item.tenant == view.tenant
    if key[0] == "import" and not view.reads_imports:
        return False
    return view.tenant is None or item.tenant == view.tenant


def frames_of(seq: Instant, bodies: list[bytes]) -> tuple[str, ...]:
    if not bodies:
        return ()
    parts: list[list[bytes]] = [[]]
    size = 0
    for body in bodies:
        if size + len(body) > FRAME_BYTES_MAX and parts[-1]:
            parts.append([])
            size = 0
        parts[-1].append(body)
        size += len(body) + 1
    return (*(frame_of(None, part) for part in parts[:-1]), frame_of(seq, parts[-1]))


def frame_of(seq: Instant | None, bodies: Iterable[bytes] = ()) -> str:
    number = "null" if seq is None else str(seq)
    return f'{{"seq":{number},"events":[{b",".join(bodies).decode()}]}}'
