"""Explains the state of a job: why it has not run yet, what it waits for, and what to do about it (`jobs why`)."""

from collections.abc import Sequence

from msgspec import Struct

from leaseway.domain.gates import Closure, longest_closure, readable_needs
from leaseway.domain.ids import Instant
from leaseway.domain.job import Job, State
from leaseway.domain.lane import LaneCount

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


def explain(job: Job, lane: LaneCount | None, now: Instant, shuts: Sequence[Closure] = ()) -> Reason:
    """Explain a job's present state. `lane`: the counters of its lane. `shuts`: why its gate is closed."""
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
    """A job that waits for a budget window looks like one that was scheduled, so mention both."""
    text = "It waits for its time to run."
    names = _listed([charge.name for charge in readable_needs(job.needs).budgets])
    if names:
        text += f" It pays from budget {names}: if that is used up, the job waits for a window with room."
    return Reason("scheduled", text, job.run_at)


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
    return Reason("retry", text, job.run_at, f"What went wrong: leaseway jobs show {job.id}")


def _ready(job: Job, lane: LaneCount | None) -> Reason:
    before = f" after {job.last_error_code} in attempt {_attempt(job)}" if _has_failed(job) else ""
    text = f"It is ready{before} and waits for a worker that serves queue {job.queue!r}. {_numbers(job, lane)}"
    if lane is not None and lane.leased:
        advice = "Workers are busy here. If it takes too long, start another one or raise its --concurrency."
    else:
        advice = f"No worker is busy with this lane. Start a worker: leaseway work MODULE:APP --queue {job.queue}"
    return Reason("ready", text, advice=advice)


def _leased(job: Job) -> Reason:
    text = f"Worker {job.lease_owner} runs it, attempt {_attempt(job)}, and renews its lease meanwhile."
    return Reason("leased", text, job.lease_until, f"To stop it: leaseway jobs cancel {job.id}", LEASE_ENDS)


def _cancelling(job: Job) -> Reason:
    text = (
        f"It was cancelled while worker {job.lease_owner} runs it. The worker learns of it within a second or two; "
        "the job ends as cancelled, unless it finishes first."
    )
    return Reason("cancelling", text, job.lease_until, then=LEASE_ENDS)


def _expired(job: Job) -> Reason:
    fate = "ends as cancelled" if job.cancel_requested else _fate_of_expired(job)
    text = (
        f"Worker {job.lease_owner} stopped renewing its lease, in attempt {_attempt(job)}. "
        f"As soon as any worker claims jobs, the job {fate}."
    )
    return Reason(
        "expired", text, advice="If this continues, no worker is running. Start one: leaseway work MODULE:APP"
    )


def _fate_of_expired(job: Job) -> str:
    if job.attempts < job.attempts_max:
        return f"becomes ready for attempt {job.attempts + 1} of {job.attempts_max}"
    return "fails with lease_expired, since this was its last attempt"


def _failed(job: Job) -> Reason:
    last = job.attempts >= job.attempts_max
    why = "which was its last" if last else "and the handler ruled out a retry"
    text = (
        f"It failed with {job.last_error_code} in attempt {_attempt(job)}, {why}. "
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
