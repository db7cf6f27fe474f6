"""exchange ─► admit ─► [run handler: call the provider] ─► settle: the limits and budgets of one call.

They are those of its job, unless `ctx.call(limits=…, budget=…, cost=…)` names others for this call.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from msgspec.structs import replace

from leaseway.domain.budgets.budget import IMPOSSIBLE, PAUSED, Budget, BudgetDefinition, Charge, HoldDenied, OverPolicy
from leaseway.domain.budgets.holds import RAISED_US
from leaseway.domain.errors import UsageError
from leaseway.domain.job import Lease
from leaseway.domain.limits.limit import LimitDefinition, PermitRequest
from leaseway.domain.limits.rate_limit_headers import Throttled
from leaseway.domain.outcome import Deferred, Fail
from leaseway.domain.requirements import (
    NO_FIELDS,
    BudgetOption,
    LimitsOption,
    Needs,
    Requirements,
    parse_budgets,
    parse_limit_uses,
)
from leaseway.worker.calls.key_pool import FIELD, RETRY_SECONDS, KeyUse
from leaseway.worker.permit_queue import PermitRequests


class CallNeeds(NamedTuple):
    limits: PermitRequests
    lines: tuple[tuple[Charge, int], ...]
    """The highest cost of the call, by budget."""
    units: Mapping[str, str]
    """Of the budgets, by their name."""
    failing: frozenset[str]
    """Budgets that fail a job that does not fit, instead of letting it wait."""
    has_job_limits: bool = True
    """The limits are those of the job, so that the permit that admitted it serves its first call."""
    has_job_lines: bool = True
    """The charges are those of the job, so that holds of earlier deliveries can be taken over."""
    new_limits: tuple[LimitDefinition, ...] = ()
    new_budgets: tuple[BudgetDefinition, ...] = ()
    """To be declared before the call, because no job may have declared them."""
    learning: frozenset[str] = frozenset()
    """Definitions of limits whose estimates are learnt."""
    stated: PermitRequests = ()
    """The limits with the highest use of the call, if `limits` have learnt estimates."""
    key: KeyUse | None = None

    def key_refused(self) -> Throttled:
        """What gives the job back, so that its next attempt takes another key."""
        assert self.key is not None
        return Throttled(
            f"key pool {self.key.pool.name}: the provider refused key {self.key.label}", retry_after=RETRY_SECONDS
        )

    @property
    def learnt(self) -> PermitRequests:
        """The stated limits whose estimates are learnt."""
        return tuple(each for each in self.stated if each.limit in self.learning)

    @property
    def is_of_job(self) -> bool:
        return self.has_job_limits and self.has_job_lines

    def own(self, requests: PermitRequests) -> PermitRequests:
        """Those of these limits, without the limit of the tenant."""
        if requests == self.limits:
            return requests
        return tuple(each for each in requests if each in self.limits)

    @property
    def is_metered(self) -> bool:
        return bool(self.limits or self.lines)

    @property
    def budgets(self) -> list[str]:
        return [charge.name for charge, _ in self.lines]


def with_estimates(needs: CallNeeds, estimate: Callable[[PermitRequest], int]) -> CallNeeds:
    """The needs of one call, with what calls like it are known to use."""
    if not needs.learning:
        return needs
    stated = needs.stated or needs.limits
    if not any(each.limit in needs.learning for each in stated):
        return needs
    limits = tuple(replace(each, cost=estimate(each)) if each.limit in needs.learning else each for each in stated)
    return needs._replace(limits=limits, stated=stated)


class CallOptions(NamedTuple):
    """What `ctx.call()` says about one call. None: as its job says."""

    limits: LimitsOption | None = None
    budget: BudgetOption | None = None
    cost: object = None
    key: KeyUse | None = None
    """Of a pool; its limits take the place of the job's."""

    def __bool__(self) -> bool:
        return any(each is not None for each in self)


UNMETERED = CallNeeds((), (), {}, frozenset())


def job_needs(requirements: Requirements, arguments: Mapping[str, Any], lease: Lease) -> CallNeeds:
    """The needs of a call that has no options of its own."""
    if not lease.needs and not requirements:
        return UNMETERED
    if requirements.are_always(lease.needs):
        return kind_needs(requirements, lease.needs)
    return make_needs(requirements, requirements.needs_at_run(lease.needs, arguments, lease.tenant), arguments)


