"""Invariants, checked at every commit against the recorded promises and against the database file.

Each oracle receives the promises as they were before the commit and yields violations. The numbers are those of the
list of invariants.
"""

from collections import Counter
from collections.abc import Callable, Iterator

from leaseway.domain.inspection import CancelResult
from leaseway.domain.job import Settlement, State
from leaseway.simulation.promises import (
    CANCELLED,
    DONE,
    FAILED,
    LEASED,
    READY,
    SCHEDULED,
    Commit,
    Promises,
    StoredJob,
    StoredRows,
)

Oracle = Callable[[Promises, Commit], Iterator[str]]

# -- every commit ---------------------------------------------------------------------------------------------------


def nothing_vanishes(books: Promises, commit: Commit) -> Iterator[str]:
    """I3: a stored job stays stored until it is discarded."""
    if len(commit.after) < len(commit.before):
        for job in commit.before.keys() - commit.after.keys():
            yield f"I3 job {job} vanished"


def one_job_per_submission(books: Promises, commit: Commit) -> Iterator[str]:
    """I3, I5, I26: a submission, an idempotency key or a fire time becomes one job, however often it is sent."""
    for job in commit.changed:
        if job in commit.before:
            continue
        label = books.label_of(commit, job)
        first = books.labels.get(label)
        if first is not None:
            yield f"I5 {label!r} is stored twice: as {first} and as {job}"
        if label in books.conflicts:
            yield f"I5 {label!r} was refused and is stored as {job}"
        if commit.verb in ("submit", "exchange") and job not in brought_by(commit):
            yield f"I3 job {job} was stored but never submitted"


def brought_by(commit: Commit) -> set[str]:
    """The ids of the jobs that this call may have added."""
    if commit.verb == "submit":
        return {job.id for job in commit.args[0]}
    return {child.id for settlement in commit.accepted for child in settlement.children}


CHANGED_BY: dict[str, set[str]] = {
    "submit": set(),
    "fire": set(),
    "declare": set(),
    "renew": {"until"},
    "checkpoint": {"cursor"},
    "report": {"progress"},
    "cancel": {"state", "cancel_requested"},
    "retry": {"state", "attempts", "run_at", "cancel_requested", "last_token", "result"},
}


def only_what_it_may(books: Promises, commit: Commit) -> Iterator[str]:
    """A call changes only the columns that it owns, and nothing of a finished job."""
    allowed = CHANGED_BY.get(commit.verb)
    for job in commit.changed:
        before, after = commit.before.get(job), commit.after[job]
        if before is None:
            continue
        if before.is_final and commit.verb != "retry":
            yield f"I4 job {job} was {before.state} and was changed by {commit.verb}"
        if allowed is not None and (found := differences(before, after) - allowed):
            yield f"I2 {commit.verb} changed {', '.join(sorted(found))} of job {job}"


def differences(before: StoredJob, after: StoredJob) -> set[str]:
    return {name for name, old, new in zip(StoredJob._fields, before, after, strict=True) if old != new}


# -- exchange: settlements ------------------------------------------------------------------------------------------


def settlements_are_judged_rightly(books: Promises, commit: Commit) -> Iterator[str]:
    """I2, I4: the current token is accepted, an accepted settlement is accepted again, every other one is refused."""
    told = Counter(commit.exchanged.lost)
    due = Counter(settlement.id for settlement in commit.late)
    # A store remembers only the last settlement of a job, so it may not recognise an earlier one.
    forgotten = [each.id for each in commit.repeated if books.jobs[each.id].last_accepted != each.token]
    for job in (told - due - Counter(forgotten)).elements():
        yield f"I4 {commit.process.name}: a settlement of job {job} was refused though it was, or is, accepted"
    for job in (due - told).elements():
        yield f"I2 {commit.process.name}: a settlement of job {job} was accepted after its lease had ended"


def late_settlements_write_nothing(books: Promises, commit: Commit) -> Iterator[str]:
    """I2: a refused settlement changes nothing, neither its own job nor another one."""
    settled = {each.id for each in commit.accepted}
    for late in (*commit.late, *commit.repeated):
        before, after = commit.before.get(late.id), commit.after.get(late.id)
        if late.id in settled or before is None or after is None or before.token is None:
            continue
        if before.token != after.token and (before.until or 0) > commit.now:
            yield f"I2 {commit.process.name}: a late settlement ended the live lease of job {late.id}"


