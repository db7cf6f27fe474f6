"""exchange ─► admit ─► [run handler: call the provider] ─► settle: what one call holds while it is in flight, and what
a handler says that it used: `call.settle(usd=0.004, tokens=1_200)`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple

from leaseway.domain.budgets.budget import parse_cost_micros
from leaseway.domain.errors import BadValue, UsageError
from leaseway.domain.limits.limit import COUNT_MAX
from leaseway.domain.limits.rate_limit_headers import NO_REPLY, NOTHING_REPORTED, RateLimitStatus
from leaseway.worker.calls.call_needs import CallNeeds
from leaseway.worker.permit_queue import Permit

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


class CallGrant:
    """What one call holds while it is in flight: its permit and its hold."""

    __slots__ = (
        "_may_send", "actuals", "hold", "is_closed", "is_free", "is_key_refused", "is_reported", "is_sent",
        "is_settled", "needs", "number", "permit", "seconds", "until", "used",
    )  # fmt: skip

    def __init__(self, may_send: Callable[[Permit], bool], needs: CallNeeds, permit: Permit, hold: str | None) -> None:
        self.until = float("-inf")
        """When the call ends at the latest, on the worker's clock."""
        self._may_send = may_send
        self.needs = needs
        self.permit = permit
        self.hold = hold
        self.is_sent = False
        self.is_closed = False
        self.is_free = False
        """Nothing was sent, or the provider has throttled the call. It costs nothing, unless the handler says
        otherwise."""
        self.is_reported = False
        """The limiter was told how the call has ended."""
        self.is_key_refused = False
        """The key of a pool with which the call was made is not valid."""
        self.is_settled = False
        self.actuals: Mapping[str, int] = {}
        """What the call cost, by budget, if the handler says so."""
        self.used: Mapping[str, int] | None = None
        """What the call used of limits that are settled, by name, if the handler says so."""
        self.seconds = 0.0
        """How long the call may take."""
        self.number = 0
        """Of the call, in its attempt."""

    def take_number(self) -> int:
        """The number of the call, once."""
        number, self.number = self.number, 0
        return number

    def settle(self, settled: Settled) -> None:
        self.is_settled, self.actuals, self.used = True, settled.costs, settled.used

    def refuse_closed(self, verb: str) -> None:
        if self.is_closed:
            raise UsageError(f"call.{verb}: the call has ended; use it inside `with ctx.call()`")

    def refuse_settled(self) -> None:
        self.refuse_closed("settle")
        if self.is_settled:
            raise UsageError("call.settle: the call is settled already; settle it once, with all units together")

    def status_at_end(self, error: BaseException | None, *, is_out_of_time: bool) -> RateLimitStatus | None:
        """What the end of a call of another client than `ctx.http` says about its provider, unless the handler has
        reported it. Other errors may be those of the handler."""
        if self.is_reported or self.is_sent or not self.permit.granted.circuits:
            return None
        if is_out_of_time or isinstance(error, TimeoutError | ConnectionError):
            return NO_REPLY
        return NOTHING_REPORTED if error is None else None

    def is_valid(self) -> bool:
        """Whether the request may still be sent: its permit is valid, and the job's lease is not lost."""
        return self._may_send(self.permit)


CURRENT_CALL: ContextVar[CallGrant | None] = ContextVar("leaseway_call", default=None)
"""The block of `ctx.call()` that surrounds what runs now. Calls to two providers may be in flight at once."""


def enclosing_call(open_grants: Sequence[CallGrant]) -> CallGrant | None:
    """The call that a request belongs to. A thread that the handler starts by itself does not know its block, which
    matters only if the call has limits or budgets of its own."""
    current = CURRENT_CALL.get()
    if current in open_grants:
        return current
    return next((each for each in reversed(open_grants) if not each.is_sent and each.needs.is_of_job), None)


# -- what a handler says that a call used ------------------------------------------------------------------------------


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
