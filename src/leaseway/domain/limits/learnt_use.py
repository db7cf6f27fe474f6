"""Learnt estimates: how much of its stated maximum a call of one kind really uses. Pure.

A call whose estimate is learnt reserves a share of its maximum: the 95th percentile of what the last calls of its kind
used, each as a share of its own maximum. So calls with long and short prompts share what is learnt. The estimate is
never above the maximum; until enough calls are known it is the maximum.
"""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Mapping

from msgspec import Struct

from leaseway.domain.limits.limit import PermitRequest, divide_up

CALLS_MAX = 200
"""How many calls are remembered, the latest."""
CALLS_MIN = 20
"""Fewer calls say too little."""
PERCENTILE = 95
SCALE = 10_000
"""Shares are in ten-thousandths."""
KEYS_MAX, ESTIMATES_MAX = 1_000, 100
"""How many estimates are kept, and how many a worker reports."""


class LearntEstimate(Struct, frozen=True):
    """What a worker has learnt, as it reports it."""

    kind: str
    limit: str
    share: int
    """Of the stated maximum, in ten-thousandths."""
    calls: int
    """From how many calls."""


class UseHistory:
    """The latest calls of one kind under one limit."""

    __slots__ = ("_latest", "_sorted")

    def __init__(self) -> None:
        self._latest: deque[int] = deque()
        self._sorted: list[int] = []

    def __len__(self) -> int:
        return len(self._latest)

    def add(self, share: int) -> None:
        if len(self._latest) == CALLS_MAX:
            del self._sorted[bisect_left(self._sorted, self._latest.popleft())]
        self._latest.append(share)
        insort(self._sorted, share)

    @property
    def share(self) -> int:
        """The percentile, rounded up: at most one call in twenty used more."""
        if len(self) < CALLS_MIN:
            return SCALE
        return self._sorted[divide_up(len(self) * PERCENTILE, 100) - 1]


class LearntUse:
    """What one worker has learnt, by kind and definition of a limit."""

    def __init__(self) -> None:
        self._histories: dict[tuple[str, str], UseHistory] = {}

    def note(self, kind: str, stated: PermitRequest, used: int) -> None:
        """A call has ended. Use beyond the maximum counts as the maximum."""
        key = kind, stated.limit
        if key not in self._histories and len(self._histories) >= KEYS_MAX:
            return
        share = min(divide_up(used * SCALE, stated.cost), SCALE)
        self._histories.setdefault(key, UseHistory()).add(share)

    def note_all(self, kind: str, stated: Iterable[PermitRequest], used: Mapping[str, int]) -> None:
        """`used`: by name of the limit, as far as it is known."""
        for each in stated:
            if each.name in used:
                self.note(kind, each, used[each.name])

    def estimate(self, kind: str, stated: PermitRequest) -> int:
        history = self._histories.get((kind, stated.limit))
        share = SCALE if history is None else history.share
        return min(max(divide_up(stated.cost * share, SCALE), 1), stated.cost)

    def report(self, most: int) -> tuple[LearntEstimate, ...]:
        known = list(self._histories)  # at once: another thread may ask
        keys = sorted(known)[:most]
        return tuple(LearntEstimate(*key, self._histories[key].share, len(self._histories[key])) for key in keys)
