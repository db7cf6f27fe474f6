"""What a handler says that a call used: `call.settle(usd=0.004, tokens=1_200)`. Pure."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from leaseway.domain.budgets.budget import parse_cost_micros
from leaseway.domain.errors import BadValue
from leaseway.domain.limits.limit import COUNT_MAX

TOKENS, PARTS = "tokens", ("input_tokens", "output_tokens")
REPORTED = frozenset({TOKENS, *PARTS, "usd"})


class ReportedUse(dict[str, Any]):
    """What a reply reports, and not the handler: tokens and dollars that no limit or budget of the call counts are left
    out."""


class Settled(NamedTuple):
    costs: dict[str, int]
    """In micro-units, by the name of the budget."""
    used: dict[str, int]
    """By the name of the limit."""


def settle_amounts(amounts: Mapping[str, Any], budgets: Mapping[str, str], limits: Mapping[str, str]) -> Settled:
    """`budgets` and `limits`: the units, by name. A unit that is not given is charged as estimated."""
    known = {*budgets.values(), *limits.values()}
    given = dict(amounts)
    if isinstance(amounts, ReportedUse):
        given = {unit: amount for unit, amount in given.items() if unit in known or unit not in REPORTED}
    if TOKENS in known and TOKENS not in given and any(part in given for part in PARTS):
        given[TOKENS] = sum_of_parts(given)
    for unit, amount in given.items():
        if unit not in known and not (unit in PARTS and TOKENS in known):
            expected = ", ".join(sorted(known)) or "none"
            raise BadValue(unit, f"is not a unit of this job's budgets and limits; their units: {expected}")
        if amount is None:
            raise BadValue(
                unit, "is missing in the reply; leave it out, and the call is charged what was estimated for it"
            )
    return Settled(
        {name: parse_cost_micros(unit, given[unit]) for name, unit in budgets.items() if unit in given},
        {name: parse_use(unit, given[unit]) for name, unit in limits.items() if unit in given},
    )


def sum_of_parts(given: Mapping[str, Any]) -> int:
    missing = [part for part in PARTS if given.get(part) is None]
    if missing:
        raise BadValue(missing[0], "is missing; give both input_tokens and output_tokens, or their sum as tokens")
    return sum(parse_use(part, given[part]) for part in PARTS)


def parse_use(field: str, amount: object) -> int:
    """A whole number, rounded up."""
    is_number = isinstance(amount, int | float) and not isinstance(amount, bool)
    if not is_number or not math.isfinite(float(amount)) or not 0 <= float(amount) <= COUNT_MAX:  # type: ignore[arg-type]
        raise BadValue(field, f"must be a number between 0 and {COUNT_MAX:,} (is {amount!r})")
    return math.ceil(amount)  # type: ignore[call-overload, no-any-return]
