"""The executable specification of a limiter, in memory under one lock.

Memory ends with the process, so a new limiter starts a new fence, with all buckets used up: an earlier process may have
used them. With `starts_full` it does not assume that, for tests.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from threading import Lock

from leaseway.domain.ids import Instant
from leaseway.domain.limits import buckets
from leaseway.domain.limits.buckets import Acquisition, Granted, Notice, Verdict
from leaseway.domain.limits.level import NEW, Level
from leaseway.domain.limits.limit import KNOWN_US, LimitDefinition, PermitRequest, Sizing
from leaseway.domain.limits.validation import (
    check_acquire,
    check_ended,
    check_in_flight,
    check_notice,
    check_requests,
    check_unused,
)
from leaseway.ports.limiter import LimitDefinitions
from leaseway.stores.python_limiter import FORGET_MAX, LimitLevels, StoredLimit, change_limit, check_all, declare_limit


class MemoryLevels(LimitLevels):
    """Levels by the name of their definition and their own name."""

    def __init__(self, now_us: Callable[[], Instant], in_flight_grace_us: int, starts_full: bool) -> None:
        super().__init__(in_flight_grace_us)
        self._lock = Lock()
        self._now_us = now_us
        self.now = now_us()
        self.since = self.now - (KNOWN_US if starts_full else 0)
        self.defined: dict[str, StoredLimit] = {}
        self._levels: dict[tuple[str, str], Level] = {}

    @contextmanager
    def locked(self) -> Iterator["MemoryLevels"]:
        """Hold the lock; the clock is read under it."""
        with self._lock:
            self.now = self._now_us()
            yield self

    def sizing(self, limit: str) -> Sizing | None:
        known = self.defined.get(limit)
        return known.sizing if known else None

    def read(self, limit: str, name: str) -> Level:
        return self._levels.get((limit, name), NEW)

    def write(self, taking: Acquisition, level: Level) -> None:
        key = (taking.ask.limit, taking.ask.name)
        if key not in self._levels:
            self._forget_idle()
        self._levels[key] = level

    def forget(self, limit: str) -> bool:
        for key in [key for key in self._levels if key[0] == limit]:
            del self._levels[key]
        return self.defined.pop(limit, None) is not None

    def _forget_idle(self) -> None:
        """Remove the oldest levels that are idle; move the others to the end."""
        for key in list(islice(self._levels, FORGET_MAX)):
            level = self._levels.pop(key)
            idle_at = buckets.idle_at(level, self.defined[key[0]].sizing)
            if idle_at is None or idle_at > self.now:
                self._levels[key] = level


class MemoryLimitDefinitions:
    def __init__(self, levels: MemoryLevels) -> None:
        self._levels = levels

    async def declare(self, definitions: Sequence[LimitDefinition]) -> None:
        check_all(definitions)
        with self._levels.locked() as levels:
            for definition in definitions:
                if (news := declare_limit(levels.defined.get(definition.name), definition)) is not None:
                    levels.defined[definition.name] = news

    async def change(self, definition: LimitDefinition, *, expected: int | None = None) -> int:
        check_all([definition])
        with self._levels.locked() as levels:
            news = change_limit(levels.defined.get(definition.name), definition, expected)
            levels.defined[definition.name] = news
            return news.sizing.version

    async def all(self) -> list[tuple[LimitDefinition, int]]:
        with self._levels.locked() as levels:
            return [(known.definition, known.sizing.version) for _, known in sorted(levels.defined.items())]

    async def forget(self, name: str) -> bool:
        with self._levels.locked() as levels:
            return levels.forget(name)


class MemoryLimiter:
    """Any thread and any event loop may call it: no method awaits while it holds the lock."""

    def __init__(
        self, now_us: Callable[[], Instant], *, in_flight_grace_us: int = 0, starts_full: bool = False
    ) -> None:
        # No grace by default: the calls in flight ended with the process. A restarted server cannot assume that.
        self._levels = MemoryLevels(now_us, in_flight_grace_us, starts_full)
        self.definitions: LimitDefinitions = MemoryLimitDefinitions(self._levels)

    async def open(self) -> None:
        """Do nothing: memory needs no connection."""

    async def close(self) -> None:
        """Do nothing: memory ends with the process."""

    def fence(self) -> None:
        """Distrust everything written before, as after a restart of a server. For simulations and tests."""
        with self._levels.locked() as levels:
            levels.since = levels.now

    async def acquire(
        self, asks: Sequence[PermitRequest], *, least: int = 1, most: int = 1, holder: str = "", in_flight_us: int = 0
    ) -> Verdict:
        check_acquire(asks, least, most, in_flight_us)
        with self._levels.locked() as levels:
            return levels.acquire(asks, least, most, holder, in_flight_us)

    async def return_unused(self, granted: Granted, unused: int) -> None:
        check_unused(granted, unused)
        with self._levels.locked() as levels:
            levels.return_unused(granted, unused)

    async def end_calls(self, asks: Sequence[PermitRequest], holder: str, count: int, used: Sequence[int] = ()) -> None:
        check_ended(asks, holder, count, used)
        with self._levels.locked() as levels:
            levels.end_calls(asks, holder, count, used)

    async def renew_calls(self, asks: Sequence[PermitRequest], holder: str, count: int, in_flight_us: int) -> None:
        check_in_flight(asks, holder, count, in_flight_us)
        with self._levels.locked() as levels:
            levels.renew_calls(asks, holder, count, in_flight_us)

    async def observe(self, notice: Notice) -> None:
        check_notice(notice)
        with self._levels.locked() as levels:
            levels.observe(notice)

    async def levels(self, asks: Sequence[PermitRequest]) -> tuple[Instant, list[Level]]:
        check_requests(asks)
        with self._levels.locked() as levels:
            return levels.read_levels(asks)
