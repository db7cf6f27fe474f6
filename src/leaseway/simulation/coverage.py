"""Situations that a campaign must reach at least once. A campaign that never reached one has not tested it."""

from collections.abc import Iterator

from leaseway.domain.inspection import CancelResult
from leaseway.simulation.promises import CANCELLED, DONE, FAILED, Commit, Promises

CATALOGUE = (
    # Faults that must have occurred.
    "a worker crashed",
    "a worker was paused",
    "a worker was paused before the first line of a handler",
    "a worker was drained",
    "a call stalled",
    "a reply waited behind a blocked loop",
    "a request was lost",
    "a reply was lost",
    "a caller gave up and the call was executed",
    "the store was busy",
    "the store was full in the middle of a transaction",
    "every call failed for a while",
    "the clock was set forward",
    "the clock was set back",
    "a hint was lost",
    "a hint was wrong",
    # Safeguards that must have been needed.
    "a lease expired and was taken back",
    "a lapsed lease was settled before anybody took it",
    "a late settlement was refused",
    "a paused worker settled late and was refused",
    "a late settlement would have brought children",
    "a settlement was repeated",
    "an orphan claim was adopted",
    "a repeated exchange found nothing to adopt",
    "the keeper found what an unanswered claim was granted",
    "the keeper gave back an unanswered claim",
    "a renewal was refused",
    "a checkpoint was refused",
    "a handler outlived its lease",
    "a worker was granted a job that it was still running",
    "a job went on from its cursor",
    "a poisoned job ended with lease_expired",
    "a drain gave a job back",
    "a drain let a job finish",
    "a submission was repeated",
    "a key was replayed",
    "a key was refused for other arguments",
    "a pending job was cancelled",
    "a running job was cancelled",
    "a running job was done before it could be cancelled",
    "the lease of a cancelled job expired",
    "cancelling came too late",
    "a failed job was replayed",
    "cron: another worker was faster",
)


METERED = (
    "a worker crashed",
    "a worker was paused",
    "a worker was drained",
    "a lease expired and was taken back",
    # Faults of the limiter, the ledger and the provider.
    "a call of the limiter failed",
    "a call of the ledger failed",
    "the limiter was out for a while",
    "the ledger was out for a while",
    "the limiter was restarted",
    "the provider refused a call",
    "a reply of the provider was lost",
    # Limits.
    "a limit had no permit",
    "a limit was used to the last call",
    "a concurrency limit was reached",
    "permits were taken in advance",
    "unused permits were returned",
    "a permit had expired before its call",
    "a refusal was told to everybody",
    # The circuit breaker.
    "the provider was down",
    "a circuit breaker opened",
    "a probe closed a circuit breaker",
    # Budgets.
    "several calls shared one transaction of the ledger",
    "one hold paid for several calls",
    "a cost was booked in a later window",
    "a gate was shut because a budget is used up",
    "a later delivery used a hold that was reserved before",
    "a hold was captured",
    "a captured hold was settled late",
    "a hold was settled twice",
    "a captured hold was corrected",
    # Tenants, and waiting.
    "a tenant ran as many jobs as it may",
    "a tenant started as many jobs as it may",
    "a job waited in its lane for its limit or its budget",
    "a job that had called waited in place",
    "a handler gave up waiting in an outage",
)
"""The metered scenario's own situations, besides those that it shares with the jobs scenario."""

IMPORTS = (
    "a worker crashed",
    "a worker was paused",
    "a worker was drained",
    "a lease expired and was taken back",
    # Faults of the sink and of the source.
    "the sink was busy",
    "the sink was full in the middle of a transaction",
    "a request to the sink was lost",
    "a reply of the sink was lost",
    "a call of the sink was slow",
    "a call of the sink came late",
    "the API could not be reached",
    "the API refused a request for a while",
    "a reply ended in the middle",
    "an empty page was a lie",
    "rows were absent for a moment",
    "rows were changed while they were read",
    # Safeguards that must have been needed.
    "a page of a fenced worker was refused",
    "a fenced worker could not begin",
    "a page that was written came again",
    "a shard was resumed in the middle",
    "a shard was split",
    "a shard shared its rest with idle workers",
    "a shard was parked",
    "a parked shard was opened again",
    "a row was updated",
    "an older row did not replace a newer one",
    "a run had spent its budget",
    "a run has failed by a refused key",
    "a run was resumed more than once",
    "a second run was incremental",
    "a second run was full",
    "a row that is gone was deleted",
    "guard: ceiling",
    "guard: empty_page",
    "guard: filter_ignored",
    "guard: heavy_page",
    "guard: order_violated",
    "guard: source_error",
    "guard: wrong_body",
)
"""The imports scenario's situations."""

