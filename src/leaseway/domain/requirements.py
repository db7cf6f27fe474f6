"""The limits and budgets that jobs need before they start.

`Requirements` belong to a kind, as `@app.job(limits=…, budgets=…, cost=…)` declares them. For one job with its
arguments they become `Needs`, which are a part of its lane: jobs with the same needs wait together.
"""

import inspect
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from leaseway.domain.budgets.budget import Budget, Charge, parse_cost_micros, refuse_impossible
from leaseway.domain.errors import BadValue
from leaseway.domain.limits.limit import Limit, LimitUse, PermitRequest
from leaseway.domain.limits.templates import fill_template, template_fields

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
    try:
        return _decode_needs(text) if text else NO_NEEDS
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise BadValue("needs", f"must be what a job of this kind needs, as JSON ({error})") from error


_decode_needs = msgspec.json.Decoder(Needs).decode
UNREADABLE = PermitRequest("needs that cannot be read", "needs that cannot be read")
"""No limit can have this name, because it is never declared: a lane with such needs stays closed."""


def readable_needs(text: str) -> Needs:
    """The needs of a stored lane, which every worker and every list reads. Needs that cannot be decoded never open, and
    do not affect the other lanes."""
    try:
        return parse_needs(text)
    except BadValue:
        return Needs((UNREADABLE,))


def quoted_name(name: str) -> str:
    """How needs as text name a limit or a budget. Stores find the lanes of a definition by it."""
    return msgspec.json.encode(name).decode()


TENANT = "tenant"
"""A field of names that every job has."""
NO_FIELDS: Mapping[str, str] = {}
HOLD_CALL, HOLD_JOB = "call", "job"
"""What one hold pays for."""
LimitsOption = Limit | LimitUse | Sequence[Limit | LimitUse]
BudgetOption = Budget | Sequence[Budget]
NO_DEFAULTS: Mapping[str, Any] = {}