@lru_cache(maxsize=1_000)
def kind_needs(requirements: Requirements, stored_text: str) -> CallNeeds:
    """The same for every job of the kind, because no name and no cost depends on arguments or tenant."""
    return make_needs(requirements, requirements.needs_at_run(stored_text, {}, ""), {})


def make_needs(requirements: Requirements, needs: Needs, arguments: Mapping[str, Any]) -> CallNeeds:
    amounts = requirements.amounts(arguments) if needs.budgets else {}
    lines = tuple((charge, charge_amount(charge, amounts)) for charge in needs.budgets)
    own = CallNeeds(needs.limits, lines, *describe_budgets(lines, requirements.budgets))
    return own._replace(learning=learning_limits(requirements))


def learning_limits(requirements: Requirements) -> frozenset[str]:
    return frozenset(use.limit.name for use in requirements.uses if use.learns)


def call_needs(
    own: CallNeeds, requirements: Requirements, arguments: Mapping[str, Any], tenant: str, options: CallOptions
) -> CallNeeds:
    """The needs of a call with options. What they do not name stays as the job has it."""
    if not options:
        return own
    fields = NO_FIELDS
    if options.key is not None:
        fields, own = {FIELD: options.key.label}, own._replace(key=options.key)
        options = options._replace(limits=options.key.pool.limits)
    call = call_requirements(requirements, options)
    needs = call.needs(arguments, tenant, weighs=True, fields=fields)
    if options.limits is not None:
        definitions = tuple(use.limit.definition for use in call.uses)
        own = own._replace(limits=needs.limits, has_job_limits=False, new_limits=definitions)
        own = own._replace(learning=learning_limits(call))
    if options.budget is None and options.cost is None:
        return own
    amounts = call.amounts(arguments)
    lines = tuple((charge, amounts[charge.budget]) for charge in needs.budgets)
    units, failing = describe_budgets(lines, call.budgets)
    definitions_ = tuple(budget.definition for budget in call.budgets)
    return own._replace(lines=lines, units=units, failing=failing, has_job_lines=False, new_budgets=definitions_)


def call_requirements(requirements: Requirements, options: CallOptions) -> Requirements:
    """The requirements of a job whose calls would all have these options."""
    kind = f"{requirements.kind}: ctx.call"
    uses = requirements.uses if options.limits is None else parse_limit_uses("ctx.call: limits", options.limits)
    budgets = requirements.budgets if options.budget is None else parse_budgets("ctx.call: budget", options.budget)
    cost = options.cost if options.cost is not None or not budgets else requirements.cost
    return Requirements(kind, uses, budgets, cost, defaults=requirements.defaults)


def describe_budgets(
    lines: Sequence[tuple[Charge, int]], budgets: Sequence[Budget]
) -> tuple[dict[str, str], frozenset[str]]:
    """The unit of each charge, and the charges that fail their job."""
    units = {budget.name: budget.unit for budget in budgets}
    fails = {budget.name for budget in budgets if budget.definition.over is OverPolicy.FAIL}
    failing = frozenset(charge.name for charge, _ in lines if charge.budget in fails)
    return {charge.name: units.get(charge.budget, "") for charge, _ in lines}, failing


def charge_amount(charge: Charge, amounts: Mapping[str, int]) -> int:
    if charge.budget not in amounts:
        # A cost of 0 would let the job spend without limit.
        raise UsageError(f"the job was submitted with budget {charge.name}, which its code no longer declares")
    return amounts[charge.budget]


def denial(denied: HoldDenied, needs: CallNeeds) -> Exception:
    """Defer the job until a window begins or the budget may have been raised; or fail it, if the budget says so."""
    text = f"budget {denied.budget}: {denied.why}"
    fails = denied.budget in needs.failing and denied.why != PAUSED
    if denied.why == IMPOSSIBLE or fails:
        return Fail(text, code="over_budget")
    return Deferred(text, run_at=denied.until, delay_us=RAISED_US if denied.until is None else 0)
