"""Explains the state of one job, and what to do about it (`jobs why`).

Every sentence follows from what the store, the limiter and the ledger know. Where several causes are possible, the text
names all of them; where something is not known, it says so.
"""

from collections.abc import Sequence
from shlex import quote

from msgspec import Struct

from leaseway.domain.budgets.budget import amount_text
from leaseway.domain.budgets.holds import Hold, last_line
from leaseway.domain.explain.closures import Closure, longest_closure
from leaseway.domain.ids import SECOND_US, Instant
from leaseway.domain.job import Job, State, waiting_reason
from leaseway.domain.lane import LaneCount
from leaseway.domain.outcome import BAD_PAYLOAD, UNKNOWN_KEY, UNKNOWN_KIND

LEASE_ENDS = "Unless renewed, the lease ends"


class Reason(Struct, frozen=True):
    """One explanation. `text` contains no points in time, because those are shown in the reader's time zone."""

    code: str
    text: str
    until: Instant | None = None
    """When the present state ends by itself; None if it does not, or if the time is not known."""
    advice: str | None = None
    then: str = "It runs"
    """What happens at that time."""


def explain(
    job: Job,
    lane: LaneCount | None,
    now: Instant,
    shuts: Sequence[Closure] = (),
    *,
    booked: Sequence[Hold] = (),
    busy_elsewhere: int | None = None,
) -> Reason:
    """Explain a job's present state. `lane`: the counters of its lane. `shuts`: why its gate is closed. `booked`: its
    holds in windows that have not begun. `busy_elsewhere`: the number of leased jobs in other lanes of its queue; None:
    not known, because the reader does not see the lanes of other tenants."""
    match job.state:
        case State.PENDING if job.run_at > now:
            return _later(job, awaited_hold(job, booked))
        case State.PENDING if shuts:
            return _shut(shuts, now)
        case State.PENDING:
            return _ready(job, lane, busy_elsewhere)
        case State.LEASED if job.lease_until is None or job.lease_until <= now:
            return _expired(job)
        case State.LEASED if job.cancel_requested:
            return _cancelling(job)
        case State.LEASED:
            return _leased(job)
        case State.DONE:
            return Reason("done", f"It is done, in attempt {_attempt(job)}.")
        case State.FAILED:
            return _failed(job)
        case State.CANCELLED:
            advice = f"To run it after all: leaseway jobs retry {job.id}"
            return Reason("cancelled", "It was cancelled and will not run.", advice=advice)


RETURNED_US_MAX = 60 * SECOND_US
"""A job that a worker cannot run, for want of code or of a key, comes back within this time."""
GIVEN_BACK = "a snooze, or a limit, a budget or a provider that asked for a wait"
"""What sets the time of a job without using an attempt."""


def _later(job: Job, hold: Hold | None) -> Reason:
    """Its time has not come. The store keeps that time, and not what set it."""
    if hold is not None:
        return _booked(job, hold)
    is_returned = job.last_error_at is not None and job.run_at - job.last_error_at <= RETURNED_US_MAX
    if is_returned and job.last_error_code == UNKNOWN_KEY:
        return _locked(job)
    if is_returned and job.last_error_code in MISFIT:
        return _misfit(job)
    return _retrying(job) if _has_failed(job) else _scheduled(job)


def _scheduled(job: Job) -> Reason:
    set_by = "when it was submitted" if not job.fence else f"by a lease that used no attempt: {GIVEN_BACK}"
    return Reason("scheduled", f"It waits for its time to run, which was set {set_by}.", job.run_at)


def awaited_hold(job: Job, booked: Sequence[Hold]) -> Hold | None:
    """The hold for whose window the job waits. A job that gave up a call may have another one."""
    return next((hold for hold in booked if hold.start == job.run_at), None)


def _booked(job: Job, hold: Hold) -> Reason:
    line = last_line(hold)
    before = f"Attempt {_attempt(job)} ended with {job.last_error_code}. " if _has_failed(job) else ""
    cost = f"{amount_text(line.amount_micros)} {line.unit}"
    text = (
        f"{before}It waits for budget {line.name}: its call may cost {cost}, which did not fit earlier and is booked "
        f"in the window {line.window.label}."
    )
    name = quote(line.budget)
    advice = (
        f"To run it earlier, raise the budget: leaseway budgets set {name} --amount AMOUNT\n"
        f"If there is room by now: leaseway budgets rebook {name}"
    )
    return Reason("budget", text, job.run_at, advice)


def _locked(job: Job) -> Reason:
    text = "It is encrypted, and a worker that claimed it did not have the key."
    text += " It keeps its attempts and is tried again."
    return Reason(UNKNOWN_KEY, text, job.run_at, f"Give the key to the workers. Its id: leaseway jobs show {job.id}")


MISFIT = {
    UNKNOWN_KIND: "A worker that claimed it has no job of this kind.",
    BAD_PAYLOAD: "Its arguments do not match the function of a worker that claimed it.",
}


def _misfit(job: Job) -> Reason:
    text = f"{MISFIT[job.last_error_code or '']} It keeps its attempts and is tried again: another worker may run it."
    advice = f"Start a worker whose code fits. What it said: leaseway jobs show {job.id}"
    return Reason("misfit", text, job.run_at, advice, "It is tried again")