class Requirements:
    """The limits, budgets and cost of a kind."""

    def __init__(
        self,
        kind: str,
        uses: tuple[LimitUse, ...],
        budgets: tuple[Budget, ...],
        cost: object,
        hold: str = HOLD_CALL,
        defaults: Mapping[str, Any] = NO_DEFAULTS,
    ) -> None:
        self.uses = uses
        self.defaults = defaults
        """Of the job's arguments: names and costs may depend on an argument that a submission does not give."""
        self.budgets = budgets
        self.holds_per_job = hold == HOLD_JOB
        """`cost` is that of the whole job, held from its first call to its end."""
        if hold not in (HOLD_CALL, HOLD_JOB):
            raise BadValue(f"job {kind}: hold", f"must be {HOLD_CALL!r} or {HOLD_JOB!r} (is {hold!r})")
        if self.holds_per_job and not budgets:
            raise BadValue(f"job {kind}: hold", "is given without a budget; add budget=…")
        self.cost = cost
        self.kind = kind
        names = [use.limit.name for use in uses] + [budget.name for budget in budgets]
        twins = [name for name, count in Counter(names).items() if count > 1]
        if twins:
            raise BadValue(f"job {kind}: limits and budgets", f"name {twins[0]!r} twice")
        if budgets and cost is None:
            raise BadValue(f"job {kind}: cost", "is required with a budget: give the highest cost of one call")
        if cost is not None and not budgets:
            raise BadValue(f"job {kind}: cost", "is given without a budget; add budgets=[…]")
        self._cost_functions: list[Callable[..., Any]] = [each for each in amounts_in(cost) if callable(each)]
        self.is_same_for_all = not self._cost_functions and not any(template_fields(name) for name in names)
        self._has_estimates = any(use.estimate is not None for use in uses)
        for use in uses:
            if use.limit.definition.is_metered and use.estimate is None and use.cost == 1:
                unit, name = use.limit.definition.unit, use.limit.name
                raise BadValue(
                    f"job {kind}: limits",
                    f"{name} counts {unit}; say how many a call takes: {name}.cost(4_000), or "
                    f"{name}.cost(lambda text: …) with a function of the job's arguments",
                )
        if self.is_same_for_all:
            self._text = render_needs(self.needs({}, ""))
            self.amounts({})

    def __bool__(self) -> bool:
        return bool(self.uses or self.budgets)

    def with_definitions(self, kind: str, uses: tuple[LimitUse, ...], budgets: tuple[Budget, ...]) -> "Requirements":
        """The same costs under other definitions of the same limits and budgets."""
        return Requirements(
            kind, uses, budgets, self.cost, HOLD_JOB if self.holds_per_job else HOLD_CALL, self.defaults
        )

    def check_arguments(self, arguments: Sequence[str]) -> None:
        """Refuse fields and functions that do not fit the arguments of the job, when the job is declared."""
        templates = [f"limit {use.limit.name}" for use in self.uses]
        templates += [f"budget {budget.name}" for budget in self.budgets]
        known = ", ".join(arguments) or "none"
        for template in templates:
            for field in template_fields(template):
                if field not in (*arguments, TENANT):
                    problem = f"has the field {field}, and the job has no such argument; its arguments: {known}"
                    raise BadValue(f"job {self.kind}: {template}", problem)
        for function in self._cost_functions:
            check_parameters(f"job {self.kind}: cost", function, arguments)
        for use in self.uses:
            if use.estimate is not None:
                check_parameters(f"job {self.kind}: limits: {use.limit.name}.cost", use.estimate, arguments)

    def text(self, decode: Callable[[], Mapping[str, Any]], tenant: str) -> str:
        """The needs of one job as text. The arguments are decoded only if a name or a cost depends on them."""
        if self.is_same_for_all and not self._has_estimates:
            return self._text
        arguments = decode()
        self.amounts(arguments)  # refuse an impossible cost now, before a worker finds it
        for use in self.uses:
            self._weight(use, arguments)
        return render_needs(self.needs(arguments, tenant))

    def needs(
        self, arguments: Mapping[str, Any], tenant: str, *, weighs: bool = False, fields: Mapping[str, str] = NO_FIELDS
    ) -> Needs:
        """`weighs`: with the weight of this job. Lanes are without, so that jobs of different weight share them.
        `fields`: of names of limits, besides the arguments."""
        values = {**self.defaults, **arguments, TENANT: tenant, **fields}
        requests = tuple(
            PermitRequest(
                fill_template(use.limit.name, values),
                use.limit.name,
                self._weight(use, arguments) if weighs else use.cost,
            )
            for use in self.uses
        )
        charges = tuple(Charge(fill_template(budget.name, values), budget.name) for budget in self.budgets)
        self._refuse_twins([request.name for request in requests], "limits")
        self._refuse_twins([charge.name for charge in charges], "budgets")
        return Needs(requests, charges)

    def needs_at_run(self, stored_text: str, arguments: Mapping[str, Any], tenant: str) -> Needs:
        """What a job needs when it runs: what its code declares now, and what else it was submitted with. A submitter
        that does not know the kind, or lies about it, does not get past its limits."""
        stored = parse_needs(stored_text)
        if not self or self.are_always(stored_text):
            return stored
        declared = self.needs(arguments, tenant, weighs=True)
        limits = {request.limit for request in declared.limits}
        budgets = {charge.budget for charge in declared.budgets}
        return Needs(
            declared.limits + tuple(request for request in stored.limits if request.limit not in limits),
            declared.budgets + tuple(charge for charge in stored.budgets if charge.budget not in budgets),
        )

    def are_always(self, stored_text: str) -> bool:
        """Whether each job of the kind that was stored with this text has the same needs and costs."""
        return self.is_same_for_all and not self._has_estimates and stored_text == self._text

    def _refuse_twins(self, names: Sequence[str], what: str) -> None:
        """Different templates may give the same name for some arguments. A request must name each limit once."""
        twins = [name for name, count in Counter(names).items() if count > 1]
        if twins:
            raise BadValue(f"job {self.kind}: {what}", f"two of them are {twins[0]!r} for these arguments; name one")

    def amounts(self, arguments: Mapping[str, Any]) -> dict[str, int]:
        """The highest cost of one call in micro-units, by budget."""
        cost: Any = self.cost
        if isinstance(cost, Mapping):
            cost = {unit: self._cost(amount, arguments) for unit, amount in cost.items()}
        cost = self._cost(cost, arguments)
        return {budget.name: self._amount(budget, cost) for budget in self.budgets}

    def _cost(self, cost: object, arguments: Mapping[str, Any]) -> object:
        return self._call(f"job {self.kind}: cost", cost, arguments) if callable(cost) else cost

    def _call(self, field: str, function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
        try:
            return function(**{**self.defaults, **arguments})
        except Exception as error:
            problem = f"the function failed for these arguments: {type(error).__name__}: {error}"
            raise BadValue(field, problem) from error

    def _weight(self, use: LimitUse, arguments: Mapping[str, Any]) -> int:
        if use.estimate is None:
            return use.cost
        field, definition = f"job {self.kind}: limits: {use.limit.name}.cost", use.limit.definition
        weight: Any = self._call(field, use.estimate, arguments)
        is_number = isinstance(weight, int | float) and not isinstance(weight, bool)
        if not is_number or not 1 <= weight <= definition.cost_max:  # NaN is not between them
            raise BadValue(
                field,
                f"must return a number between 1 and cost_max, which is {definition.cost_max:,} (returned {weight!r}); "
                "split the work into smaller calls, or raise cost_max",
            )
        rounded: int = math.ceil(weight)
        return rounded

    def _amount(self, budget: Budget, cost: object) -> int:
        field = f"job {self.kind}: cost"
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


def parse_budgets(field: str, budget: object) -> tuple[Budget, ...]:
    """The `budget=` option of a job or a call: one budget or a list of budgets."""
    given = (budget,) if isinstance(budget, Budget) else budget
    if not isinstance(given, list | tuple) or not all(isinstance(each, Budget) for each in given):
        raise BadValue(
            field, f"must be a Budget or a list of them, for example Budget('maps-spend', usd=25) (is {budget!r})"
        )
    return tuple(given)


def amounts_in(cost: object) -> Iterable[Any]:
    return cost.values() if isinstance(cost, Mapping) else (cost,)


def check_parameters(field: str, function: Callable[..., Any], arguments: Sequence[str]) -> None:
    """Whether the function can be called with these arguments by name."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some built-in functions do not know theirs
        return
    try:
        signature.bind(**dict.fromkeys(arguments))
    except TypeError as error:
        known = ", ".join(arguments) or "none"
        raise BadValue(
            field, f"the function must take the job's arguments by name ({known}): {error}; **_ takes those without use"
        ) from error


NO_REQUIREMENTS = Requirements("", (), (), None)
