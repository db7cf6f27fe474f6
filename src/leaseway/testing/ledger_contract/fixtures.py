"""Fixtures of the ledger contract: a few budgets, and short functions for each operation."""

from typing import Any

from leaseway.domain.budgets.balances import BudgetWindow
from leaseway.domain.budgets.budget import MICRO, Budget, BudgetDefinition, Charge, HoldAnswer, HoldBooked, HoldGranted
from leaseway.domain.ids import SECOND_US
from leaseway.ports.ledger import Ledger
from leaseway.testing.clock import FakeClock

MINUTE_US = 60 * SECOND_US
DAY_US = 86_400 * SECOND_US
SPEND = Charge("spend", "spend")


def daily(usd: object = 10, **options: Any) -> BudgetDefinition:
    return Budget("spend", usd=usd, **{"every": "day", **options}).definition


def budget(name: str, **options: Any) -> BudgetDefinition:
    return Budget(name, **options).definition


def usd(amount: float, charge: Charge = SPEND) -> tuple[tuple[Charge, int], ...]:
    return ((charge, round(amount * MICRO)),)


def micros(amount: float) -> int:
    return round(amount * MICRO)


async def held(
    ledger: Ledger, id_: str, amount: float, *, dispatch: bool = False, ttl_us: int = MINUTE_US
) -> HoldGranted:
    """A hold that must succeed at once."""
    answer = await ledger.hold(id_, usd(amount), ttl_us, dispatch=dispatch)
    assert isinstance(answer, HoldGranted)
    return answer


async def booked(ledger: Ledger, id_: str, amount: float, *, ttl_us: int = MINUTE_US) -> HoldBooked:
    """A hold that must be made in a later window."""
    answer = await ledger.hold(id_, usd(amount), ttl_us, dispatch=True)
    assert isinstance(answer, HoldBooked)
    return answer


async def called(ledger: Ledger, id_: str, amount: float, cost: float) -> Any:
    """A whole call with its maximum cost and its actual cost."""
    await held(ledger, id_, amount, dispatch=True)
    return await ledger.settle(id_, {"usd": micros(cost)})


async def account(ledger: Ledger, name: str = "spend", place: int = 0) -> BudgetWindow:
    """The first open window of a budget, or a later one."""
    accounts = await ledger.reads.balances([name])
    return accounts[place]


async def numbers(ledger: Ledger, name: str = "spend", place: int = 0) -> tuple[float, float, float]:
    """Spent, held and overdraft, in whole units."""
    book = (await account(ledger, name, place)).balance
    return book.spent_micros / MICRO, book.held_micros / MICRO, book.overdraft_micros / MICRO


async def agrees(ledger: Ledger) -> None:
    """Balance, journal and holds must agree."""
    audit = await ledger.reads.audit()
    assert audit.wrong() == []


def next_day(clock: FakeClock) -> int:
    """Midnight in UTC."""
    return (clock.now_us() // DAY_US + 1) * DAY_US


def to_next_day(clock: FakeClock) -> None:
    clock.set_us(next_day(clock))


def kind_of(answer: HoldAnswer) -> str:
    return type(answer).__name__
