"""[plan] ─► shard jobs ─► page ─► upsert + cursor in one transaction

What will be asked for, before anything is: the shards, and how many requests and how long they will take at the least.
"""

from typing import NamedTuple

from leaseway.domain.buckets import size
from leaseway.domain.errors import BadValue
from leaseway.domain.imports.durations import duration_us
from leaseway.domain.imports.partition import check_plan, countries, id_ranges, instant_in, windows
from leaseway.domain.imports.shard import Shard, shard_of
from leaseway.domain.imports.spec_parts import Country, IdRange, Spec, Windows
from leaseway.domain.limits import Limit
from leaseway.ports.source import Caps, Probe


class Plan(NamedTuple):
    shards: list[Shard]
    rows: int | None
    requests: int | None
    """At least: one for each page, and two to confirm the end of each shard."""
    seconds: float | None


def planned(spec: Spec, caps: Caps, probe: Probe, limit: Limit | None, page_limit: int) -> Plan:
    shards = shards_of(spec, probe)
    check_plan(shards, caps)
    rows = probe.rows
    if rows is None and all(shard.estimated_rows is not None for shard in shards):
        rows = sum(shard.estimated_rows or 0 for shard in shards)
    requests = None if rows is None else -(-rows // page_limit) + 2 * len(shards)
    return Plan(shards, rows, requests, seconds_of(requests, limit))


def shards_of(spec: Spec, probe: Probe) -> list[Shard]:
    name = spec.source.name
    match spec.resource.partition:
        case IdRange(size=size_, lower=lower, upper=upper):
            most = upper if isinstance(upper, int) else probe.id_max
            if most is None:
                raise BadValue("resource.partition.upper", "is needed: the source does not say what its largest id is")
            return id_ranges(name, lower, most + 1, size_)
        case Country(group_below=group_below):
            values = probe.values.get("country", [])
            if not values:
                raise BadValue("resource.filters.country", "names no countries; give values or values_from")
            return countries(name, values, {}, group_below)
        case Windows(start=start, step=step, end=end):
            return windows(
                name,
                instant_in(start),
                None if end is None else instant_in(end),
                duration_us("resource.partition.step", step),
            )
        case _:
            return [shard_of(name, "all", {}, probe.rows)]


def seconds_of(requests: int | None, limit: Limit | None) -> float | None:
    """At the pace of the slowest window."""
    if requests is None or limit is None or not limit.definition.rates:
        return None
    return max(requests * window.token_ns / 1e9 for window in size(limit.definition).windows)