def outcomes_are_recorded(books: Promises, commit: Commit) -> Iterator[str]:
    """I4, I24: the settlement decides the new state; a job that is to be cancelled never becomes pending again."""
    claimed = {lease.id for lease in commit.exchanged.leases}
    for settlement in commit.accepted:
        after = commit.after[settlement.id]
        if settlement.id in claimed:
            if settlement.state.is_final:
                yield f"I4 job {settlement.id} was settled as {settlement.state} and leased again"
            continue
        wanted = state_after(settlement, is_cancelled=books.jobs[settlement.id].cancel_wanted)
        if after.state not in wanted:
            names = " or ".join(wanted)
            yield f"I24 job {after.id} is {after.state} after a settlement that makes it {names}"
        if settlement.state is State.DONE and after.result != settlement.result:
            yield f"I4 job {after.id} is done with another result than the one that was sent"


def state_after(settlement: Settlement, *, is_cancelled: bool) -> tuple[str, ...]:
    match settlement.state:
        case State.DONE:
            return (DONE,)
        case State.FAILED:
            return (FAILED,)
        case State.PENDING if not is_cancelled:
            return (READY, SCHEDULED)
    return (CANCELLED,)


def work_was_done(books: Promises, commit: Commit) -> Iterator[str]:
    """I4: a job is done once, by a handler that returned; a drained job does not lose its attempt."""
    for settlement in commit.accepted:
        book = books.jobs[settlement.id]
        fence = book.current.fence if book.current else 0
        run = book.runs.get(fence)
        if settlement.state is State.DONE and book.done:
            yield f"I4 job {book.id} was done twice"
        if run is None:
            continue
        if settlement.state is State.DONE and run.end != "done":
            yield f"I4 job {book.id} is settled as done, but its handler ended with {run.end or 'nothing'}"
        if settlement.state is State.PENDING and run.end == "drained" and not settlement.returns_attempt:
            yield f"I25 job {book.id} lost an attempt because its worker was drained"


def children_follow_their_parent(books: Promises, commit: Commit) -> Iterator[str]:
    """Child jobs exist if and only if the settlement that submits them was accepted."""
    for settlement in commit.accepted:
        for child in settlement.children:
            # A child with an idempotency key may exist already, under another id.
            if child.id not in commit.after and child.key is None:
                yield f"I3 job {settlement.id} was settled without its child {child.id}"
    for settlement in commit.late:
        for child in settlement.children:
            if child.id in commit.after:
                yield f"I2 child {child.id} exists though the settlement of {settlement.id} was refused"


# -- exchange: expired leases ---------------------------------------------------------------------------------------


def leases_are_taken_back_when_due(books: Promises, commit: Commit) -> Iterator[str]:
    """I13, I14, I24: only expired leases are taken back, into the state that follows from attempts and cancellation."""
    claimed = {lease.id for lease in commit.exchanged.leases}
    for row in commit.taken_back():
        if (row.until or 0) > commit.now:
            yield f"I13 the lease of job {row.id} was taken back {row.until} - {commit.now} us early"
        if row.cancel_requested:
            wanted = {CANCELLED}
        elif row.attempts >= row.attempts_max:
            wanted = {FAILED}
        else:
            wanted = {LEASED} if row.id in claimed else {READY}
        if commit.after[row.id].state not in wanted:
            names = " or ".join(wanted)
            yield f"I14 job {row.id} should be {names} after its lease expired, is {commit.after[row.id].state}"


def the_well_keep_their_leases(books: Promises, commit: Commit) -> Iterator[str]:
    """I18, I19, I21: a worker without faults renews, adopts and settles in time."""
    for row in commit.taken_back():
        grant = books.jobs[row.id].current
        if grant is None:
            continue
        if grant.process.was_well(grant.granted_at, commit.at):
            run = books.jobs[row.id].runs.get(grant.fence)
            state = "no handler had started" if run is None else f"its handler: {run.end or 'running'}"
            yield f"I18 job {row.id} fence {row.fence}: lease expired though {grant.process.name} was well; {state}"


