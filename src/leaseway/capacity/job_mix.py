"""The jobs of an app with modelled handlers: each sends its requests to the modelled provider.

The functions of the app do not run, so a simulation has no effects. Limits, budgets, costs, attempts and timeouts are
those that the app declares.
"""

import asyncio
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from itertools import cycle, repeat
from random import Random
from typing import Any

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from leaseway.capacity.provider_model import SECONDS_MAX, URL, ProviderModel, check_number
from leaseway.domain.budgets.budget import Budget, parse_amount_micros
from leaseway.domain.errors import BadValue, UnknownKind
from leaseway.domain.ids import SECOND_US
from leaseway.domain.kind import JobOptions, Kind
from leaseway.domain.limits.limit import Limit, LimitUse, Rate, check_limit, parse_rate
from leaseway.domain.requirements import Requirements
from leaseway.domain.validators import check_int
from leaseway.worker.context import Context
from leaseway.worker.submit import Bound

JOBS_MAX = 200_000
RUN_SECONDS_MAX = 86_400.0 * 50
CALLS_MAX = 10_000
SCALED = re.compile(r"(\d+(?:\.\d+)?)x")
RateText = str | list[str] | tuple[str, ...]
OnStart = Callable[[Context], None]


class JobLoad(Struct, frozen=True, kw_only=True):
    """Jobs of one kind.

    `calls`: requests that a job sends, one after the other; None: one, if the kind has limits or budgets, otherwise
    none. `seconds`: how long a job takes beside its requests. `arguments`: of every job; required if a limit's name or
    a cost depends on them. `tenant`: the tenant of the jobs.

    Of a recorded load: `arrivals` are pairs of a second and the jobs that arrive within `arrival_step_seconds`;
    `run_seconds` are durations, each with the number of jobs that take so long, in place of `seconds`.
    """

    count: int
    calls: int | None = None
    seconds: float = 0.0
    arguments: Mapping[str, Any] = field(default_factory=dict)
    tenant: str | None = None
    arrivals: Sequence[tuple[float, int]] = ()
    arrival_step_seconds: float = 60.0
    run_seconds: Mapping[float, int] = field(default_factory=dict)

    def delays(self, over_seconds: float) -> list[float]:
        """After how many seconds each job arrives."""
        if not self.arrivals:
            return [over_seconds * number / self.count for number in range(self.count)]
        step = self.arrival_step_seconds
        return [at + step * number / count for at, count in self.arrivals for number in range(count)]

    def durations(self) -> Iterator[float]:
        """How long each job takes beside its requests, in an order that mixes short and long ones."""
        if not self.run_seconds:
            return repeat(self.seconds)
        found = [seconds for seconds, count in self.run_seconds.items() for _ in range(count)]
        Random(len(found)).shuffle(found)
        return cycle(found)


def check_load(name: str, load: object) -> JobLoad:
    given = load if isinstance(load, JobLoad) else JobLoad(count=load)  # type: ignore[arg-type]
    check_int(f"jobs: {name}", given.count, 1, JOBS_MAX)
    if given.calls is not None:
        check_int(f"jobs: {name}: calls", given.calls, 0, CALLS_MAX)
    check_number(f"jobs: {name}: seconds", given.seconds, SECONDS_MAX)
    for seconds, count in given.run_seconds.items():
        check_number(f"jobs: {name}: run_seconds", seconds, RUN_SECONDS_MAX)
        check_int(f"jobs: {name}: run_seconds", count, 1, JOBS_MAX)
    if given.arrivals and sum(count for _, count in given.arrivals) != given.count:
        raise BadValue(f"jobs: {name}: arrivals", f"must contain as many jobs as count ({given.count:,})")
    for at, _ in given.arrivals:
        check_number(f"jobs: {name}: arrivals", at, RUN_SECONDS_MAX)
    return given


class ModelledKind(Kind):
    """A kind whose handler sends requests to the modelled provider."""

    def __init__(self, kind: Kind, requirements: Requirements, load: JobLoad, costs: Mapping[str, float]) -> None:
        super().__init__(kind.name, no_work, kind.defaults, requirements)
        self._load, self._is_metered, self._durations = load, bool(requirements), load.durations()
        self.url = f"{URL}{kind.name}"
        units = {budget.unit for budget in requirements.budgets}
        self._costs = {unit: cost for unit, cost in costs.items() if unit in units}
        self.on_start: OnStart = lambda ctx: None
        self.on_end: Callable[[], None] = lambda: None
        self.function = self._run

    def decode(self, text: str) -> dict[str, Any]:
        arguments: dict[str, Any] = msgspec.json.decode(text)
        return arguments

    async def _run(self, ctx: Context, **arguments: Any) -> None:
        self.on_start(ctx)
        if seconds := next(self._durations):
            await asyncio.sleep(seconds)
        calls = int(self._is_metered) if self._load.calls is None else self._load.calls
        for _ in range(calls):
            await self._call(ctx)
        self.on_end()

    async def _call(self, ctx: Context) -> None:
        if not self._costs:
            (await ctx.http.get(self.url)).raise_for_status()
            return
        async with ctx.call() as call:
            reply = await ctx.http.get(self.url)
            call.settle(**self._costs)
        reply.raise_for_status()


async def no_work(ctx: Context) -> None: ...


# -- what if ----------------------------------------------------------------------------------------------------------


