"""What every job of a kind needs, as `@app.job(limits=…, budgets=…, cost=…)` states it."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from leaseway.domain.budgets.budget import Budget, BudgetDefinition, cost_micros_of, refuse_impossible
from leaseway.domain.errors import BadValue
from leaseway.domain.limits.limit import Ask, Definition, Limit, Use, fields_of, filled
from leaseway.domain.requirements import Charge, Needs, text_of

Limited = Limit | Use | Sequence[Limit | Use]


class Demands:
    """For one job with its arguments they become `Needs`."""

    def __init__(self, kind: str, uses: tuple[Use, ...], budgets: tuple[Budget, ...], cost: object) -> None:
        self.uses = uses
        self.budgets = budgets
        self._cost = cost
        self._kind = kind
        names = [use.limit.name for use in uses] + [budget.name for budget in budgets]
        if len(set(names)) < len(names):
            raise BadValue(f"job {kind}: limits", "names the same limit or budget twice")
        if budgets and cost is None:
            raise BadValue(f"job {kind}: cost", "is needed with a budget: what may one call cost at most?")
        if cost is not None and not budgets:
            raise BadValue(f"job {kind}: cost", "has no budget that it could be taken from; give budgets=[…]")
        self.is_same_for_all = not callable(cost) and not any(fields_of(name) for name in names)
        if self.is_same_for_all:
            self._text = text_of(self.needs({}, ""))
            self.amounts({})

    def __bool__(self) -> bool:
        return bool(self.uses or self.budgets)

    def text(self, decode: Callable[[], Mapping[str, Any]], tenant: str) -> str:
        """The needs of one job; its arguments are read only if a name or a cost depends on them."""
        if self.is_same_for_all:
            return self._text
        arguments = decode()
        self.amounts(arguments)  # an impossible cost is refused now, and not found out by a worker
        return text_of(self.needs(arguments, tenant))

    def needs(self, arguments: Mapping[str, Any], tenant: str) -> Needs:
        values = {**arguments, "tenant": tenant}
        asks = tuple(Ask(filled(use.limit.name, values), use.limit.name, use.cost) for use in self.uses)
        charges = tuple(Charge(filled(budget.name, values), budget.name) for budget in self.budgets)
        self._refuse_twins([ask.name for ask in asks], "limits")
        self._refuse_twins([charge.name for charge in charges], "budgets")
        return Needs(asks, charges)

    def _refuse_twins(self, names: Sequence[str], what: str) -> None:
        """Different names may become one when they are filled. Nobody would ever grant the same thing twice."""
        twins = [name for name, count in Counter(names).items() if count > 1]
        if twins:
            raise BadValue(f"job {self._kind}: {what}", f"two of them are {twins[0]!r} for these arguments; name one")

    def amounts(self, arguments: Mapping[str, Any]) -> dict[str, int]:
        """What one call may cost at most, in micro-units, by the name of each budget's definition."""
        cost = self._cost(**arguments) if callable(self._cost) else self._cost
        return {budget.name: self._amount(budget, cost) for budget in self.budgets}

    def _amount(self, budget: Budget, cost: object) -> int:
        field = f"job {self._kind}: cost"
        if isinstance(cost, Mapping):
            if budget.unit not in cost:
                raise BadValue(field, f"says nothing about {budget.unit}, the unit of budget {budget.name}")
            cost = cost[budget.unit]
        amount = cost_micros_of(field, cost)
        refuse_impossible(field, budget.definition, amount)
        return amount


def uses_of(field: str, limits: object) -> tuple[Use, ...]:
    """Limits, or uses of them, as a caller wrote them."""
    given = [limits] if isinstance(limits, Limit | Use) else limits
    if not isinstance(given, list | tuple) or not all(isinstance(each, Limit | Use) for each in given):
        raise BadValue(field, f"must be a list of limits, for example [Limit('maps', '100/minute')] (is {limits!r})")
    return tuple(each if isinstance(each, Use) else Use(each) for each in given)


def definitions_of(kinds: Iterable["Demanding"]) -> list[Definition]:
    """Every limit that these kinds name, once."""
    return list({use.limit.name: use.limit.definition for kind in kinds for use in kind.demands.uses}.values())


def budgets_of(kinds: Iterable["Demanding"]) -> list[BudgetDefinition]:
    return list({budget.name: budget.definition for kind in kinds for budget in kind.demands.budgets}.values())


class Demanding(Protocol):
    demands: Demands


NO_DEMANDS = Demands("", (), (), None)
