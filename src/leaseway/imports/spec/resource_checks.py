"""Whether filters, partition, incremental runs and deletes of a resource fit together. Every problem names the
way out.
"""

from collections.abc import Iterator

from leaseway.domain.errors import BadValue
from leaseway.imports.domain.partition import check_grid
from leaseway.imports.domain.timestamps import parse_stamp
from leaseway.imports.spec.model import (
    Boxes,
    Country,
    DeleteSettings,
    Filter,
    IdRange,
    KeysetPaging,
    Resource,
    Spec,
    Whole,
    Windows,
)

Problem = tuple[str, str]

PLACE = "resource.partition"
OF_A_BOX = ("latitude", "longitude", "is_geodesic", "includes_world_edges")
NOT_OF_A_BOX = ("lower", "upper", "values", "values_from", "rows", "rows_from", "path")


# -- filters ----------------------------------------------------------------------------------------------------------


def check_interval(place: str, filter_: Filter) -> Iterator[Problem]:
    if filter_.param is None or filter_.lower is not None or filter_.upper is not None:
        yield f"{place}.interval", "needs param, the parameter for both bounds, and neither lower nor upper"
    if "{from}" not in str(filter_.interval) or "{to}" not in str(filter_.interval):
        yield f"{place}.interval", f"must contain {{from}} and {{to}} (is {filter_.interval!r})"


def check_filter(place: str, filter_: Filter) -> Iterator[Problem]:
    if filter_.box is not None:
        yield from check_box_filter(place, filter_)
        return
    for field in OF_A_BOX:
        if getattr(filter_, field):
            yield f"{place}.{field}", 'is for a box; set its format: box = "west,south,east,north"'
    is_range = filter_.lower is not None or filter_.upper is not None
    if filter_.interval is not None:
        yield from check_interval(place, filter_)
        return
    if filter_.param is not None and is_range:
        yield place, "needs either param (for values) or lower and upper (for a range), and not both"
    if filter_.param is None and not is_range:
        yield place, "needs param (for values), or lower or upper (for a range)"
    if is_range and (filter_.lower is None or filter_.upper is None) and filter_.path is None:
        missing = "lower" if filter_.lower is None else "upper"
        yield (
            f"{place}.path",
            f"is required: the source does not apply the {missing} end, so it is checked in each record",
        )
    if filter_.values is not None and filter_.values_from is not None:
        yield place, "needs either values or values_from, and not both"
    if is_range and (filter_.values is not None or filter_.values_from is not None or has_rows(filter_)):
        yield place, "is a range; remove values"
    yield from check_rows(place, filter_)


def check_box_filter(place: str, filter_: Filter) -> Iterator[Problem]:
    for field in NOT_OF_A_BOX:
        if getattr(filter_, field):
            yield f"{place}.{field}", "is not for a box; a box has param, box, latitude and longitude"
    if filter_.param is None:
        yield f"{place}.param", "is required: the parameter that contains all four sides"
    for field in ("latitude", "longitude"):
        if getattr(filter_, field) is None:
            yield f"{place}.{field}", "is required, because a point on an edge belongs to one box"


def has_rows(filter_: Filter) -> bool:
    return bool(filter_.rows) or filter_.rows_from is not None


def check_rows(place: str, filter_: Filter) -> Iterator[Problem]:
    if filter_.rows_from is not None and filter_.values_from is None:
        yield (
            f"{place}.rows_from",
            "needs values_from, because both lists are read in parallel; with values, write rows = { ES = 9 }",
        )
    if filter_.values is None:
        return
    known = {str(value) for value in filter_.values}
    for name in filter_.rows:
        if name not in known:
            yield f"{place}.rows", f"{name!r} is not one of the values"


# -- partitions -------------------------------------------------------------------------------------------------------


def check_partition(resource: Resource) -> Iterator[Problem]:
    match resource.partition:
        case IdRange() as partition:
            yield from check_ids(resource, partition)
        case Country() as partition:
            yield from check_countries(resource, partition)
        case Windows() as partition:
            yield from check_windows(resource, partition, PLACE)
        case Boxes() as partition:
            yield from check_boxes(resource, partition)
        case Whole():
            pass
    then = getattr(resource.partition, "then", None)
    if then is not None:
        yield from check_windows(resource, then, f"{PLACE}.then")


def check_ids(resource: Resource, partition: IdRange) -> Iterator[Problem]:
    if not isinstance(resource.page, KeysetPaging) and "id" not in resource.filters:
        yield f"{PLACE}.by", "id_range needs page.cursor = 'keyset', or [resource.filters.id] with lower and upper"
    if "id" in resource.filters and resource.filters["id"].lower is None:
        yield "resource.filters.id.lower", "is required by partition.by = 'id_range'"
    if isinstance(partition.upper, int) and partition.upper < partition.lower:
        yield f"{PLACE}.upper", f"must be at least lower, {partition.lower:,} (is {partition.upper:,})"


