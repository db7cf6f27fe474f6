"""Budgets of a service, reached over HTTP."""

from collections.abc import Mapping, Sequence

from leaseway.domain.budgets.balances import Audit, BudgetWindow, Evidence, JournalEntry
from leaseway.domain.budgets.budget import BudgetDefinition, Charge, Crossed, HoldAnswer, check_budget
from leaseway.domain.budgets.holds import Correction, Hold, Lines, check_evidence, check_lines
from leaseway.domain.budgets.rebooking import FIRST_BOOKED, BookedPlace
from leaseway.domain.ids import Instant
from leaseway.ports.ledger import BudgetDefinitions, BudgetReads, Expired, HoldRequest, Posted, SettleHoldRequest
from leaseway.stores.http import messages, protocol
from leaseway.stores.http.client import ServiceClient


class HttpBudgetDefinitions:
    def __init__(self, line: ServiceClient) -> None:
        self._line = line

    async def declare(self, definitions: Sequence[BudgetDefinition]) -> None:
        for definition in definitions:
            check_budget(definition)
        await self._line.ask(protocol.DECLARE_BUDGETS, messages.DeclareBudgetsRequest(tuple(definitions)))

    async def change(self, definition: BudgetDefinition, *, expected: int | None = None) -> int:
        check_budget(definition)
        return (await self._line.ask(protocol.CHANGE_BUDGET, messages.ChangeBudgetRequest(definition, expected))).value

    async def all(self) -> list[tuple[BudgetDefinition, int]]:
        return (await self._line.ask(protocol.BUDGETS, messages.EmptyRequest())).value

    async def forget(self, name: str) -> bool:
        return (await self._line.ask(protocol.FORGET_BUDGET, messages.NameRequest(name))).value


class HttpBudgetReads:
    def __init__(self, line: ServiceClient) -> None:
        self._line = line

    async def balances(self, names: Sequence[str] | None = None, *, since: Instant | None = None) -> list[BudgetWindow]:
        asked = messages.BalancesRequest(None if names is None else tuple(names), since)
        return (await self._line.ask(protocol.BALANCES, asked)).value

    async def journal(self, name: str, limit: int = 100) -> list[JournalEntry]:
        return (await self._line.ask(protocol.JOURNAL, messages.JournalRequest(name, limit))).value

    async def holds(self, name: str, limit: int = 100) -> list[Hold]:
        return (await self._line.ask(protocol.HOLDS, messages.JournalRequest(name, limit))).value

    async def booked(self, budget: str, *, after: BookedPlace = FIRST_BOOKED, limit: int = 100) -> list[Hold]:
        return (await self._line.ask(protocol.BOOKED, messages.BookedRequest(budget, after, limit))).value

    async def booked_for(self, prefix: str, limit: int = 100) -> list[Hold]:
        return (await self._line.ask(protocol.BOOKED_FOR, messages.BookedForRequest(prefix, limit))).value

    async def reserved(self, prefix: str) -> list[str]:
        return (await self._line.ask(protocol.RESERVED, messages.ReservedRequest(prefix))).value

    async def wait_us(self, charges: Sequence[Charge]) -> int:
        return (await self._line.ask(protocol.BUDGETS_WAIT_US, messages.BudgetWaitRequest(tuple(charges)))).value

    async def audit(self) -> Audit:
        return (await self._line.ask(protocol.AUDIT, messages.EmptyRequest())).audit


class HttpLedger:
    """Shares the store's client and does not close it."""

    def __init__(self, line: ServiceClient) -> None:
        self.line = line
        self.definitions: BudgetDefinitions = HttpBudgetDefinitions(line)
        self.reads: BudgetReads = HttpBudgetReads(line)

    async def hold(self, id: str, lines: Lines, ttl_us: int, *, owner: str = "", dispatch: bool = False) -> HoldAnswer:
        check_lines(id, lines, ttl_us)
        return (await self.line.ask(protocol.HOLD, HoldRequest(id, tuple(lines), ttl_us, owner, dispatch))).value

    async def dispatch(self, id: str) -> bool:
        return (await self.line.ask(protocol.DISPATCH, messages.HoldIdRequest(id))).value

    async def settle(self, id: str, actuals: Mapping[str, int], *, owner: str | None = None) -> Crossed:
        return (await self.line.ask(protocol.SETTLE, SettleHoldRequest(id, dict(actuals), owner))).value

    async def post(self, holds: Sequence[HoldRequest], settlements: Sequence[SettleHoldRequest]) -> Posted:
        return (await self.line.ask(protocol.POST, messages.PostRequest(tuple(holds), tuple(settlements)))).posted

    async def correct(self, id: str, actuals: Mapping[str, int], evidence: Evidence) -> tuple[Correction, ...]:
        check_evidence(evidence, actuals)
        body = messages.CorrectHoldRequest(id, dict(actuals), evidence)
        return (await self.line.ask(protocol.CORRECT, body)).value

    async def void(self, id: str) -> bool:
        return (await self.line.ask(protocol.VOID, messages.HoldIdRequest(id))).value

    async def expire(self, limit: int) -> Expired:
        return await self.line.ask(protocol.EXPIRE, messages.ExpireHoldsRequest(limit))

    async def prune(self, keep_us: int, limit: int) -> int:
        return (await self.line.ask(protocol.PRUNE_BUDGETS, messages.PruneRequest(keep_us, limit))).value