# -- exchange: new leases -------------------------------------------------------------------------------------------


def one_live_lease(books: Promises, commit: Commit) -> Iterator[str]:
    """I1: a job is granted only after its last lease has ended, by settlement or by expiry."""
    ended = {each.id for each in commit.accepted}
    for lease in commit.exchanged.leases:
        grant = books.jobs[lease.id].current if lease.id in books.jobs else None
        if grant is None or lease.id in ended:
            continue
        if (grant.token, grant.fence) == (lease.token, lease.fence):
            if not commit.exchange.repeat:
                yield f"I1 job {lease.id} was handed out twice under one token"
        elif grant.until > commit.now:
            yield f"I1 job {lease.id} was leased to {commit.process.name} while {grant.process.name} held it"


def leases_are_true(books: Promises, commit: Commit) -> Iterator[str]:
    """I14, I24, I25: a granted job is counted, fenced, due, wanted, and equal to the row in the table."""
    wants = commit.exchange.wants
    for lease in commit.exchanged.leases:
        row, book = commit.after[lease.id], books.jobs.get(lease.id)
        if row.state != LEASED or row.token != lease.token or row.owner != commit.exchange.worker:
            yield f"I1 job {lease.id} was handed out, but the table does not say so"
        if (row.attempts, row.fence, row.cursor) != (lease.attempts, lease.fence, lease.cursor):
            yield f"I14 the lease of job {lease.id} differs from the table"
        if row.attempts > row.attempts_max:
            yield f"I14 job {lease.id} was delivered more often than its {row.attempts_max} attempts"
        if row.run_at > commit.now and had_to_wait(commit, row):
            yield f"I11 job {lease.id} was leased {(row.run_at - commit.now) / 1e6} s before its time"
        if book is not None and book.cancel_wanted and (book.current is None or book.current.token != lease.token):
            yield f"I24 job {lease.id} was leased again after it was cancelled"
        if wants is None or lease.token != wants.token:
            yield f"I1 job {lease.id} was leased under a token that no worker chose"


def had_to_wait(commit: Commit, row: StoredJob) -> bool:
    """A job that has become ready stays ready, even if the clock is set back."""
    before = commit.before.get(row.id)
    return before is None or before.state == SCHEDULED or any(row.id == each.id for each in commit.accepted)


# -- the other verbs ------------------------------------------------------------------------------------------------


def only_the_live_renew(books: Promises, commit: Commit) -> Iterator[str]:
    """I2: a lease that ended or expired is not extended, and its owner is told."""
    for held in commit.args[0]:
        grant = books.jobs[held.id].current
        is_live = grant is not None and grant.token == held.token and grant.until > commit.now
        if is_live and held.id in commit.answer.lost:
            yield f"I2 {commit.process.name}: the live lease of job {held.id} was not renewed"
        if not is_live and (held.id not in commit.answer.lost or held.id in commit.changed):
            yield f"I2 {commit.process.name}: a lease of job {held.id} was renewed after it had ended"


def only_the_live_checkpoint(books: Promises, commit: Commit) -> Iterator[str]:
    """I2: a cursor is stored only for the live lease, and never moves back."""
    job, token, cursor = commit.args
    book = books.jobs[job]
    is_live = book.current is not None and book.current.token == token and book.current.until > commit.now
    if is_live != commit.answer:
        yield f"I2 {commit.process.name}: a checkpoint of job {job} was answered {commit.answer}, the lease: {is_live}"
    if commit.answer and commit.after[job].cursor != cursor:
        yield f"I2 the cursor of job {job} was acknowledged and is not stored"


def only_the_live_report(books: Promises, commit: Commit) -> Iterator[str]:
    """I2: the progress of a lost lease is dropped."""
    tokens = {report.id: report.token for report in commit.args[0]}
    for job in commit.changed:
        grant = books.jobs[job].current
        if grant is None or grant.token != tokens.get(job):
            yield f"I2 {commit.process.name}: a report of job {job} was stored after its lease had ended"


