"""leaseway jobs retry|cancel|discard|prune"""

import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import NamedTuple

import click

from leaseway.cli.job_selection import JobSelection, filter_by_ids
from leaseway.cli.open_store import change, unknown
from leaseway.cli.output.json import document
from leaseway.cli.output.text import Counter, counted, say
from leaseway.cli.settings import CliSettings
from leaseway.domain.errors import UsageError
from leaseway.domain.ids import JobId
from leaseway.domain.inspection import CancelResult, JobFilter
from leaseway.domain.validators import parse_duration_us
from leaseway.ports.store import Store

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
DISCARD = JobCommand("discard", "discarded", "only finished jobs can be discarded; cancel it first")


class ChangeResult(NamedTuple):
    changed: int
    refused: dict[str, str]


def retry_jobs(settings: CliSettings, which: JobSelection, yes: bool) -> int:
    return change_jobs(settings, which, RETRY, yes, lambda store: store.operations.retry)


def discard_jobs(settings: CliSettings, which: JobSelection, yes: bool) -> int:
    return change_jobs(settings, which, DISCARD, yes, lambda store: store.operations.discard)


def change_jobs(
    settings: CliSettings, which: JobSelection, verb: JobCommand, yes: bool, act_of: Callable[[Store], Act]
) -> int:
    if not which.ids and not yes:
        confirm(settings, verb, which)

    async def command(store: Store) -> ChangeResult:
        if which.ids:
            return await change_named(store, act_of(store), which.ids, verb)
        return ChangeResult(await change_all(store, act_of(store), which.filter, verb), {})

    answer = change(settings, command)
    show_answer(settings, answer, verb)
    return REFUSED if answer.refused else 0


def confirm(settings: CliSettings, verb: JobCommand, which: JobSelection) -> None:
    if settings.json or not sys.stdin.isatty():
        raise UsageError(f"this would {verb.name} {which.in_words}; not a terminal; pass --yes")
    click.confirm(f"{verb.name.capitalize()} {which.in_words}?", abort=True, err=True)


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
        document({verb.past: answer.changed, "refused": refused})
        return
    for reason in answer.refused.values():
        click.echo(reason, err=True)
    say(f"{verb.past} {counted(answer.changed, 'job')}")


def cancel_jobs(settings: CliSettings, ids: Sequence[str]) -> int:
    async def command(store: Store) -> dict[str, CancelResult]:
        return {id_: await store.operations.cancel(JobId(id_)) for id_ in ids}

    answers = change(settings, command)
    if settings.json:
        document({"jobs": [{"id": id_, "answer": answer.value} for id_, answer in answers.items()]})
    for id_, answer in answers.items() if not settings.json else ():
        if answer is CancelResult.UNKNOWN:
            click.echo(unknown(id_), err=True)
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
        document({"pruned": pruned})
    else:
        say(f"pruned {counted(pruned, 'job')}")
