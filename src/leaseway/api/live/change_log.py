"""polls ─► [change log] ─► subscribers: the present state of everything, and the poll in which it was found.

A subscriber has received everything up to a sequence number, and lacks what was found later. If that cannot be
determined (the number is too old, or from another store), the subscriber receives a reset and a new snapshot.

Sequence numbers of other processes are accepted, too. A state that this process found in poll t existed before t + M,
if polls take less than M; and the process that issued the number S has seen everything that existed before S. So all
changes found after S - M are sent again and none is missed. Receiving a state twice does no harm.
"""

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from leaseway.api.settings import FRAME_BYTES_MAX
from leaseway.domain.ids import SECOND_US, Instant

MARGIN_US = 5 * SECOND_US
"""M. Limits and budgets are polled once per second; their states count from the poll before."""
POLLS_KEPT = 3_000
JOBS_KEPT = 1_000
GONE_KEPT = 1_000
SNAPSHOT_LANES = 200
SNAPSHOT_JOBS = 50
"""How many lanes and jobs a snapshot contains: those that changed last."""
BATCHES_KEPT = 100
"""Most subscribers lack the same changes and share a batch."""
OPERATOR_KINDS = frozenset({"limit", "budget"})
"""They belong to no tenant; only operators see them."""

log = logging.getLogger("leaseway.api")

_encode = msgspec.json.Encoder().encode


class View(NamedTuple):
    """What a subscriber may see. `tenant` None: all tenants. Operators also see what belongs to no tenant."""

    tenant: str | None
    is_operator: bool = False
    reads_imports: bool = False


class Observation(NamedTuple):
    """The state of one thing. `tenant` None: it belongs to no tenant."""

    kind: str
    name: str
    tenant: str | None
    value: Any
    """Compared with the value of the previous poll."""
    render: Callable[[Any], Any] | None = None
    """Makes the document if the value has changed. None: the value is the document."""


class PollResult(NamedTuple):
    now: Instant
    """The store's clock before the poll."""
    observations: Sequence[Observation]
    complete_kinds: frozenset[str] = frozenset()
    """Kinds of which the poll has read everything, so that what is missing is gone."""
    missing: Sequence[str] = ()
    """Jobs that were looked up and do not exist."""
    is_late: bool = False
    """The poll took longer than the margin."""


class LoggedChange(NamedTuple):
    seq: Instant
    tenant: str | None
    value: Any
    """None: it is gone."""
    body: bytes


class EventBatch(NamedTuple):
    """The events for one subscriber at one time."""

    seq: Instant
    bodies: tuple[bytes, ...] = ()
    """The events, each as JSON."""
    frames: tuple[str, ...] = ()
    """The same events in frames; only the last frame has the sequence number."""


Key = tuple[str, str]
"""Kind and name."""
Changes = OrderedDict[Key, LoggedChange]
"""In the order of their sequence numbers."""


