"""[plan] ─► shard jobs ─► page ─► rows and cursor in one transaction

The plan of a run, before the first page: full or incremental, the shards, and a forecast of rows, requests, time and
cost.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, NamedTuple

from leaseway.domain.errors import BadValue, TerminalError, TransientError, UsageError
from leaseway.domain.http import HttpError
from leaseway.domain.ids import Instant
from leaseway.domain.limits.limit import Limit, size_limit
from leaseway.domain.limits.rate_limit_headers import RateLimitStatus
from leaseway.imports.domain.boxes import UncoveredArea, parse_box, prove_cover
from leaseway.imports.domain.partition import (
    Predicate,
    Shard,
    check_plan,
    country_shards,
    cross_shards,
    grid_shards,
    id_range_shards,
    make_shard,
    window_shards,
)
from leaseway.imports.domain.run_state import RunMode, RunRow, RunState
from leaseway.imports.domain.splitting import predicate_label
from leaseway.imports.domain.timestamps import duration_us, parse_stamp
from leaseway.imports.run.assembly import ImportParts
from leaseway.imports.run.watermark import RunHistory, RunScope, StampGrain, choose_scope, open_window
from leaseway.imports.sinks.port import Sink
from leaseway.imports.sources.port import SourceCapabilities, SourceProbe, SourceRefused
from leaseway.imports.sources.predicates import asked_box, to_box
from leaseway.imports.spec.model import Boxes, Country, Filter, IdRange, RunBudget, Spec, Windows
from leaseway.ports.provider_requests import Delivery, RequestGrant
from leaseway.system import SystemChance, SystemClock, wall_clock_us
from leaseway.wiring import http_transport
from leaseway.worker.provider_http import Http, HttpEnvironment

RUNS_LOOKED_AT_MAX = 100
AREA = "resource.partition.area"
ID_MAX = 2**63 - 1


class Plan(NamedTuple):
    shards: list[Shard]
    rows: int | None
    requests: int | None
    """A lower bound: one request per page, and two to confirm the end of each shard."""
    seconds: float | None
    mode: RunMode = RunMode.FULL
    since: Instant | None = None
    watermark: Instant | None = None
    why_mode: str = ""
    id_max: int | None = None


async def load_history(sink: Sink, source: str, spec_hash: str) -> RunHistory:
    """The previous runs that a new run can build on. The sink is open."""
    complete = await sink.runs.find_all(source, RUNS_LOOKED_AT_MAX, state=RunState.COMPLETE)
    full = await sink.runs.find_all(source, RUNS_LOOKED_AT_MAX, state=RunState.COMPLETE, mode=RunMode.FULL)
    marked = [run for run in complete if run.watermark is not None]
    return RunHistory(
        base=next((run for run in marked if run.spec_hash == spec_hash), None),
        last_full=next((run for run in full if run.spec_hash == spec_hash), None),
        known=next(iter(marked), None),
    )


def build_plan(
    spec: Spec,
    caps: SourceCapabilities,
    probe: SourceProbe,
    limit: Limit | None,
    page_limit: int,
    *,
    base: RunRow | None = None,
    last_full: RunRow | None = None,
    known: RunRow | None = None,
    wanted: RunMode | None = None,
    now: Instant | None = None,
) -> Plan:
    """`base`, `last_full` and `known` as returned by `load_history`. `now` is used if the source does not report its
    time.
    """
    time = probe.server_time if probe.server_time is not None else now
    grain = StampGrain(caps.granularity_us, caps.lag_us)
    course = choose_scope(spec.resource.incremental, grain, RunHistory(base, last_full, known), wanted, time)
    shards = [*plan_shards(spec, probe, course, time), *plan_delete_feed(spec, course)]
    check_lower_bound(spec, caps, course)
    check_plan(shards, caps)
    check_cover(spec, shards)
    rows = estimate_rows(shards, probe) if course.mode is RunMode.FULL else None
    requests = None if rows is None else -(-rows // page_limit) + 2 * len(shards)
    return Plan(
        shards=shards,
        rows=rows,
        requests=requests,
        seconds=estimate_seconds(requests, limit),
        mode=course.mode,
        since=course.since,
        watermark=course.watermark,
        why_mode=course.why,
        id_max=probe.id_max,
    )


def estimate_rows(shards: Sequence[Shard], probe: SourceProbe) -> int | None:
    if probe.rows is not None or any(shard.estimated_rows is None for shard in shards):
        return probe.rows
    return sum(shard.estimated_rows or 0 for shard in shards)


# -- shards -----------------------------------------------------------------------------------------------------------


def plan_shards(spec: Spec, probe: SourceProbe, course: RunScope, now: Instant | None) -> list[Shard]:
    """Changes are few: they are divided by geography if the partition is, and are one shard otherwise."""
    if course.since is None or spec.resource.incremental is None:
        return plan_full_shards(spec, probe, now)
    name, window = spec.source.name, {spec.resource.incremental.filter: open_window(course.since)}
    changes = make_shard(name, predicate_label(window), window)
    places = plan_geographic_shards(spec, probe)
    return [changes] if places is None else cross_shards(name, places, [changes])


def plan_full_shards(spec: Spec, probe: SourceProbe, now: Instant | None) -> list[Shard]:
    name, partition = spec.source.name, spec.resource.partition
    if (places := plan_geographic_shards(spec, probe)) is not None:
        then = getattr(partition, "then", None)
        return (
            places
            if then is None
            else cross_shards(name, places, plan_window_shards(spec, then, "resource.partition.then", now))
        )
    match partition:
        case IdRange(size=size_, lower=lower, upper=upper):
            most = upper if isinstance(upper, int) else probe.id_max
            if most is None:
                raise BadValue("resource.partition.upper", "is required: the source does not report its largest id")
            if most > ID_MAX:
                raise BadValue("resource.partition.upper", f"must be a 64-bit integer (is {str(most)[:40]})")
            return id_range_shards(name, lower, most + 1, size_)
        case Windows():
            return plan_window_shards(spec, partition, "resource.partition", now)
        case _:
            return [make_shard(name, "all", {}, probe.rows)]


def plan_geographic_shards(spec: Spec, probe: SourceProbe) -> list[Shard] | None:
    """One shard per country or box. None if the source is not divided by geography."""
    name = spec.source.name
    match spec.resource.partition:
        case Country(group_below=group_below):
            values = probe.values.get("country", [])
            if not values:
                raise BadValue("resource.filters.country", "has no countries; set values or values_from")
            known = spec.resource.filters.get("country")
            rows = {**probe.counts.get("country", {}), **(known.rows if known is not None else {})}
            return country_shards(name, values, rows, group_below)
        case Boxes(area=area, degrees=degrees):
            return grid_shards(name, area, degrees)
        case _:
            return None


def plan_window_shards(spec: Spec, partition: Windows, place: str, now: Instant | None) -> list[Shard]:
    start, end = (None if text is None else parse_stamp(text) for text in (partition.start, partition.end))
    if start is None:
        raise BadValue(f"{place}.start", f"must be an instant such as '2026-04-01T00:00Z' (is {partition.start!r})")
    grain_us = 1 if spec.resource.stamp is None else spec.resource.stamp.granularity_us
    return window_shards(spec.source.name, start, end, duration_us(f"{place}.step", partition.step), grain_us, now)


def plan_delete_feed(spec: Spec, course: RunScope) -> list[Shard]:
    """The shard of records that the source reports as deleted.

    A full run reads it as well, from the last watermark on: it sets a new watermark, so no later run would read the
    deletions before it. The first run reads none, because no row is stored yet.
    """
    deletes, incremental = spec.resource.deletes, spec.resource.incremental
    if deletes is None or deletes.flag is None:
        return []
    window: Predicate = {}
    if incremental is not None:
        if course.deleted_since is None:
            return []
        window = {incremental.filter: open_window(course.deleted_since)}
    predicate = {"deleted": True, **window}
    return [make_shard(spec.source.name, predicate_label(predicate), predicate)]


# -- checks and estimates ---------------------------------------------------------------------------------------------


def check_cover(spec: Spec, shards: Sequence[Shard]) -> None:
    """Refuse a plan whose boxes leave out a part of the area, or read one twice."""
    partition, filter_ = spec.resource.partition, spec.resource.filters.get("box", Filter())
    if not isinstance(partition, Boxes):
        return
    counts = Counter(to_box(shard.predicate["box"]) for shard in shards if "box" in shard.predicate)
    if len(set(counts.values())) > 1:
        raise UncoveredArea("some boxes have fewer windows than others")
    area, is_edge_included = parse_box(AREA, partition.area), filter_.is_geodesic or filter_.includes_world_edges
    prove_cover(area, list(counts), partial(asked_box, filter_), is_edge_included=is_edge_included)


def check_lower_bound(spec: Spec, caps: SourceCapabilities, course: RunScope) -> None:
    incremental = spec.resource.incremental
    if incremental is None or course.since is None:
        return
    if not caps.bounds.get(incremental.filter, (True, True))[0]:
        raise BadValue(
            f"resource.filters.{incremental.filter}.lower",
            "is required by resource.incremental: without it, changes since an instant cannot be requested",
        )


def estimate_seconds(requests: int | None, limit: Limit | None) -> float | None:
    """At the rate of the slowest window."""
    if requests is None or limit is None or not limit.definition.rates:
        return None
    return max(requests * window.permit_ns / 1e9 for window in size_limit(limit.definition).windows)


CONFIRMATIONS = 2
"""Requests that confirm the end of each shard."""


class Forecast(NamedTuple):
    by_shard: list[int | None]
    """Rows per shard, in the order of the plan."""
    rows: int | None
    requests: int | None
    seconds: float | None
    cost: float | None
    is_most: bool
    """True if `rows` is an upper bound, because not every id exists. False if it is an estimate."""
    requests_max: int | None

    @property
    def is_over(self) -> bool:
        return self.requests is not None and self.requests_max is not None and self.requests > self.requests_max


def make_forecast(
    plan: Plan, limit: Limit | None, page_limit: int, budget: RunBudget | None, requests_max: int | None = None
) -> Forecast:
    """`requests_max` overrides the budget of the spec."""
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
    """The number of ids in a shard."""
    low, high = shard.predicate.get("id", (None, None))
    if high is None and id_max is not None:
        high = id_max + 1
    return max(high - low, 0) if isinstance(low, int) and isinstance(high, int) else None


def distribute_rows(plan: Plan, spans: list[int | None]) -> list[int | None]:
    """The total distributed by ids, if no better estimate is known."""
    known = [shard.estimated_rows for shard in plan.shards]
    whole = sum(span or 0 for span in spans)
    if plan.rows is None or not whole or None in spans or any(rows is not None for rows in known):
        return known
    return [round(plan.rows * (span or 0) / whole) for span in spans]


def estimate_requests(by_shard: list[int | None], rows: int | None, page_limit: int) -> int | None:
    """One request per page, plus the confirmations."""
    if rows is None:
        return None
    each = [count for count in by_shard if count is not None]
    pages = sum(-(-count // page_limit) for count in each) if len(each) == len(by_shard) else -(-rows // page_limit)
    return pages + CONFIRMATIONS * len(by_shard)


class UnlimitedRequests:
    async def before(self, seconds: float) -> RequestGrant:
        return AlwaysGranted()

    async def after(self, grant: RequestGrant, status: RateLimitStatus | None, delivery: Delivery) -> None:
        """Nothing to record."""

    def settle(self, grant: RequestGrant, amounts: Mapping[str, Any]) -> None:
        """Nothing to record."""

    async def wait_in_place(self, why: str, seconds: float, *, by_limit: bool) -> bool:
        return False


class AlwaysGranted:
    def is_valid(self) -> bool:
        return True


NO_HISTORY = RunHistory()


class SourceUnavailable(TransientError):
    """The source cannot be probed now."""


async def make_plan(parts: ImportParts, mode: RunMode | None = None, probe_seconds_max: float | None = None) -> Plan:
    """Plan the next run from the runs in the sink, which is open, and from what the source reports about itself."""
    history = await load_history(parts.sink, parts.spec.source.name, parts.task.spec_hash)
    try:
        async with asyncio.timeout(probe_seconds_max):
            return await plan_with_history(parts, history, mode)
    except TimeoutError as error:
        raise SourceUnavailable(
            f"source {parts.spec.source.name}: did not answer within {probe_seconds_max:g} s; try again"
        ) from error
    except SourceUnavailable:
        raise
    except TransientError as error:
        raise SourceUnavailable(parts.task.redactor(str(error))) from error


async def plan_with_history(
    parts: ImportParts, history: RunHistory = NO_HISTORY, wanted: RunMode | None = None
) -> Plan:
    """Without a history, the plan is a full run."""
    return build_plan(
        parts.spec,
        parts.source.caps,
        await probe_source(parts),
        parts.source.limit,
        parts.source.page_limit,
        base=history.base,
        last_full=history.last_full,
        known=history.known,
        wanted=wanted,
        now=wall_clock_us(),
    )


async def probe_source(parts: ImportParts) -> SourceProbe:
    async with plan_client(parts) as http:
        return await parts.source.probe(http)


@asynccontextmanager
async def plan_client(parts: ImportParts) -> AsyncIterator[Http]:
    """The few requests of a plan are not limited or counted."""
    transport = http_transport()
    try:
        yield Http(HttpEnvironment(transport, SystemClock(), SystemChance()), UnlimitedRequests(), lambda step: step)
    except (SourceRefused, TerminalError) as error:
        raise UsageError(parts.task.redactor(str(error))) from error
    except (HttpError, OSError) as error:
        raise unreachable(parts, error) from error
    finally:
        await transport.close()


def unreachable(parts: ImportParts, error: Exception) -> SourceUnavailable:
    address = parts.spec.source.base_url or parts.spec.source.file
    problem = parts.task.redactor(f"{address} cannot be reached: {error}")
    return SourceUnavailable(f"source {parts.spec.source.name}: {problem}")
