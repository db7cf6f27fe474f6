"""leaseway jobs retry|run-now|cancel|discard|prune, for jobs that are selected by ids or by filters"""

import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import NamedTuple

from leaseway.cli.open_store import change, ledger_in, unknown
from leaseway.cli.options import CliSettings, Filters
from leaseway.cli.output.console import Counter, complain, confirm, counted, print_json, say
from leaseway.domain.errors import UsageError
from leaseway.domain.ids import JobId
from leaseway.domain.inspection import CancelResult, JobFilter
from leaseway.domain.job import State
from leaseway.domain.validators import parse_duration_us
from leaseway.ports.store import Store
from leaseway.worker.definitions import cancel_job


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


STEP = 500
"""Jobs per transaction; other writers get their turn between two transactions."""
REFUSED = 2

Act = Callable[[JobFilter, int], Awaitable[list[JobId]]]

CANCELLED_IN_WORDS = {
    CancelResult.CANCELLED: "cancelled",
    CancelResult.REQUESTED: "the worker is told to stop",
    CancelResult.FINISHED: "had already finished",
}


class JobCommand(NamedTuple):
    name: str
    past: str
    refusal: str
    """Why a job that exists was not changed."""


RETRY = JobCommand("retry", "retried", "only failed or cancelled jobs can be retried")
RUN_NOW = JobCommand("run", "brought forward", "only pending jobs that wait for their time can be brought forward")
DISCARD = JobCommand("discard", "discarded", "only finished jobs can be discarded; cancel it first")


class ChangeResult(NamedTuple):
    changed: int
    refused: dict[str, str]


def retry_jobs(settings: CliSettings, which: JobSelection, yes: bool) -> int:
    return change_jobs(settings, which, RETRY, yes, lambda store: store.operations.retry)


def run_jobs_now(settings: CliSettings, ids: tuple[str, ...]) -> int:
    which = JobSelection(tuple(dict.fromkeys(ids)), JobFilter(), "")
    return change_jobs(settings, which, RUN_NOW, True, lambda store: store.operations.run_now)


def discard_jobs(settings: CliSettings, which: JobSelection, yes: bool) -> int:
    return change_jobs(settings, which, DISCARD, yes, lambda store: store.operations.discard)


def change_jobs(
    settings: CliSettings, which: JobSelection, verb: JobCommand, yes: bool, act_of: Callable[[Store], Act]
) -> int:
    if not which.ids and not yes:
        confirm_bulk(settings, verb, which)

    async def command(store: Store) -> ChangeResult:
        if which.ids:
            return await change_named(store, act_of(store), which.ids, verb)
        return ChangeResult(await change_all(store, act_of(store), which.filter, verb), {})

    answer = change(settings, command)
    show_answer(settings, answer, verb)
    return REFUSED if answer.refused else 0


def confirm_bulk(settings: CliSettings, verb: JobCommand, which: JobSelection) -> None:
    if settings.json or not sys.stdin.isatty():
        raise UsageError(f"this would {verb.name} {which.in_words}; not a terminal; pass --yes")
    confirm(f"{verb.name.capitalize()} {which.in_words}?")


async def change_named(store: Store, act: Act, ids: tuple[str, ...], verb: JobCommand) -> ChangeResult:
    changed: set[str] = set()
    for start in range(0, len(ids), STEP):
        changed.update(await act(filter_by_ids(ids[start : start + STEP]), STEP))
    left = [id_ for id_ in ids if id_ not in changed]
    return ChangeResult(len(changed), {id_: await refusal_reason(store, id_, verb) for id_ in left})


async def refusal_reason(store: Store, id_: str, verb: JobCommand) -> str:
    job = await store.reads.job(JobId(id_))
    return unknown(id_) if job is None else f"job {id_} is {job.state}; {verb.refusal}"


async def change_all(store: Store, act: Act, which: JobFilter, verb: JobCommand) -> int:
    """Each matching job is tried once, so that one that fails again meanwhile is not retried for ever."""
    with Counter(verb.past) as counter:
        async for ids in pages(store, which):
            changed = await act(JobFilter(ids=ids, states=which.states, error_code=which.error_code), STEP)
            counter.add(len(changed))
    return counter.count


async def pages(store: Store, which: JobFilter) -> AsyncIterator[tuple[JobId, ...]]:
    """The ids of the matching jobs, newest first, in batches."""
    before: JobId | None = None
    while found := await store.reads.jobs(which, before=before, limit=STEP):
        before = found[-1].id
        yield tuple(job.id for job in found)


def show_answer(settings: CliSettings, answer: ChangeResult, verb: JobCommand) -> None:
    if settings.json:
        refused = [{"id": id_, "reason": reason} for id_, reason in answer.refused.items()]
        print_json({verb.past.replace(" ", "_"): answer.changed, "refused": refused})
        return
    for reason in answer.refused.values():
        complain(reason)
    say(f"{verb.past} {counted(answer.changed, 'job')}")


def cancel_jobs(settings: CliSettings, ids: Sequence[str]) -> int:
    async def command(store: Store) -> dict[str, CancelResult]:
        ledger = ledger_in(store, settings)
        return {id_: await cancel_job(store, ledger, JobId(id_)) for id_ in ids}

    answers = change(settings, command)
    if settings.json:
        print_json({"jobs": [{"id": id_, "answer": answer.value} for id_, answer in answers.items()]})
    for id_, answer in answers.items() if not settings.json else ():
        if answer is CancelResult.UNKNOWN:
            complain(unknown(id_))
        else:
            say(f"job {id_}: {CANCELLED_IN_WORDS[answer]}")
    return REFUSED if CancelResult.UNKNOWN in answers.values() else 0


def prune_jobs(settings: CliSettings, older_than: float) -> None:
    keep_us = parse_duration_us("--older-than", older_than)

    async def command(store: Store) -> int:
        with Counter("pruned") as counter:
            while (count := await store.operations.prune(keep_us, STEP)) == STEP:
                counter.add(count)
        return counter.count + count

    pruned = change(settings, command)
    if settings.json:
        print_json({"pruned": pruned})
    else:
        say(f"pruned {counted(pruned, 'job')}")
