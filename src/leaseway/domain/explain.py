"""Why a job has not run yet, what it waits for, and what a person can do about it. Decided here, shown elsewhere."""

from collections.abc import Sequence

from msgspec import Struct

from leaseway.domain.gates import Closure, longest_closure, readable_needs
from leaseway.domain.ids import Instant
from leaseway.domain.job import Job, State
from leaseway.domain.lane import LaneCount

LEASE_ENDS = "Unless renewed, the lease ends"


class Reason(Struct, frozen=True):
    """One answer. `text` is a whole sentence without instants: those are for the reader's own time zone."""

    code: str
    text: str
    until: Instant | None = None
    """When the present state ends by itself; None if it does not, or nobody can know."""
    advice: str | None = None
    then: str = "It runs"
    """What happens at that time."""


def explain(job: Job, lane: LaneCount | None, now: Instant, shuts: Sequence[Closure] = ()) -> Reason:
    """The reason for the job's present state. `lane` holds the counters of the job's lane, `shuts` what keeps its gate
    shut."""
    match job.state:
        case State.PENDING if job.run_at > now:
            return _retrying(job) if _has_failed(job) else _scheduled(job)
        case State.PENDING if shuts:
            return _shut(shuts, now)
        case State.PENDING:
            return _ready(job, lane)
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


def _scheduled(job: Job) -> Reason:
    """A job that was booked ahead looks like one that was submitted for later: say what may have happened."""
    text = "It waits for its time to run."
    names = _listed([charge.name for charge in readable_needs(job.needs).budgets])
    if names:
        text += f" It pays from budget {names}: where that is used up, a job waits for the window that has room for it."
    return Reason("scheduled", text, job.run_at)


def _shut(shuts: Sequence[Closure], now: Instant) -> Reason:
    """The one that lasts longest is the answer; the others are named."""
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
    return Reason("retry", text, job.run_at, f"What went wrong: leaseway jobs show {job.id}")


def _ready(job: Job, lane: LaneCount | None) -> Reason:
    before = f" after {job.last_error_code} in attempt {_attempt(job)}" if _has_failed(job) else ""
    text = f"It is ready{before} and waits for a worker that serves queue {job.queue!r}. {_numbers(job, lane)}"
    if lane is not None and lane.leased:
        advice = "Workers are busy here. If it takes too long, start another one or raise its --concurrency."
    else:
        advice = f"Nobody works on this lane now. Start a worker: leaseway work MODULE:APP --queue {job.queue}"
    return Reason("ready", text, advice=advice)


def _leased(job: Job) -> Reason:
    text = f"Worker {job.lease_owner} runs it, attempt {_attempt(job)}, and renews its lease as long as it does."
    return Reason("leased", text, job.lease_until, f"To stop it: leaseway jobs cancel {job.id}", LEASE_ENDS)


def _cancelling(job: Job) -> Reason:
    text = (
        f"Somebody asked to cancel it while worker {job.lease_owner} runs it. The worker is told within a second or "
        "two; the job ends as cancelled, unless it finishes first."
    )
    return Reason("cancelling", text, job.lease_until, then=LEASE_ENDS)


def _expired(job: Job) -> Reason:
    fate = "ends as cancelled" if job.cancel_requested else _fate_of_expired(job)
    text = (
        f"Worker {job.lease_owner} stopped renewing its lease, in attempt {_attempt(job)}. "
        f"As soon as any worker asks for work, the job {fate}."
    )
    return Reason("expired", text, advice="If this lasts, no worker is running. Start one: leaseway work MODULE:APP")


def _fate_of_expired(job: Job) -> str:
    if job.attempts < job.attempts_max:
        return f"becomes ready for attempt {job.attempts + 1} of {job.attempts_max}"
    return "fails with lease_expired, since this was its last attempt"


def _failed(job: Job) -> Reason:
    last = job.attempts >= job.attempts_max
    why = "which was its last" if last else "and trying again was ruled out"
    text = (
        f"It failed with {job.last_error_code} in attempt {_attempt(job)}, {why}. "
        "It stays in the dead letter until somebody retries or discards it, or it is pruned."
    )
    advice = f"What went wrong: leaseway jobs show {job.id}\nTo run it again: leaseway jobs retry {job.id}"
    return Reason("failed", text, advice=advice)


def _has_failed(job: Job) -> bool:
    # A replayed job keeps its old error, but has its attempts before it.
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
