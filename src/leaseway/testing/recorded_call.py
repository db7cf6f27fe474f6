"""What a context for tests remembers of one call to the provider."""

from collections.abc import Mapping
from typing import Any

from leaseway.domain.errors import UsageError
from leaseway.domain.http import HttpRequest
from leaseway.domain.requirements import Requirements
from leaseway.worker.calls.grant import settle_amounts

MICROS = 1_000_000


class RecordedCall:
    """One call to the provider: a request of `ctx.http`, or a block of `ctx.call()`."""

    def __init__(self, estimate: Mapping[str, float], deadline_seconds: float) -> None:
        self.request: HttpRequest | None = None
        """The request, if it was made with `ctx.http`."""
        self.status: int | None = None
        """The status of the reply, or the one given to `call.report`."""
        self.estimate = estimate
        """The highest cost, by unit, as the job declares it."""
        self.settled: dict[str, float] | None = None
        """What the job said that the call cost, by unit. None: it did not say."""
        self.used: dict[str, int] = {}
        """What the job said that the call used of limits that are settled, by unit."""
        self.deadline_seconds = deadline_seconds
        self.is_sent = True
        """False: the connection failed, so the call costs nothing."""
        self.is_refused = False
        """The provider throttled the call, so it costs nothing unless the job settles it."""
        self.number = 0

    def settle(self, amounts: Mapping[str, Any], known: Requirements | None) -> None:
        """`known`: the limits and budgets of the call. None: every unit is accepted as a cost."""
        if self.settled is not None:
            raise UsageError("call.settle: the call is settled already; settle it once, with all units together")
        budgets = list(amounts) if known is None else [budget.unit for budget in known.budgets]
        definitions = [] if known is None else [use.limit.definition for use in known.uses]
        limits = [each.unit for each in definitions if each.is_metered]
        settled = settle_amounts(amounts, {unit: unit for unit in budgets}, {unit: unit for unit in limits})
        self.settled = {unit: micros / MICROS for unit, micros in settled.costs.items()}
        self.used = settled.used

    @property
    def cost(self) -> dict[str, float]:
        """What is charged, by unit: what was settled, and the estimate for everything else."""
        if not self.is_sent or (self.is_refused and self.settled is None):
            return {}
        return {**self.estimate, **(self.settled or {})}

    def __repr__(self) -> str:
        what = "ctx.call()" if self.request is None else f"{self.request.method} {self.request.url}"
        return f"<{what}: status {self.status}, cost {self.cost}>"
