"""Budgets in the same SQLite file as the jobs: the domain decides, each time within one write transaction.

SQLite has one writer per file, so values read in a write transaction stay valid until it commits.
"""

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from leaseway.domain.budgets.balances import (
    Audit,
    BudgetWindow,
    Evidence,
    JournalEntry,
)
from leaseway.domain.budgets.budget import (
    BudgetDefinition,
    Charge,
    Crossed,
    HoldAnswer,
)
from leaseway.domain.budgets.holds import (
    Correction,
    Hold,
    Lines,
    check_evidence,
)
from leaseway.domain.budgets.rebooking import FIRST_BOOKED, BookedPlace
from leaseway.domain.ids import Instant
from leaseway.ports.ledger import BudgetDefinitions, BudgetReads, Expired, HoldRequest, Posted, SettleHoldRequest
from leaseway.stores.sqlite.budget_transaction import BudgetTransaction
from leaseway.stores.sqlite.database import Database

T = TypeVar("T")


class BudgetTables:
    """The budget tables in the file of the jobs, one transaction per call."""

    def __init__(self, database: Database) -> None:
        self._connection = database.connection
        self._database = database

    async def write(self, step: Callable[[BudgetTransaction], T]) -> T:
        def work(connection: sqlite3.Connection) -> T:
            transaction = BudgetTransaction(connection, self._database.begin(connection))
            answer = step(transaction)
            transaction.flush()
            return answer

        return await self._connection.write(work)

    async def read(self, step: Callable[[BudgetTransaction], T]) -> T:
        now_us = self._database.now_us
        return await self._connection.read(lambda connection: step(BudgetTransaction(connection, now_us())))


class SqliteBudgetDefinitions:
    def __init__(self, budgets: BudgetTables) -> None:
        self._budgets = budgets

    async def declare(self, definitions: Sequence[BudgetDefinition]) -> None:
        await self._budgets.write(lambda desk: desk.declare(definitions))

    async def change(self, definition: BudgetDefinition, *, expected: int | None = None) -> int:
        return await self._budgets.write(lambda desk: desk.change(definition, expected))

    async def all(self) -> list[tuple[BudgetDefinition, int]]:
        return await self._budgets.read(lambda desk: desk.definitions())

    async def forget(self, name: str) -> bool:
        return await self._budgets.write(lambda desk: desk.forget(name))


class SqliteBudgetReads:
    def __init__(self, budgets: BudgetTables) -> None:
        self._budgets = budgets

    async def balances(self, names: Sequence[str] | None = None, *, since: Instant | None = None) -> list[BudgetWindow]:
        return await self._budgets.read(lambda desk: desk.books(names, since))

    async def journal(self, name: str, limit: int = 100) -> list[JournalEntry]:
        return await self._budgets.read(lambda desk: desk.journal(name, limit))

    async def holds(self, name: str, limit: int = 100) -> list[Hold]:
        return await self._budgets.read(lambda desk: desk.at_one_moment(lambda: desk.unsettled(name, limit)))

    async def booked(self, budget: str, *, after: BookedPlace = FIRST_BOOKED, limit: int = 100) -> list[Hold]:
        return await self._budgets.read(lambda desk: desk.at_one_moment(lambda: desk.booked(budget, after, limit)))

    async def booked_for(self, prefix: str, limit: int = 100) -> list[Hold]:
        return await self._budgets.read(lambda desk: desk.at_one_moment(lambda: desk.booked_for(prefix, limit)))

    async def reserved(self, prefix: str) -> list[str]:
        return await self._budgets.read(lambda desk: desk.reserved(prefix))

    async def audit(self) -> Audit:
        return await self._budgets.read(lambda desk: desk.at_one_moment(desk.audit))

    async def wait_us(self, charges: Sequence[Charge]) -> int:
        return await self._budgets.read(lambda desk: desk.wait_us(charges))


class SqliteLedger:
    def __init__(self, database: Database) -> None:
        self._budgets = BudgetTables(database)
        self.definitions: BudgetDefinitions = SqliteBudgetDefinitions(self._budgets)
        self.reads: BudgetReads = SqliteBudgetReads(self._budgets)

    async def open(self) -> None:
        """Do nothing: the store's migrations create the tables."""

    async def close(self) -> None:
        """Do nothing: the store closes the file."""

    async def hold(self, id: str, lines: Lines, ttl_us: int, *, owner: str = "", dispatch: bool = False) -> HoldAnswer:
        request = HoldRequest(id, tuple(lines), ttl_us, owner, dispatch)
        return await self._budgets.write(lambda desk: desk.hold(request))

    async def dispatch(self, id: str) -> bool:
        return await self._budgets.write(lambda desk: desk.dispatch(id))

    async def settle(self, id: str, actuals: Mapping[str, int], *, owner: str | None = None) -> Crossed:
        request = SettleHoldRequest(id, dict(actuals), owner)
        return await self._budgets.write(lambda desk: desk.settle(request))

    async def post(self, holds: Sequence[HoldRequest], settlements: Sequence[SettleHoldRequest]) -> Posted:
        return await self._budgets.write(lambda desk: desk.post(holds, settlements))

    async def correct(self, id: str, actuals: Mapping[str, int], evidence: Evidence) -> tuple[Correction, ...]:
        check_evidence(evidence, actuals)
        return await self._budgets.write(lambda desk: desk.correct(id, actuals, evidence))

    async def void(self, id: str) -> bool:
        return await self._budgets.write(lambda desk: desk.void(id))

    async def expire(self, limit: int) -> Expired:
        return await self._budgets.write(lambda desk: desk.expire(limit))

    async def prune(self, keep_us: int, limit: int) -> int:
        return await self._budgets.write(lambda desk: desk.prune(keep_us, limit))
