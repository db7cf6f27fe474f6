"""Job selection: by ids, or all that match filters."""

from typing import NamedTuple

from leaseway.cli.settings import Filters
from leaseway.domain.errors import UsageError
from leaseway.domain.ids import JobId
from leaseway.domain.inspection import JobFilter
from leaseway.domain.job import State


class JobSelection(NamedTuple):
    ids: tuple[str, ...]
    """Empty: every job that matches the filters."""
    filter: JobFilter
    in_words: str


def parse_filters(filters: Filters) -> JobFilter:
    states = tuple(State(state) for state in filters.states) or None
    return JobFilter(
        states=states, kind=filters.kind, queue=filters.queue, tenant=filters.tenant, error_code=filters.error
    )


def chosen(ids: tuple[str, ...], is_bulk: bool, filters: Filters, states: tuple[str, ...]) -> JobSelection:
    """`states` are used when --state is not given."""
    if ids and (is_bulk or filters != Filters()):
        raise UsageError("name ids, or give --all with filters; not both")
    if not ids and not is_bulk:
        raise UsageError("name the ids of the jobs, or give --all, with --state, --kind, --queue, --tenant or --error")
    filters = filters if filters.states or ids else filters._replace(states=states)
    return JobSelection(tuple(dict.fromkeys(ids)), parse_filters(filters), in_words(filters))


def in_words(filters: Filters) -> str:
    """all failed jobs of kind 'a', in queue 'b'"""
    conditions = {"of kind": filters.kind, "in queue": filters.queue, "of tenant": filters.tenant}
    conditions["with the last error"] = filters.error
    named = [f"{words} {value!r}" for words, value in conditions.items() if value is not None]
    return " ".join([f"all {' and '.join(filters.states)} jobs", *named])


def filter_by_ids(ids: tuple[str, ...]) -> JobFilter:
    return JobFilter(ids=tuple(map(JobId, ids)))