def check_countries(resource: Resource, partition: Country) -> Iterator[Problem]:
    country = resource.filters.get("country")
    if country is None or country.param is None:
        yield f"{PLACE}.by", "country needs [resource.filters.country] with param"
    elif country.values is None and country.values_from is None:
        yield "resource.filters.country", "needs values or values_from: an unknown country may mean the whole world"
    elif partition.group_below and not has_rows(country):
        ways = "rows, as in { AD = 40, ES = 12_000 }, or rows_from: the number of rows of each country"
        yield f"{PLACE}.group_below", f"needs resource.filters.country.{ways}"


def check_boxes(resource: Resource, partition: Boxes) -> Iterator[Problem]:
    box = resource.filters.get("box")
    if box is None or box.box is None:
        yield f"{PLACE}.by", "box needs [resource.filters.box] with param, box, latitude and longitude"
    try:
        check_grid(partition.area, partition.degrees)
    except BadValue as error:
        yield error.field, error.problem


def check_windows(resource: Resource, partition: Windows, place: str) -> Iterator[Problem]:
    window = resource.filters.get("window")
    if window is None or window.lower is None:
        yield f"{place}.by", "window needs [resource.filters.window] with lower and upper"
    elif window.upper is None:
        why = "every window would read everything after it"
        yield f"{place}.by", f"window needs resource.filters.window.upper: without it, {why}; use id_range or country"
    ends = {}
    for name, text in (("start", partition.start), ("end", partition.end)):
        if text is not None:
            ends[name] = parse_stamp(text)
            if ends[name] is None:
                yield f"{place}.{name}", f"must be an instant such as '2026-04-01T00:00Z' (is {text!r})"
    start, end = ends.get("start"), ends.get("end")
    if start is not None and end is not None and end <= start:
        yield f"{place}.end", f"must be after the start, {partition.start} (is {partition.end!r})"
    if not partition.step_us:
        yield f"{place}.step", "must be greater than zero"
    elif resource.stamp is not None and partition.step_us % max(resource.stamp.granularity_us, 1):
        why = "stamps would not tell which window a record belongs to"
        yield f"{place}.step", f"must be a multiple of stamp.granularity, {resource.stamp.granularity}: {why}"


def check_incremental(resource: Resource) -> Iterator[Problem]:
    if (incremental := resource.incremental) is None:
        return
    place = "resource.incremental"
    filter_ = resource.filters.get(incremental.filter)
    if filter_ is None or (filter_.lower is None and filter_.interval is None):
        yield f"{place}.filter", f"needs [resource.filters.{incremental.filter}] with lower"
    if resource.stamp is None:
        yield "resource.stamp", "is required by resource.incremental"
    elif incremental.overlap_us < (least_us := resource.stamp.granularity_us + resource.stamp.lag_us):
        least = f"lag + granularity, {least_us / 1_000_000:g} s"
        yield f"{place}.overlap", f"must be at least {least}, or changes are lost (is {incremental.overlap!r})"
    if getattr(resource.partition, "end", None) is not None:
        yield "resource.partition.end", "excludes later changes, which resource.incremental reads; remove it"


def check_deletes(spec: Spec) -> Iterator[Problem]:
    if (deletes := spec.resource.deletes) is None:
        return
    if deletes.flag is None and deletes.sweep is None and deletes.record is None:
        yield (
            "resource.deletes",
            "is empty; set record (a mark of deleted records), flag (a feed of them) or sweep (rows not seen)",
        )
    if spec.source.file is not None:
        yield from check_file_deletes(deletes, spec.resource)
    elif spec.source.kind == "ocm":
        yield from check_client_deletes(deletes)
    else:
        yield from check_json_deletes(deletes, spec.resource)


def check_file_deletes(deletes: DeleteSettings, resource: Resource) -> Iterator[Problem]:
    if deletes.flag is not None:
        yield "resource.deletes.flag", "is for a base_url; with a file, use sweep"
    if deletes.sweep is not None and deletes.sweep.confirm is not None:
        yield "resource.deletes.sweep.confirm", "is for a base_url; single records of a file cannot be requested"
    if deletes.sweep is not None and resource.on_bad_row.policy == "skip":
        why = "with resource.deletes.sweep, a skipped record would count as deleted"
        yield "resource.on_bad_row.policy", f"must not be 'skip': {why}; use quarantine"


def check_client_deletes(deletes: DeleteSettings) -> Iterator[Problem]:
    if deletes.flag is not None and deletes.flag.params:
        yield "resource.deletes.flag.params", "are set by kind = 'ocm'; write flag = { params = {} }"
    if deletes.sweep is not None and deletes.sweep.confirm is not None:
        yield "resource.deletes.sweep.confirm", "is set by kind = 'ocm'; remove it"


def check_json_deletes(deletes: DeleteSettings, resource: Resource) -> Iterator[Problem]:
    if deletes.flag is not None and not deletes.flag.params:
        yield "resource.deletes.flag.params", "is empty: without a parameter, every record would count as deleted"
    sweep = deletes.sweep
    if sweep is not None and sweep.confirm is None and resource.on_bad_row.policy == "skip":
        why = "a skipped record would count as deleted"
        yield "resource.deletes.sweep.confirm", f"is required with on_bad_row.policy = 'skip': {why}; or use quarantine"
