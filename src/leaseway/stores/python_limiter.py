"""The part of a limiter that memory, SQLite and MongoDB share.

`domain.limits.buckets` decides, and the store reads and writes. PostgreSQL and Redis implement the same rules in SQL
and Lua.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from leaseway.domain.errors import UnknownLimit, refuse_stale
from leaseway.domain.ids import Instant
from leaseway.domain.limits import buckets, throttling
from leaseway.domain.limits.buckets import Acquisition, CallHolder, Granted, Notice, Verdict
from leaseway.domain.limits.level import Level
from leaseway.domain.limits.limit import LimitDefinition, PermitRequest, Sizing, check_limit, size_limit

FORGET_MAX = 2
"""Number of old levels examined whenever a level is added, so that idle levels do not accumulate."""


class StoredLimit(Struct, frozen=True):
    """A definition in force. `declared` is the last declaration of the code; None if only an operator has set it."""

    definition: LimitDefinition
    declared: LimitDefinition | None
    sizing: Sizing


def declare_limit(known: StoredLimit | None, definition: LimitDefinition) -> StoredLimit | None:
    """Apply a declaration of the code. None: it has not changed."""
    if known is not None and known.declared == definition:
        return None
    # A declaration does not resume a limit that an operator has paused.
    in_force = definition if known is None else replace(definition, paused=known.definition.paused)
    return StoredLimit(in_force, definition, next_sizing(known, in_force))


def change_limit(known: StoredLimit | None, definition: LimitDefinition, expected: int | None = None) -> StoredLimit:
    """Apply a change of an operator."""
    refuse_stale(f"limit {definition.name}", known.sizing.version if known else 0, expected)
    return StoredLimit(definition, known.declared if known else None, next_sizing(known, definition))


def next_sizing(known: StoredLimit | None, definition: LimitDefinition) -> Sizing:
    return size_limit(definition, known.sizing.version + 1 if known else 1)


def check_all(definitions: Iterable[LimitDefinition]) -> None:
    """Check all definitions before any of them takes effect."""
    for definition in definitions:
        size_limit(check_limit(definition))


class LimitLevels(ABC):
    """The levels at one instant, while the store's lock is held."""

    now: Instant
    since: Instant

    def __init__(self, in_flight_grace_us: int = 0) -> None:
        self._in_flight_grace_us = in_flight_grace_us

    @abstractmethod
    def sizing(self, limit: str) -> Sizing | None: ...

    @abstractmethod
    def read(self, limit: str, name: str) -> Level: ...

    @abstractmethod
    def write(self, taking: Acquisition, level: Level) -> None:
        """Store a level. Called for changed levels only."""

    # -- verbs ------------------------------------------------------------------------------------------------------

    def acquire(self, asks: Sequence[PermitRequest], least: int, most: int, holder: str, in_flight_us: int) -> Verdict:
        caller = CallHolder(holder, in_flight_us, self.since + self._in_flight_grace_us)
        takings = [self._taking(ask) for ask in asks]
        verdict, levels = buckets.take(takings, self.now, self.since, least, most, caller)
        for taking, level in zip(takings, levels, strict=True):
            self._note(taking, level)
        return verdict

    def return_unused(self, granted: Granted, unused: int) -> None:
        for taking in self._known(granted.asks):
            self._note(taking, buckets.credit_unused(taking, self.now, granted, unused))

    def end_calls(self, asks: Sequence[PermitRequest], holder: str, count: int, used: Sequence[int]) -> None:
        amounts = dict(zip(asks, used, strict=False))
        for taking in self._known(asks):
            level = self._current(taking) if taking.sizing.is_metered else taking.level
            now_ = replace(taking, level=level)
            self._note(taking, buckets.end_calls(now_, holder, count, amounts.get(taking.ask), self.now))

    def renew_calls(self, asks: Sequence[PermitRequest], holder: str, count: int, in_flight_us: int) -> None:
        for taking in self._known(asks):
            until = self.now + in_flight_us
            self._note(taking, buckets.renew_calls(taking, self._current(taking), holder, count, until))

    def observe(self, notice: Notice) -> None:
        taking = self._taking(PermitRequest(notice.name, notice.limit))
        self._note(taking, throttling.apply_notice(taking, notice, self.now, self.since))

    def read_levels(self, asks: Sequence[PermitRequest]) -> tuple[Instant, list[Level]]:
        return self.now, [self._current(self._taking(ask)) for ask in asks]

    # -- reading and writing ----------------------------------------------------------------------------------------

    def _taking(self, ask: PermitRequest) -> Acquisition:
        sizing = self.sizing(ask.limit)
        if sizing is None:
            raise UnknownLimit(f"{ask.limit}: no limit of this name is defined; declare it first")
        return Acquisition(ask, sizing, self.read(ask.limit, ask.name))

    def _known(self, asks: Sequence[PermitRequest]) -> list[Acquisition]:
        """Without limits that were forgotten meanwhile."""
        return [self._taking(ask) for ask in asks if self.sizing(ask.limit) is not None]

    def _current(self, taking: Acquisition) -> Level:
        return buckets.refresh(taking.level, taking.sizing, self.now, self.since)

    def _note(self, taking: Acquisition, level: Level) -> None:
        if level != taking.level:
            self.write(taking, level)
