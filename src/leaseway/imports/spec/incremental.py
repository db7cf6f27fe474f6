"""Whether what a spec says about changes and deletes can work. Each problem says the way out."""

from collections.abc import Iterator

from leaseway.imports.spec.model import DeleteSettings, Resource, Spec

Problem = tuple[str, str]


def check_incremental(resource: Resource) -> Iterator[Problem]:
    if (incremental := resource.incremental) is None:
        return
    place = "resource.incremental"
    filter_ = resource.filters.get(incremental.filter)
    if filter_ is None or filter_.lower is None:
        yield f"{place}.filter", f"needs [resource.filters.{incremental.filter}] with lower"
    if resource.stamp is None:
        yield "resource.stamp", "is needed by resource.incremental"
    elif incremental.overlap_us < (least_us := resource.stamp.granularity_us + resource.stamp.lag_us):
        least = f"lag + granularity, {least_us / 1_000_000:g} s"
        yield f"{place}.overlap", f"must be at least {least}, or changes are lost (is {incremental.overlap!r})"
    if getattr(resource.partition, "end", None) is not None:
        yield "resource.partition.end", "is an end to all changes, and resource.incremental asks for new ones; leave it"


def check_deletes(spec: Spec) -> Iterator[Problem]:
    if (deletes := spec.resource.deletes) is None:
        return
    if deletes.flag is None and deletes.sweep is None:
        yield "resource.deletes", "says nothing; give flag (a feed of deleted records) or sweep (what was not seen)"
    if spec.source.file is not None:
        yield from check_file_deletes(deletes, spec.resource)
    elif spec.source.kind == "ocm":
        yield from check_client_deletes(deletes)
    else:
        yield from check_json_deletes(deletes, spec.resource)


def check_file_deletes(deletes: DeleteSettings, resource: Resource) -> Iterator[Problem]:
    if deletes.flag is not None:
        yield "resource.deletes.flag", "is for a base_url; with a file, use sweep: what is not in it is gone"
    if deletes.sweep is not None and deletes.sweep.confirm is not None:
        yield "resource.deletes.sweep.confirm", "is for a base_url; a file cannot be asked for single records"
    if deletes.sweep is not None and resource.on_bad_row.policy == "skip":
        why = "with resource.deletes.sweep, a record that is skipped would count as gone"
        yield "resource.on_bad_row.policy", f"must not be 'skip': {why}; use quarantine"


def check_client_deletes(deletes: DeleteSettings) -> Iterator[Problem]:
    if deletes.flag is not None and deletes.flag.params:
        yield "resource.deletes.flag.params", "come with kind = 'ocm'; write flag = { params = {} }"
    if deletes.sweep is not None and deletes.sweep.confirm is not None:
        yield "resource.deletes.sweep.confirm", "comes with kind = 'ocm'; leave it out"


def check_json_deletes(deletes: DeleteSettings, resource: Resource) -> Iterator[Problem]:
    if deletes.flag is not None and not deletes.flag.params:
        yield "resource.deletes.flag.params", "is empty: without a parameter, every record would count as deleted"
    sweep = deletes.sweep
    if sweep is not None and sweep.confirm is None and resource.on_bad_row.policy == "skip":
        why = "a record that is skipped would count as gone"
        yield "resource.deletes.sweep.confirm", f"is needed with on_bad_row.policy = 'skip': {why}; or use quarantine"