class ChangeLog:
    def __init__(self) -> None:
        self.seq: Instant = 0
        self._jobs: Changes = OrderedDict()
        self._others: Changes = OrderedDict()
        self._gone = 0
        self._polls: deque[Instant] = deque(maxlen=POLLS_KEPT)
        self._own: set[Instant] = set()
        self._horizon: Instant = 0
        """A subscriber with a smaller sequence number has missed changes that are no longer here."""
        self._batches: dict[tuple[View, Instant | None], EventBatch] = {}

    # -- writing ----------------------------------------------------------------------------------------------------

    def record(self, poll: PollResult) -> bool:
        """Whether anything has changed."""
        self.seq = max(poll.now, self.seq + 1)
        self._horizon = self._horizon or self.seq
        changed = [self._put(observation) for observation in poll.observations]
        found = {(observation.kind, observation.name) for observation in poll.observations}
        lost = [key for key in self._others if key[0] in poll.complete_kinds and key not in found]
        changed += [self._remove(key) for key in [*lost, *(("job", id_) for id_ in poll.missing)]]
        self._trim()
        if poll.is_late:
            self._horizon = self.seq
        self._add_poll()
        return any(changed)

    def _put(self, observation: Observation) -> bool:
        changes, key = self._changes(observation.kind), (observation.kind, observation.name)
        before = changes.get(key)
        if before is not None and before.value == observation.value:
            return False
        if before is not None and before.value is None:
            self._gone -= 1
        self._set(changes, key, LoggedChange(self.seq, observation.tenant, observation.value, render_body(observation)))
        return True

    def _remove(self, key: Key) -> bool:
        changes = self._changes(key[0])
        before = changes.get(key)
        if before is None or before.value is None:
            return False
        self._gone += 1
        body = before.body[:-1] + b',"gone":true}'
        self._set(changes, key, LoggedChange(self.seq, before.tenant, None, body))
        return True

    def _changes(self, kind: str) -> Changes:
        return self._jobs if kind == "job" else self._others

    def _set(self, changes: Changes, key: Key, change: LoggedChange) -> None:
        changes[key] = change
        changes.move_to_end(key)

    def _trim(self) -> None:
        """Drop the oldest jobs, and what is gone. Subscribers that have not received them get a snapshot."""
        while len(self._jobs) > JOBS_KEPT:
            _, change = self._jobs.popitem(last=False)
            self._drop(change)
        if self._gone > GONE_KEPT:
            for changes in (self._jobs, self._others):
                for key in [key for key, change in changes.items() if change.value is None]:
                    self._drop(changes.pop(key))

    def _drop(self, change: LoggedChange) -> None:
        self._horizon = max(self._horizon, change.seq)
        self._gone -= change.value is None

    def _add_poll(self) -> None:
        if len(self._polls) == POLLS_KEPT:
            self._own.discard(self._polls[0])
        self._polls.append(self.seq)
        self._own.add(self.seq)
        self._batches.clear()

    # -- reading ----------------------------------------------------------------------------------------------------

    def is_behind(self, after: Instant | None) -> bool:
        """Another process has polled later than this one."""
        return after is not None and after > self.seq

    def since(self, view: View, after: Instant | None) -> EventBatch:
        """The changes that a subscriber lacks. None: it has received nothing yet."""
        found = self._batches.get((view, after)) or self._batch(view, after)
        if len(self._batches) < BATCHES_KEPT:
            self._batches[view, after] = found
        return found

    def _batch(self, view: View, after: Instant | None) -> EventBatch:
        is_own = after in self._own
        start = None if after is None else after if is_own else after - MARGIN_US
        if start is None or start < self._horizon or start > self.seq:
            bodies = [_encode({"kind": "reset"}), *self._snapshot(view)]
        else:
            bodies = [*self._newer(self._others, view, start), *self._newer(self._jobs, view, start)]
            if not is_own and view.is_operator:
                # Limits and budgets may have been read some time before the number was issued.
                bodies += [change.body for key, change in self._others.items() if key[0] in OPERATOR_KINDS]
        return EventBatch(self.seq, tuple(bodies), split_frames(self.seq, bodies))

    def _newer(self, changes: Changes, view: View, start: Instant) -> list[bytes]:
        """From the newest change backwards, so that older ones are not visited."""
        found: list[bytes] = []
        for key, change in reversed(changes.items()):
            if change.seq <= start:
                break
            if is_visible(view, key, change):
                found.append(change.body)
        return found[::-1]

    def _snapshot(self, view: View) -> Iterator[bytes]:
        lanes: list[bytes] = []
        for key, change in reversed(self._others.items()):
            if change.value is not None and is_visible(view, key, change):
                if key[0] != "lane":
                    yield change.body
                elif len(lanes) < SNAPSHOT_LANES:
                    lanes.append(change.body)
        yield from lanes[::-1]
        newest = reversed(self._jobs.items())
        jobs = (change.body for key, change in newest if change.value is not None and is_visible(view, key, change))
        yield from list(islice(jobs, SNAPSHOT_JOBS))[::-1]


def render_body(observation: Observation) -> bytes:
    """The event as JSON. An object that cannot be rendered becomes an event that says so: one stored value must not end
    the stream of all subscribers."""
    kind, value = observation.kind, observation.value
    try:
        return _encode({"kind": kind, kind: value if observation.render is None else observation.render(value)})
    except Exception:
        log.exception("live: %s %r cannot be shown", kind, observation.name)
        return _encode({"kind": "unreadable", "unreadable": {"kind": kind, "name": ascii(observation.name)[1:-1]}})


def is_visible(view: View, key: Key, change: LoggedChange) -> bool:
    if key[0] in OPERATOR_KINDS:
        return view.is_operator
    if key[0] == "totals":
        return change.tenant == view.tenant
    if key[0] == "import" and not view.reads_imports:
        return False
    return view.tenant is None or change.tenant == view.tenant


def split_frames(seq: Instant, bodies: list[bytes]) -> tuple[str, ...]:
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
    return (*(render_frame(None, part) for part in parts[:-1]), render_frame(seq, parts[-1]))


def render_frame(seq: Instant | None, bodies: Iterable[bytes] = ()) -> str:
    number = "null" if seq is None else str(seq)
    return f'{{"seq":{number},"events":[{b",".join(bodies).decode()}]}}'
