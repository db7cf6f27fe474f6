"""Where budgets are kept, in the durable store. One contract, `leaseway.testing.ledger_contract`, proves every store.

Promises that hold for every verb:
- It is atomic, durable when it answers, and decided by the store's own clock, read after its locks.
- spent + held ≤ limit + overdraft, in every window, whatever is asked at once; the database itself refuses more.
- It can be repeated with the same id and gives the same answer, also when the budget has filled up since. Thresholds
  are told once: by the call that crossed them, and in the journal.
- Whatever may have been spent counts as spent. What is not known is charged, and corrected when somebody says better.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from leaseway.domain.budgets.budget import BudgetDefinition, Charge, Crossed, HoldAnswer
from leaseway.domain.budgets.ledger import Audit, BudgetWindow, JournalEntry, Lines
from leaseway.domain.ids import Instant


class Expired(Struct, frozen=True):
    """What became of holds past their deadline."""

    voided: int = 0
    captured: int = 0
    crossed: Crossed = ()

    @property
    def count(self) -> int:
        return self.voided + self.captured


class Ledger(Protocol):
    async def declare(self, definitions: Sequence[BudgetDefinition]) -> None:
        """What the code says. It counts if it is new or differs from what the code said last: a restart does not undo
        what somebody has changed since, and no word of the code resumes what was paused."""
        ...

    async def change(self, definition: BudgetDefinition, *, expected: int | None = None) -> int:
        """What an operator says, in force at once, for windows that are under way and for those to come; the new
        version. A limit below what is spent and held denies new holds and shows as overdraft. `Stale`: its version was
        not the expected one, where 0 means that there is none yet; nothing has changed."""
        ...

    async def definitions(self) -> list[tuple[BudgetDefinition, int]]:
        """All in force, by name, each with its version."""
        ...

    async def forget(self, name: str) -> bool:
        """Remove a definition with its windows and their journal. False: there is none. While something is held it is
        refused: `BadValue`."""
        ...

    async def hold(self, id: str, lines: Lines, ttl_us: int, *, owner: str = "", dispatch: bool = False) -> HoldAnswer:
        """Reserve all of the lines or none; see `domain.ledger`.

        `HoldGranted`: now, for so long. With `dispatch` it is said at once that the call leaves. `HoldBooked`: in a
        later window, to be asked for again under the same id when that begins; its time counts from there.
        `HoldDenied`: not at all.
        `HoldUsed`: another owner has dispatched under this id, or its call is over. A budget that nobody has defined
        raises `UnknownBudget`.
        """
        ...

    async def dispatch(self, id: str) -> bool:
        """The fence before the call: true only before the deadline and within the windows in which it is held. False:
        do not call."""
        ...

    async def settle(self, id: str, actuals: Mapping[str, int]) -> Crossed:
        """What the call has cost, in micro-units, by the name of a budget or by unit; what is not named costs what was
        held for it. A fact: it is booked even if it is more, or late. An id that nobody knows raises `BadValue`."""
        ...

    async def void(self, id: str) -> bool:
        """The call will not be made. False: it may have been made, or nobody knows the id; nothing changes."""
        ...

    async def expire(self, limit: int) -> Expired:
        """End holds past their deadline, at most so many: what was only held becomes void, what was dispatched is
        captured."""
        ...

    async def wait_us(self, charges: Sequence[Charge]) -> int:
        """How long until each of these budgets has something that is not spent, or somebody may have raised it; 0: now,
        or nobody shall wait."""
        ...

    async def books(self, names: Sequence[str] | None = None, *, since: Instant | None = None) -> list[BudgetWindow]:
        """What people look at: windows that are under way or to come, or that ended after `since`; by name and start.
        A budget without fields is there even before its first hold. At most `BOOKS_MAX`."""
        ...

    async def journal(self, name: str, limit: int = 100) -> list[JournalEntry]:
        """What was booked on a budget, newest first."""
        ...

    async def audit(self) -> Audit:
        """Add up books, journal and holds, all at one moment; they must agree."""
        ...

    async def prune(self, keep_us: int, limit: int) -> int:
        """Forget windows that ended longer ago than this and in which nothing is open, with their holds and journal;
        at most so many."""
        ...


BOOKS_MAX = 1_000
