"""The replies of the worker protocol. A value that is not an object is wrapped in one, as `value`."""

from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

from msgspec import Struct

from leaseway.domain.budgets import budget
from leaseway.domain.budgets.balances import Audit, Sums
from leaseway.domain.budgets.budget import HoldAnswer
from leaseway.domain.budgets.calendar_windows import CalendarWindow
from leaseway.domain.errors import StoreRefused
from leaseway.domain.ids import Instant
from leaseway.domain.limits import buckets
from leaseway.domain.limits.buckets import Granted, Level, Never, Verdict, Wait

T = TypeVar("T")


class Value(Struct, Generic[T], frozen=True):
    """A reply that is not an object, wrapped in one."""

    value: T


class AcquireReply(Struct, frozen=True, omit_defaults=True):
    """Exactly one field is set."""

    granted: Granted | None = None
    wait: Wait | None = None
    never: Never | None = None

    @classmethod
    def of(cls, verdict: Verdict) -> "AcquireReply":
        match verdict:
            case buckets.Granted():
                return cls(granted=verdict)
            case buckets.Wait():
                return cls(wait=verdict)
            case buckets.Never():
                return cls(never=verdict)

    @property
    def verdict(self) -> Verdict:
        verdict: Verdict = first_present(self.granted, self.wait, self.never)
        return verdict


class LevelsReply(Struct, frozen=True):
    now: Instant
    levels: tuple[Level, ...]

    @classmethod
    def of(cls, seen: tuple[Instant, Sequence[Level]]) -> "LevelsReply":
        return cls(seen[0], tuple(seen[1]))


class HoldReply(Struct, frozen=True, omit_defaults=True):
    """Exactly one field is set."""

    held: budget.HoldGranted | None = None
    booked: budget.HoldBooked | None = None
    denied: budget.HoldDenied | None = None
    used: budget.HoldUsed | None = None

    @classmethod
    def of(cls, answer: HoldAnswer) -> "HoldReply":
        match answer:
            case budget.HoldGranted():
                return cls(held=answer)
            case budget.HoldBooked():
                return cls(booked=answer)
            case budget.HoldDenied():
                return cls(denied=answer)
            case budget.HoldUsed():
                return cls(used=answer)

    @property
    def value(self) -> HoldAnswer:
        value: HoldAnswer = first_present(self.held, self.booked, self.denied, self.used)
        return value


SumRows = tuple[tuple[str, CalendarWindow, Sums], ...]


class AuditReply(Struct, frozen=True):
    """The sums of an audit as lists, because keys of JSON objects are strings."""

    balances: SumRows
    journal: SumRows
    holds: SumRows
    unbalanced: tuple[tuple[str, CalendarWindow], ...] = ()

    @classmethod
    def of(cls, audit: Audit) -> "AuditReply":
        return cls(sum_rows(audit.balances), sum_rows(audit.journal), sum_rows(audit.holds), audit.unbalanced)

    @property
    def audit(self) -> Audit:
        balances, journal, holds = (
            {(name, window): each for name, window, each in side} for side in (self.balances, self.journal, self.holds)
        )
        return Audit(balances, journal, holds, self.unbalanced)


def sum_rows(sums: Mapping[tuple[str, CalendarWindow], Sums]) -> SumRows:
    return tuple((name, window, each) for (name, window), each in sums.items())


def first_present(*said: Any) -> Any:
    """Return the one value that is set. `StoreRefused`: the service runs another version."""
    found = [each for each in said if each is not None]
    if len(found) != 1:
        raise StoreRefused(
            "the service sent a reply that this version of leaseway does not know; install the same version"
        )
    return found[0]
