"""Budgets, in the durable store. `leaseway.testing.ledger_contract` proves every store.

Promises that hold for every method:
- It is atomic, durable when it returns, and decided by the store's own clock, read after its locks.
- spent + held ≤ limit + overdraft in every window, under any concurrency; the database itself refuses more.
- It can be repeated with the same id and returns the same answer, also if the budget has filled up since; a hold that
  is booked may move to an earlier window. Thresholds are reported once: by the call that crossed them, and in the
  journal.
- Whatever may have been spent counts as spent. An unknown cost is charged in full, and corrected when it is known.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from leaseway.domain.budgets.balances import Audit, BudgetWindow, Evidence, JournalEntry
from leaseway.domain.budgets.budget import BudgetDefinition, Charge, Crossed, HoldAnswer
from leaseway.domain.budgets.holds import Correction, Hold, Lines
from leaseway.domain.budgets.rebooking import FIRST_BOOKED, BookedPlace
from leaseway.domain.ids import Instant

BALANCES_MAX = 1_000
RESERVED_MAX = 100
POST_MAX = 500
"""Requests in one `post`, of both kinds together."""


class HoldRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """The arguments of `hold`."""

    id: str
    lines: tuple[tuple[Charge, int], ...]
    ttl_us: int
    owner: str = ""
    dispatch: bool = False


class SettleHoldRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """The arguments of `settle`."""

    id: str
    actuals: dict[str, int]
    owner: str | None = None


class Posted(Struct, frozen=True):
    """The answers of `post`, in the order of the requests. None: the request has had no effect; make it by itself."""

    holds: tuple[HoldAnswer | None, ...] = ()
    settlements: tuple[Crossed | None, ...] = ()


class Expired(Struct, frozen=True):
    """What happened to holds past their deadline."""

    voided: int = 0
    captured: int = 0
    crossed: Crossed = ()

    @property
    def count(self) -> int:
        return self.voided + self.captured


class BudgetDefinitions(Protocol):
    async def declare(self, definitions: Sequence[BudgetDefinition]) -> None:
        """Set budgets as the code declares them. A declaration takes effect if it is new or differs from the last
        declaration: a restart does not undo an operator's change, and no declaration resumes a paused budget."""
        ...

    async def change(self, definition: BudgetDefinition, *, expected: int | None = None) -> int:
        """Set a budget as an operator says, for current and future windows, and return the new version.

        A limit below what is spent and held denies new holds and shows as overdraft. `Stale`: the version in force is
        not `expected` (0 means that there is none yet); nothing has changed.
        """
        ...

    async def all(self) -> list[tuple[BudgetDefinition, int]]:
        """Return all definitions in force, by name, each with its version."""
        ...

    async def forget(self, name: str) -> bool:
        """Remove a definition with its windows and journal. False: there is none.

        Holds that are only held or booked are released. `BadValue` while calls are dispatched under it.
        """
        ...


class BudgetReads(Protocol):
    async def balances(self, names: Sequence[str] | None = None, *, since: Instant | None = None) -> list[BudgetWindow]:
        """Return the balances of current and future windows and of those that ended after `since`; by name and start.

        A budget without fields is listed before its first hold. At most `BALANCES_MAX`.
        """
        ...

    async def journal(self, name: str, limit: int = 100) -> list[JournalEntry]:
        """Return the bookings of a budget, newest first."""
        ...

    async def holds(self, name: str, limit: int = 100) -> list[Hold]:
        """Return the holds of a budget that are open or captured, the latest deadline first."""
        ...

    async def booked(self, budget: str, *, after: BookedPlace = FIRST_BOOKED, limit: int = 100) -> list[Hold]:
        """Return the holds that wait for a window which has not begun, in the order of `booked_place`.

        `budget` is the name of a budget, or of a definition with fields. `after`: the place of the last hold of the
        previous page.
        """
        ...

    async def booked_for(self, prefix: str, limit: int = 100) -> list[Hold]:
        """Return the holds whose ids begin with this prefix and that wait for a window which has not begun."""
        ...

    async def reserved(self, prefix: str) -> list[str]:
        """Return the ids that begin with this prefix, of holds that are held and not dispatched, at most
        `RESERVED_MAX`."""
        ...

    async def audit(self) -> Audit:
        """Add up balances, journal and holds in one snapshot; the sums must agree."""
        ...

    async def wait_us(self, charges: Sequence[Charge]) -> int:
        """Microseconds until each of these budgets may have room again. 0: now, or waiting does not help."""
        ...


class Ledger(Protocol):
    definitions: BudgetDefinitions
    reads: BudgetReads

    async def hold(self, id: str, lines: Lines, ttl_us: int, *, owner: str = "", dispatch: bool = False) -> HoldAnswer:
        """Reserve all of the lines or none; see `domain.budgets.holds`.

        `HoldGranted`: reserved now, for `ttl_us`; with `dispatch` the hold is dispatched at once. `HoldBooked`:
        reserved in a later window; hold again under the same id when that window begins, within ten minutes. Holding
        again before that moves it to an earlier window, if one has room by then.
        `HoldDenied`: not reserved. `HoldUsed`: another owner has dispatched under this id, or its call is over. An
        undefined budget raises `UnknownBudget`.
        """
        ...

    async def dispatch(self, id: str) -> bool:
        """Fence the call: True only before the deadline and within the windows of the hold. False: do not call."""
        ...

    async def settle(self, id: str, actuals: Mapping[str, int], *, owner: str | None = None) -> Crossed:
        """Book what the call has cost, in micro-units, by the name of a budget or by unit.

        A budget that is not named is charged what was held. The cost is booked even if it is higher or late. With
        `owner`, the hold of another owner is left as it is: a late settlement must not free the hold of another call.
        An unknown id raises `BadValue`.
        """
        ...

    async def post(self, holds: Sequence[HoldRequest], settlements: Sequence[SettleHoldRequest]) -> Posted:
        """Settle and hold for several calls in one transaction, the settlements first: what they free can be held.

        Each request is answered as `settle` or `hold` would answer it. One that they would refuse with an error, or
        that needs more than one step, has no effect and is answered with None. At most `POST_MAX` requests.
        """
        ...

    async def correct(self, id: str, actuals: Mapping[str, int], evidence: Evidence) -> tuple[Correction, ...]:
        """Replace a captured amount by what the provider has charged, as in `settle`. The journal records who did it.

        Each hold is corrected once; repeating the same correction changes nothing and returns the same answer.
        `BadValue`: the hold is unknown, open, void or settled.
        """
        ...

    async def void(self, id: str) -> bool:
        """Release a hold because the call will not be made.

        False: the call may have been made, or the id is unknown; nothing changes.
        """
        ...

    async def expire(self, limit: int) -> Expired:
        """End holds past their deadline, at most `limit`: void those only held, capture those dispatched."""
        ...

    async def prune(self, keep_us: int, limit: int) -> int:
        """Delete windows that ended longer ago than `keep_us` and have no open holds, with their holds and journal,
        at most `limit`."""
        ...
