"""The limits and budgets that jobs need before they start.

`Requirements` belong to a kind, as `@app.job(limits=…, budgets=…, cost=…)` declares them. For one job with its
arguments they become `Needs`, which are a part of its lane: jobs with the same needs wait together.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from leaseway.domain.budgets.budget import Budget, BudgetDefinition, Charge, parse_cost_micros, refuse_impossible
from leaseway.domain.errors import BadValue
from leaseway.domain.limits.limit import Limit, LimitDefinition, LimitUse, PermitRequest, fill_template, template_fields

NEEDS_BYTES_MAX = 1_000
"""Needs are a part of a database key in every store."""


class Needs(Struct, frozen=True):
    """Sorted by name when rendered, so that equal needs have the same text."""

    limits: tuple[PermitRequest, ...] = ()
    budgets: tuple[Charge, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.limits or self.budgets)


NO_NEEDS = Needs()


def render_needs(needs: Needs) -> str:
    """The text of needs in a lane's key. Empty: nothing is needed."""
    if not needs:
        return ""
    ordered = Needs(tuple(sorted(needs.limits)), tuple(sorted(needs.budgets)))
    text = msgspec.json.encode(ordered)
    if len(text) > NEEDS_BYTES_MAX:
        names = ", ".join([request.name for request in ordered.limits] + [charge.name for charge in ordered.budgets])
        raise BadValue("limits", f"have too many or too long names for one job ({len(text):,} bytes): {names[:200]}")
    return text.decode()


def parse_needs(text: str) -> Needs:
    return msgspec.json.decode(text, type=Needs) if text else NO_NEEDS


LimitsOption = Limit | LimitUse | Sequence[Limit | LimitUse]


class Requirements:
    """The limits, budgets and cost of a kind."""

    def __init__(self, kind: str, uses: tuple[LimitUse, ...], budgets: tuple[Budget, ...], cost: object) -> None:
        self.uses = uses
        self.budgets = budgets
        self._cost = cost
        self._kind = kind
        names = [use.limit.name for use in uses] + [budget.name for budget in budgets]
        if len(set(names)) < len(names):
            raise BadValue(f"job {kind}: limits", "names the same limit or budget twice")
        if budgets and cost is None:
            raise BadValue(f"job {kind}: cost", "is required with a budget: give the highest cost of one call")
        if cost is not None and not budgets:
            raise BadValue(f"job {kind}: cost", "is given without a budget; add budgets=[…]")
        self.is_same_for_all = not callable(cost) and not any(template_fields(name) for name in names)
        if self.is_same_for_all:
            self._text = render_needs(self.needs({}, ""))
            self.amounts({})

    def __bool__(self) -> bool:
        return bool(self.uses or self.budgets)

    def text(self, decode: Callable[[], Mapping[str, Any]], tenant: str) -> str:
        """The needs of one job as text. The arguments are decoded only if a name or a cost depends on them."""
        if self.is_same_for_all:
            return self._text
        arguments = decode()
        self.amounts(arguments)  # refuse an impossible cost now, before a worker finds it
        return render_needs(self.needs(arguments, tenant))

    def needs(self, arguments: Mapping[str, Any], tenant: str) -> Needs:
        values = {**arguments, "tenant": tenant}
        requests = tuple(
            PermitRequest(fill_template(use.limit.name, values), use.limit.name, use.cost) for use in self.uses
        )
        charges = tuple(Charge(fill_template(budget.name, values), budget.name) for budget in self.budgets)
        self._refuse_twins([request.name for request in requests], "limits")
        self._refuse_twins([charge.name for charge in charges], "budgets")
        return Needs(requests, charges)

    def _refuse_twins(self, names: Sequence[str], what: str) -> None:
        """Different templates may give the same name for some arguments. A request must name each limit once."""
        twins = [name for name, count in Counter(names).items() if count > 1]
        if twins:
            raise BadValue(f"job {self._kind}: {what}", f"two of them are {twins[0]!r} for these arguments; name one")

    def amounts(self, arguments: Mapping[str, Any]) -> dict[str, int]:
        """The highest cost of one call in micro-units, by budget."""
        cost = self._cost(**arguments) if callable(self._cost) else self._cost
        return {budget.name: self._amount(budget, cost) for budget in self.budgets}

    def _amount(self, budget: Budget, cost: object) -> int:
        field = f"job {self._kind}: cost"
        if isinstance(cost, Mapping):
            if budget.unit not in cost:
                raise BadValue(field, f"has no amount in {budget.unit}, the unit of budget {budget.name}")
            cost = cost[budget.unit]
        amount = parse_cost_micros(field, cost)
        refuse_impossible(field, budget.definition, amount)
        return amount


def parse_limit_uses(field: str, limits: object) -> tuple[LimitUse, ...]:
    """The `limits=` option of a job: one limit or a list of limits."""
    given = [limits] if isinstance(limits, Limit | LimitUse) else limits
    if not isinstance(given, list | tuple) or not all(isinstance(each, Limit | LimitUse) for each in given):
        raise BadValue(field, f"must be a list of limits, for example [Limit('maps', '100/minute')] (is {limits!r})")
    return tuple(each if isinstance(each, LimitUse) else LimitUse(each) for each in given)


def declared_limits(kinds: Iterable["HasRequirements"]) -> list[LimitDefinition]:
    """The limits of these kinds, each once."""
    return list({use.limit.name: use.limit.definition for kind in kinds for use in kind.requirements.uses}.values())


def declared_budgets(kinds: Iterable["HasRequirements"]) -> list[BudgetDefinition]:
    return list({budget.name: budget.definition for kind in kinds for budget in kind.requirements.budgets}.values())


class HasRequirements(Protocol):
    requirements: Requirements


NO_REQUIREMENTS = Requirements("", (), (), None)
