"""Budgets of a service, reached over HTTP."""

from collections.abc import Mapping, Sequence

from leaseway.domain.budgets.balances import Audit, BudgetWindow, JournalEntry
from leaseway.domain.budgets.budget import BudgetDefinition, Charge, Crossed, HoldAnswer, check_budget
from leaseway.domain.budgets.holds import Lines, check_lines
from leaseway.domain.ids import Instant
from leaseway.ports.ledger import BudgetDefinitions, BudgetReads, Expired
from leaseway.stores.http import protocol, requests
from leaseway.stores.http.client import ServiceClient


class HttpBudgetDefinitions:
    def __init__(self, line: ServiceClient) -> None:
        self._line = line

    async def declare(self, definitions: Sequence[BudgetDefinition]) -> None:
        for definition in definitions:
            check_budget(definition)
        await self._line.ask(protocol.DECLARE_BUDGETS, requests.DeclareBudgetsRequest(tuple(definitions)))

    async def change(self, definition: BudgetDefinition, *, expected: int | None = None) -> int:
        check_budget(definition)
        return (await self._line.ask(protocol.CHANGE_BUDGET, requests.ChangeBudgetRequest(definition, expected))).value

    async def all(self) -> list[tuple[BudgetDefinition, int]]:
        return (await self._line.ask(protocol.BUDGETS, requests.EmptyRequest())).value

    async def forget(self, name: str) -> bool:
        return (await self._line.ask(protocol.FORGET_BUDGET, requests.NameRequest(name))).value


class HttpBudgetReads:
    def __init__(self, line: ServiceClient) -> None:
        self._line = line

    async def balances(self, names: Sequence[str] | None = None, *, since: Instant | None = None) -> list[BudgetWindow]:
        asked = requests.BalancesRequest(None if names is None else tuple(names), since)
        return (await self._line.ask(protocol.BALANCES, asked)).value

    async def journal(self, name: str, limit: int = 100) -> list[JournalEntry]:
        return (await self._line.ask(protocol.JOURNAL, requests.JournalRequest(name, limit))).value

    async def audit(self) -> Audit:
        return (await self._line.ask(protocol.AUDIT, requests.EmptyRequest())).audit


class HttpLedger:
    """Shares the store's client and does not close it."""

    def __init__(self, line: ServiceClient) -> None:
        self.line = line
        self.definitions: BudgetDefinitions = HttpBudgetDefinitions(line)
        self.reads: BudgetReads = HttpBudgetReads(line)

    async def hold(self, id: str, lines: Lines, ttl_us: int, *, owner: str = "", dispatch: bool = False) -> HoldAnswer:
        check_lines(id, lines, ttl_us)
        return (
            await self.line.ask(protocol.HOLD, requests.HoldRequest(id, tuple(lines), ttl_us, owner, dispatch))
        ).value

    async def dispatch(self, id: str) -> bool:
        return (await self.line.ask(protocol.DISPATCH, requests.HoldIdRequest(id))).value

    async def settle(self, id: str, actuals: Mapping[str, int]) -> Crossed:
        return (await self.line.ask(protocol.SETTLE, requests.SettleHoldRequest(id, dict(actuals)))).value

    async def void(self, id: str) -> bool:
        return (await self.line.ask(protocol.VOID, requests.HoldIdRequest(id))).value

    async def expire(self, limit: int) -> Expired:
        return await self.line.ask(protocol.EXPIRE, requests.ExpireHoldsRequest(limit))

    async def wait_us(self, charges: Sequence[Charge]) -> int:
        return (await self.line.ask(protocol.BUDGETS_WAIT_US, requests.BudgetWaitRequest(tuple(charges)))).value

    async def prune(self, keep_us: int, limit: int) -> int:
        return (await self.line.ask(protocol.PRUNE_BUDGETS, requests.PruneRequest(keep_us, limit))).value