def _shut(shuts: Sequence[Closure], now: Instant) -> Reason:
    """The reason that lasts longest comes first; the others are listed."""
    first = longest_closure(shuts)
    others = [f"{each.what} {each.name}" for each in shuts if each is not first]
    also = f" It waits for {_listed(others)} as well." if others else ""
    until = None if first.wait_us is None else now + first.wait_us
    text = f"It waits for {first.what} {first.name}: {first.why}.{also}"
    return Reason(first.what, text, until, first.advice, first.then)


def _retrying(job: Job) -> Reason:
    text = (
        f"Attempt {_attempt(job)} ended with {job.last_error_code}; "
        f"it waits for attempt {job.attempts + 1} of {job.attempts_max}."
    )
    if job.fence != job.attempts:  # it had a lease that used no attempt, before that error or after it
        text += f" The wait is the pause after the error, or was set by a later lease: {GIVEN_BACK}."
    return Reason("retry", text, job.run_at, f"What went wrong: leaseway jobs show {job.id}")


def _ready(job: Job, lane: LaneCount | None, busy_elsewhere: int | None) -> Reason:
    before = f" after {job.last_error_code} in attempt {_attempt(job)}" if _has_failed(job) else ""
    text = f"It is ready{before} and waits for a worker that serves queue {job.queue!r}. {_numbers(job, lane)}"
    if job.last_error_code in MISFIT and not _has_failed(job):
        text += f" {MISFIT[job.last_error_code]}"
    return Reason("ready", text, advice=_advise_worker(job, lane, busy_elsewhere))


def _advise_worker(job: Job, lane: LaneCount | None, busy_elsewhere: int | None) -> str:
    """The store knows the workers that hold leases, and no others."""
    more = "If it takes too long, start another worker or raise its --concurrency."
    start = f"start one: leaseway work MODULE:APP --queue {quote(job.queue)}"
    if lane is not None and lane.leased:
        return f"Jobs of this lane that workers hold: {lane.leased:,}. {more}"
    if busy_elsewhere:
        return f"Jobs of other lanes of this queue that workers hold: {busy_elsewhere:,}; lanes take turns. {more}"
    if busy_elsewhere is None:
        return f"Whether a worker serves this queue is not known here. If none does, {start}"
    return f"No worker holds a job of this queue; the store does not know idle workers. If none serves it, {start}"


def _leased(job: Job) -> Reason:
    text = f"Worker {job.lease_owner} holds its lease, in attempt {_attempt(job)}, and renews it while it runs the job."
    if (waiting := waiting_reason(job.progress)) is not None:
        text += f" Its handler has made calls, so it waits where it is: {waiting}."
    return Reason("leased", text, job.lease_until, f"To stop it: leaseway jobs cancel {job.id}", LEASE_ENDS)


def _cancelling(job: Job) -> Reason:
    text = (
        f"It was cancelled while worker {job.lease_owner} holds its lease. A worker that is alive learns of it within "
        "a second or two, and the job ends as cancelled, unless it finishes first. If the worker is gone, the job ends "
        "as cancelled after its lease has ended."
    )
    return Reason("cancelling", text, job.lease_until, then=LEASE_ENDS)


def _expired(job: Job) -> Reason:
    fate = "ends as cancelled" if job.cancel_requested else _fate_of_expired(job)
    text = (
        f"Worker {job.lease_owner} stopped renewing its lease, in attempt {_attempt(job)}. "
        f"As soon as any worker claims jobs, the job {fate}."
    )
    return Reason(
        "expired", text, advice="If this continues, no worker claims jobs. Start one: leaseway work MODULE:APP"
    )


def _fate_of_expired(job: Job) -> str:
    if job.attempts < job.attempts_max:
        return f"becomes ready for attempt {job.attempts + 1} of {job.attempts_max}"
    return "fails with lease_expired, since this was its last attempt"


def _failed(job: Job) -> Reason:
    last = job.attempts >= job.attempts_max
    why = "which was its last" if last else "and is not retried after this error"
    text = (
        f"It failed with {job.last_error_code or 'an unknown error'} in attempt {_attempt(job)}, {why}. "
        "It stays a dead letter until it is retried, discarded or pruned."
    )
    advice = f"What went wrong: leaseway jobs show {job.id}\nTo run it again: leaseway jobs retry {job.id}"
    return Reason("failed", text, advice=advice)


def _has_failed(job: Job) -> bool:
    # A job that was retried keeps its last error, but its attempts are counted from 0 again.
    return job.attempts > 0 and job.last_error_code is not None


def _attempt(job: Job) -> str:
    return f"{job.attempts} of {job.attempts_max}"


def _listed(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _numbers(job: Job, lane: LaneCount | None) -> str:
    name = f"Its lane (queue {job.queue!r}, tenant {job.tenant!r})"
    if lane is None:
        return f"{name} is unknown."
    return f"{name} holds {lane.ready:,} ready, {lane.scheduled:,} scheduled and {lane.leased:,} leased."
