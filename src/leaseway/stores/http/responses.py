"""The answers to calls. One that is no object of its own stands in one, as `answer`."""

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


class Answer(Struct, Generic[T], frozen=True):
    """An answer that is no object of its own."""

    answer: T


class AcquireReply(Struct, frozen=True, omit_defaults=True):
    """One of the three."""

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
    """One of the four."""

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
    def answer(self) -> HoldAnswer:
        answer: HoldAnswer = first_present(self.held, self.booked, self.denied, self.used)
        return answer


Summed = tuple[tuple[str, CalendarWindow, Sums], ...]


class AuditReply(Struct, frozen=True):
    """JSON has no keys but text, so each sum stands beside the place that it is for."""

    books: Summed
    journal: Summed
    holds: Summed
    unbalanced: tuple[tuple[str, CalendarWindow], ...] = ()

    @classmethod
    def of(cls, audit: Audit) -> "AuditReply":
        return cls(summed(audit.balances), summed(audit.journal), summed(audit.holds), audit.unbalanced)

    @property
    def audit(self) -> Audit:
        books, journal, holds = (
            {(name, window): each for name, window, each in side} for side in (self.books, self.journal, self.holds)
        )
        return Audit(books, journal, holds, self.unbalanced)


def summed(sums: Mapping[tuple[str, CalendarWindow], Sums]) -> Summed:
    return tuple((name, window, each) for (name, window), each in sums.items())


def first_present(*said: Any) -> Any:
    """Whichever there is. A service that says none of those that we know speaks another language."""
    found = [each for each in said if each is not None]
    if len(found) != 1:
        raise StoreRefused("the service gave an answer that this leaseway does not know; install the same version")
    return found[0]