class WhatIf(Struct, frozen=True, kw_only=True):
    """What is different from the declarations of the app: "what if the limit doubled?" """

    limits: Mapping[str, RateText] = field(default_factory=dict)
    """By limit: its rates, or a factor such as "2x"."""
    budgets: Mapping[str, float | str] = field(default_factory=dict)
    """By budget: its amount, or a factor such as "2x"."""


def check_changes(changes: WhatIf, limits: set[str], budgets: set[str]) -> None:
    for what, given, known in (("limits", changes.limits, limits), ("budgets", changes.budgets, budgets)):
        for name in given:
            if name not in known:
                names = ", ".join(sorted(known)) or "none"
                raise BadValue(f"{what}: {name}", f"is not declared by what is simulated; declared are: {names}")


def change_limit(limit: Limit, rates: RateText | None) -> Limit:
    if rates is None:
        return limit
    texts = [rates] if isinstance(rates, str) else list(rates)
    field_ = f"limits: {limit.name}"
    if len(texts) == 1 and (factor := SCALED.fullmatch(texts[0])) is not None:
        changed = tuple(scale_rate(rate, float(factor[1])) for rate in limit.definition.rates)
    else:
        changed = tuple(sorted(parse_rate(field_, text) for text in texts))
    copied = copy(limit)
    copied.definition = check_limit(replace(limit.definition, rates=changed))
    return copied


def scale_rate(rate: Rate, factor: float) -> Rate:
    return replace(rate, count=max(round(rate.count * factor), 1))


def change_budget(budget: Budget, amount: float | str | None) -> Budget:
    if amount is None:
        return budget
    factor = SCALED.fullmatch(amount) if isinstance(amount, str) else None
    micros = (
        parse_amount_micros(f"budgets: {budget.name}", amount)
        if factor is None
        else round(budget.definition.limit_micros * float(factor[1]))
    )
    copied = copy(budget)
    copied.definition = replace(budget.definition, limit_micros=micros)
    return copied


def revise(kind: Kind, changes: WhatIf) -> Requirements:
    """The requirements of a kind, with the changes."""
    found = kind.requirements
    uses = tuple(LimitUse(change_limit(use.limit, changes.limits.get(use.limit.name)), use.cost) for use in found.uses)
    return found.with_definitions(
        kind.name, uses, tuple(change_budget(each, changes.budgets.get(each.name)) for each in found.budgets)
    )


# -- binding ----------------------------------------------------------------------------------------------------------


class JobMix:
    """The kinds of a mix, and its jobs."""

    def __init__(
        self, kinds: Mapping[str, Kind], loads: Mapping[str, Any], provider: ProviderModel, changes: WhatIf
    ) -> None:
        if not loads:
            raise BadValue("jobs", f"name at least one kind; there are: {', '.join(sorted(kinds)) or 'none'}")
        self._kinds = {name: find_kind(kinds, name) for name in loads}
        self._loads = {name: check_load(name, load) for name, load in loads.items()}
        check_int("jobs", sum(load.count for load in self._loads.values()), 1, JOBS_MAX)
        found = [kind.requirements for kind in self._kinds.values()]
        limits = {use.limit.name for each in found for use in each.uses}
        check_changes(changes, limits, {budget.name for each in found for budget in each.budgets})
        self._costs, self._changes = provider.costs, changes
        refuse_unknown_units(provider.costs, found)

    @property
    def what(self) -> str:
        return ", ".join(f"{load.count:,} {name}" for name, load in self._loads.items())

    def kinds(self) -> dict[str, ModelledKind]:
        return {
            name: ModelledKind(kind, revise(kind, self._changes), self._loads[name], self._costs)
            for name, kind in self._kinds.items()
        }

    def jobs(self, kinds: Mapping[str, ModelledKind], over_us: int) -> list[Bound]:
        """The jobs of all kinds, mixed as evenly as their counts allow."""
        spread: list[tuple[float, Bound]] = []
        for name, load in self._loads.items():
            payload = encode_arguments(self._kinds[name], load)
            for number, delay in enumerate(load.delays(over_us / SECOND_US)):
                options = JobOptions(tenant=load.tenant, delay_us=round(delay * SECOND_US))
                spread.append((number / load.count, Bound(kinds[name], payload, options)))
        return [job for _, job in sorted(spread, key=lambda each: each[0])]


def find_kind(kinds: Mapping[str, Kind], name: str) -> Kind:
    if name not in kinds:
        raise UnknownKind(f"there is no job named {name!r}; this app has: {', '.join(sorted(kinds)) or 'none yet'}")
    return kinds[name]


def encode_arguments(kind: Kind, load: JobLoad) -> str:
    if load.arguments:
        return kind.encode(load.arguments)
    if kind.requirements.is_same_for_all:
        return "{}"
    try:
        return kind.encode({})
    except BadValue as error:
        problem = f"a limit, a budget or the cost depends on the arguments; give them ({error})"
        raise BadValue(f"jobs: {kind.name}: arguments", problem) from None


def refuse_unknown_units(costs: Mapping[str, float], found: list[Requirements]) -> None:
    units = {budget.unit for each in found for budget in each.budgets}
    for unit in costs:
        if unit not in units:
            known = ", ".join(sorted(units)) or "none"
            raise BadValue(f"provider: costs: {unit}", f"no budget of these jobs has this unit; their units: {known}")