def cancelling_is_true(books: Promises, commit: Commit) -> Iterator[str]:
    """I24: the answer says which came first, the cancellation or the end."""
    (job,) = commit.args
    before, after = commit.before.get(job), commit.after.get(job)
    if before is None or after is None:
        if commit.answer is not CancelResult.UNKNOWN:
            yield f"I24 an unknown job {job} was answered {commit.answer}"
        return
    if before.is_final:
        wanted, state = CancelResult.FINISHED, before.state
    elif before.state == LEASED:
        wanted, state = CancelResult.REQUESTED, LEASED
    else:
        wanted, state = CancelResult.CANCELLED, CANCELLED
    if commit.answer is not wanted or after.state != state:
        yield f"I24 cancelling job {job}, which was {before.state}: {commit.answer}, {after.state}"
    if wanted is CancelResult.REQUESTED and not after.cancel_requested:
        yield f"I24 the wish to cancel job {job} was acknowledged and forgotten"


def submissions_are_stored(books: Promises, commit: Commit) -> Iterator[str]:
    """I3: an acknowledged job is stored under the id in the answer."""
    for job, answer in zip(commit.args[0], commit.answer, strict=True):
        if answer.id not in commit.after:
            yield f"I3 job {answer.id} was acknowledged and is not stored"
        if not answer.replayed and answer.id != job.id:
            yield f"I5 job {job.id} was acknowledged under another id, {answer.id}"


def fires_are_stored(books: Promises, commit: Commit) -> Iterator[str]:
    """I26: the caller that advanced the schedule has submitted its jobs; every other caller has submitted nothing."""
    for job in commit.args[3]:
        if not commit.answer and job.id in commit.after:
            yield f"I26 a refused fire of {commit.args[0]} stored job {job.id}"


EVERY: tuple[Oracle, ...] = (nothing_vanishes, one_job_per_submission, only_what_it_may)
OF_VERB: dict[str, tuple[Oracle, ...]] = {
    "exchange": (
        settlements_are_judged_rightly,
        late_settlements_write_nothing,
        outcomes_are_recorded,
        work_was_done,
        children_follow_their_parent,
        leases_are_taken_back_when_due,
        the_well_keep_their_leases,
        one_live_lease,
        leases_are_true,
    ),
    "renew": (only_the_live_renew,),
    "checkpoint": (only_the_live_checkpoint,),
    "report": (only_the_live_report,),
    "cancel": (cancelling_is_true,),
    "submit": (submissions_are_stored,),
    "fire": (fires_are_stored,),
}


def wrongs(books: Promises, commit: Commit) -> Iterator[str]:
    """The violations of this commit. Called before the commit is recorded."""
    if commit.changed:
        for oracle in EVERY:
            yield from oracle(books, commit)
    for oracle in OF_VERB.get(commit.verb, ()):
        yield from oracle(books, commit)


# -- promises and file, after the commit is in both ------------------------------------------------------------------

EXPIRED_US_MAX = 4_000_000
"""In the calm phase, an expired lease is taken back at the next poll of any worker."""


def imbalances(books: Promises, commit: Commit, table: StoredRows) -> Iterator[str]:
    """I1, I8, I12, I14: every row and every counter follows from the history of calls."""
    for job in commit.changed:
        row, book = commit.after[job], books.jobs[job]
        token = book.current.token if book.current else None
        if row.token != token or (row.state == LEASED) != (token is not None):
            yield f"I1 job {job} is {row.state} under token {row.token}, and was granted to {token}"
        if (row.attempts, row.fence) != (book.attempts, book.claims):
            yield f"I14 job {job} counts {row.attempts} attempts, fence {row.fence}: was {book.attempts}, {book.claims}"
        if row.cursor != book.cursor:
            yield f"I2 job {job} has the cursor {row.cursor}, acknowledged was {book.cursor}"
    if commit.changed and (said := table.counters()) != (found := table.recount()):
        yield f"I8 the lanes say {said} and hold {found}"
    if books.is_settled:
        yield from overdue(commit)


def overdue(commit: Commit) -> Iterator[str]:
    """I12: no expired lease stays for long."""
    for row in commit.after.values():
        if row.until is not None and row.until < commit.now - EXPIRED_US_MAX:
            yield f"I12 the lease of job {row.id} expired {(commit.now - row.until) / 1e6} s ago and is still there"