SCALED = ("an autoscaler started a worker", "an autoscaler drained a worker", "an autoscaler crashed")
"""The scaled scenario's own situations, besides those that it shares with the jobs scenario."""

CATALOGUES = {"jobs": CATALOGUE, "metered": METERED, "imports": IMPORTS, "scaled": SCALED}


def note(books: Promises, commit: Commit) -> None:
    """The situations that a commit reaches. Called before the commit is recorded."""
    finder = FINDERS.get(commit.verb)
    if finder is not None:
        for what in finder(books, commit):
            books.reach(what)


def of_exchange(books: Promises, commit: Commit) -> Iterator[str]:
    yield from of_settlements(books, commit)
    yield from of_expiry(commit)
    yield from of_unanswered(commit)
    adopted = [
        lease
        for lease in commit.exchanged.leases
        if (book := books.jobs.get(lease.id)) and book.current and book.current.fence == lease.fence
    ]
    for lease in commit.exchanged.leases:
        runs = books.jobs[lease.id].runs.values() if lease.id in books.jobs else ()
        if any(run.process is commit.process and not run.end for run in runs):
            yield "a worker was granted a job that it was still running"
    if adopted:
        yield "an orphan claim was adopted"
    elif commit.exchange.repeat and commit.exchange.wants is not None:
        yield "a repeated exchange found nothing to adopt"


def of_unanswered(commit: Commit) -> Iterator[str]:
    """A claim whose reply the worker has not received yet."""
    claim = None if commit.process.worker is None else commit.process.worker._slots.claim
    if claim is None:
        return
    if any(each.token == claim.wants.token for each in commit.accepted):
        yield "the keeper gave back an unanswered claim"
    if commit.exchanged.leases and commit.exchange.wants == claim.granted():
        yield "the keeper found what an unanswered claim was granted"


def of_settlements(books: Promises, commit: Commit) -> Iterator[str]:
    if commit.repeated:
        yield "a settlement was repeated"
    if commit.late:
        yield "a late settlement was refused"
        if commit.process.was_paused:
            yield "a paused worker settled late and was refused"
        if any(settlement.children for settlement in commit.late):
            yield "a late settlement would have brought children"
    for settlement in commit.accepted:
        before, after = commit.before[settlement.id], commit.after[settlement.id]
        if (before.until or 0) <= commit.now:
            yield "a lapsed lease was settled before anybody took it"
        if before.cancel_requested and after.state == CANCELLED:
            yield "a running job was cancelled"
        if before.cancel_requested and after.state == DONE:
            yield "a running job was done before it could be cancelled"
        if commit.process.draining_at is not None:
            yield "a drain gave a job back" if settlement.returns_attempt else "a drain let a job finish"


def of_expiry(commit: Commit) -> Iterator[str]:
    for row in commit.taken_back():
        yield "a lease expired and was taken back"
        after = commit.after[row.id]
        if after.state == CANCELLED:
            yield "the lease of a cancelled job expired"
        if after.state == FAILED and row.kind == "poison":
            yield "a poisoned job ended with lease_expired"


def of_renewal(books: Promises, commit: Commit) -> Iterator[str]:
    if commit.answer.lost:
        yield "a renewal was refused"


def of_checkpoint(books: Promises, commit: Commit) -> Iterator[str]:
    if not commit.answer:
        yield "a checkpoint was refused"


def of_submission(books: Promises, commit: Commit) -> Iterator[str]:
    if all(job.id in commit.before for job in commit.args[0]):
        yield "a submission was repeated"
    if any(answer.replayed for answer in commit.answer):
        yield "a key was replayed"


def of_cancelling(books: Promises, commit: Commit) -> Iterator[str]:
    if commit.answer is CancelResult.CANCELLED:
        yield "a pending job was cancelled"
    if commit.answer is CancelResult.FINISHED:
        yield "cancelling came too late"


def of_replay(books: Promises, commit: Commit) -> Iterator[str]:
    if any(commit.before[job].state == FAILED for job in commit.answer):
        yield "a failed job was replayed"


def of_fire(books: Promises, commit: Commit) -> Iterator[str]:
    if not commit.answer:
        yield "cron: another worker was faster"


FINDERS = {
    "exchange": of_exchange,
    "renew": of_renewal,
    "checkpoint": of_checkpoint,
    "submit": of_submission,
    "cancel": of_cancelling,
    "retry": of_replay,
    "fire": of_fire,
}
