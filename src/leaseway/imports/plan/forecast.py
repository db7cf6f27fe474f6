"""What a plan will take: rows, requests, time and money, as far as anybody can say before it is run."""

from typing import NamedTuple

from leaseway.domain.limits.limit import Limit
from leaseway.imports.domain.run_state import RunMode
from leaseway.imports.domain.shard import Shard
from leaseway.imports.plan.plan import Plan, estimate_seconds
from leaseway.imports.spec.model import RunBudget

CONFIRMATIONS = 2
"""Of the end of each shard."""


class Forecast(NamedTuple):
    by_shard: list[int | None]
    """Rows, in the order of the plan."""
    rows: int | None
    requests: int | None
    seconds: float | None
    cost: float | None
    is_most: bool
    """There cannot be more rows: not every id is taken. False: about as many, and at least these requests."""
    requests_max: int | None

    @property
    def is_over(self) -> bool:
        return self.requests is not None and self.requests_max is not None and self.requests > self.requests_max


def make_forecast(
    plan: Plan, limit: Limit | None, page_limit: int, budget: RunBudget | None, requests_max: int | None = None
) -> Forecast:
    """`requests_max` of the command line counts instead of the spec's."""
    spans = [id_span(shard, plan.id_max) for shard in plan.shards]
    is_most = plan.rows is None and plan.mode is RunMode.FULL and None not in spans
    by_shard = spans if is_most else distribute_rows(plan, spans)
    rows = sum(count or 0 for count in by_shard) if is_most else plan.rows
    requests = estimate_requests(by_shard, rows, page_limit)
    price = None if budget is None else budget.price
    most = requests_max if requests_max is not None else None if budget is None else budget.requests_max
    cost = None if requests is None or price is None else requests * price
    return Forecast(by_shard, rows, requests, estimate_seconds(requests, limit), cost, is_most, most)


def id_span(shard: Shard, id_max: int | None) -> int | None:
    """How many ids there are in it."""
    low, high = shard.predicate.get("id", (None, None))
    if high is None and id_max is not None:
        high = id_max + 1
    return max(high - low, 0) if isinstance(low, int) and isinstance(high, int) else None


def distribute_rows(plan: Plan, spans: list[int | None]) -> list[int | None]:
    """The rows of the whole, shared out by ids where nothing better is known."""
    known = [shard.estimated_rows for shard in plan.shards]
    whole = sum(span or 0 for span in spans)
    if plan.rows is None or not whole or None in spans or any(rows is not None for rows in known):
        return known
    return [round(plan.rows * (span or 0) / whole) for span in spans]


def estimate_requests(by_shard: list[int | None], rows: int | None, page_limit: int) -> int | None:
    """A request for each page, and those that confirm the end."""
    if rows is None:
        return None
    each = [count for count in by_shard if count is not None]
    pages = sum(-(-count // page_limit) for count in each) if len(each) == len(by_shard) else -(-rows // page_limit)
    return pages + CONFIRMATIONS * len(by_shard)
