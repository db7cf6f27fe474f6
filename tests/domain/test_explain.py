"""Why a job has not run: the explanation must match the state and must not promise what is unknown."""

import pytest
from msgspec.structs import replace

from leaseway.domain.budgets.balances import HoldLine
from leaseway.domain.budgets.budget import Charge
from leaseway.domain.budgets.calendar_windows import CalendarWindow
from leaseway.domain.budgets.holds import Hold, HoldState
from leaseway.domain.encryption import KEY_MISSING_US
from leaseway.domain.explain.closures import Closure, closed_by_worker
from leaseway.domain.explain.reasons import RETURNED_US_MAX, explain
from leaseway.domain.ids import SECOND_US, JobId
from leaseway.domain.job import Job, State
from leaseway.domain.lane import LaneCount
from leaseway.domain.limits.limit import PermitRequest
from leaseway.domain.requirements import Needs, render_needs
from leaseway.worker.run_handler import MISFIT_SECONDS_MAX

NOW = 1_000 * SECOND_US
ID = JobId("01aaaaaaaaaaaaaaaaaaaaaaaa")

READY = Job(
    id=ID, kind="geocode", queue="maps", tenant="acme", state=State.PENDING, priority=0, attempts=0, attempts_max=5,
    fence=0, payload="{}", shard_key=None, cursor=None, progress=None, result=None, lease_owner=None, lease_until=None,
    lease_us=15 * SECOND_US, timeout_us=None, cancel_requested=False, created_at=0, run_at=NOW, finished_at=None,
    last_error_code=None, last_error_at=None,
)  # fmt: skip
LEASED = replace(READY, state=State.LEASED, attempts=1, lease_owner="host:1", lease_until=NOW + SECOND_US)
LANE = LaneCount(queue="maps", tenant="acme", ready=1_200, scheduled=3, leased=0, done=7, failed=0, cancelled=0)


def test_a_job_is_ready_from_the_very_instant_of_its_time() -> None:
    """One microsecond earlier it is scheduled; the boundary must equal the store's."""
    assert explain(READY, LANE, NOW).code == "ready"
    assert explain(READY, LANE, NOW - 1).code == "scheduled"


def test_a_ready_job_tells_of_its_lane_and_of_who_is_missing() -> None:
    """The most common cause is that no worker serves the queue."""
    reason = explain(READY, LANE, NOW)
    assert "1,200 ready, 3 scheduled and 0 leased" in reason.text
    assert "--queue maps" in str(reason.advice)
    assert reason.until is None, "nobody knows when a worker comes"


def test_a_ready_job_among_busy_workers_needs_more_of_them_not_a_first_one() -> None:
    """The advice must fit: starting a first worker does not help here."""
    reason = explain(READY, replace(LANE, leased=4), NOW)
    assert str(reason.advice).startswith("Jobs of this lane that workers hold: 4. If it takes too long, start another")


def test_a_lane_that_nobody_counted_is_no_reason_to_fail() -> None:
    """A user who asks why must get an answer even if a counter is missing."""
    assert explain(READY, None, NOW).code == "ready"


def test_a_scheduled_job_waits_until_its_time() -> None:
    """The user must see the time instead of suspecting the workers."""
    assert explain(replace(READY, run_at=NOW + 5), LANE, NOW).until == NOW + 5


def test_a_job_between_two_attempts_tells_which_and_why() -> None:
    """Without the error the user would not know that the job failed before."""
    failed_once = replace(READY, run_at=NOW + 5, attempts=2, last_error_code="timeout", last_error_at=NOW - 1)
    reason = explain(failed_once, LANE, NOW)
    assert reason.code == "retry"
    assert "Attempt 2 of 5 ended with timeout" in reason.text
    assert "attempt 3 of 5" in reason.text


def test_a_replayed_job_is_not_taken_for_one_that_waits_after_a_failure() -> None:
    """Its old error is history: all its attempts are available again."""
    replayed = replace(READY, run_at=NOW + 5, attempts=0, last_error_code="timeout", last_error_at=NOW - 1)
    assert explain(replayed, LANE, NOW).code == "scheduled"


DAY = CalendarWindow(NOW + 5, NOW + 9, "2026-05-04")
LINE = HoldLine(name="spend:acme", budget="spend:{tenant}", unit="usd", window=DAY, amount_micros=1_500_000)
BOOKED = Hold(id="acme/x:1:1", state=HoldState.HELD, owner="1", ttl_us=1, deadline=NOW + 9, lines=(LINE,))


@pytest.mark.parametrize("attempts", [0, 2])
def test_a_job_that_waits_for_a_booked_window_names_it_also_after_a_failure(attempts: int) -> None:
    """Naming only the next attempt would hide that a budget is the reason, and what would help."""
    job = replace(READY, run_at=NOW + 5, attempts=attempts, last_error_code="timeout" if attempts else None)
    reason = explain(job, LANE, NOW, booked=[BOOKED])
    assert (reason.code, reason.until) == ("budget", NOW + 5)
    assert "budget spend:acme: its call may cost 1.5 usd" in reason.text
    assert "the window 2026-05-04" in reason.text
    assert ("Attempt 2 of 5 ended with timeout." in reason.text) == (attempts > 0)
    assert "leaseway budgets rebook 'spend:{tenant}'" in (reason.advice or "")


def test_of_several_budgets_the_one_whose_window_begins_last_is_named() -> None:
    """Raising the other one would not bring the job forward."""
    begun = replace(LINE, name="calls", budget="calls", window=CalendarWindow(NOW - 5, NOW + 5, "2026-05-03"))
    job = replace(READY, run_at=NOW + 5)
    for lines in ((begun, LINE), (LINE, begun)):
        reason = explain(job, LANE, NOW, booked=[replace(BOOKED, lines=lines)])
        assert "budget spend:acme" in reason.text


def test_a_hold_for_another_time_is_not_the_reason_for_a_wait() -> None:
    """A job that gave up a call and failed afterwards waits for its retry."""
    job = replace(READY, run_at=NOW + 6, attempts=2, last_error_code="timeout")
    assert explain(job, LANE, NOW, booked=[BOOKED]).code == "retry"


def test_a_leased_job_names_its_owner_and_the_end_of_the_lease() -> None:
    """The user needs the worker to look at its logs."""
    reason = explain(LEASED, LANE, NOW)
    assert (reason.code, reason.until) == ("leased", NOW + SECOND_US)
    assert "host:1" in reason.text


@pytest.mark.parametrize(
    ("job", "fate"),
    [
        (replace(LEASED, attempts=4), "ready for attempt 5 of 5"),
        (replace(LEASED, attempts=5), "fails with lease_expired"),
        (replace(LEASED, attempts=5, cancel_requested=True), "ends as cancelled"),
    ],
)
def test_an_expired_lease_tells_what_will_become_of_the_job(job: Job, fate: str) -> None:
    """At the instant of its end a lease has expired, as in the store."""
    reason = explain(job, LANE, NOW + SECOND_US)
    assert reason.code == "expired"
    assert fate in reason.text
    assert reason.until is None, "it waits for a worker to ask, and nobody knows when"


def test_a_wish_to_cancel_is_told_while_the_worker_still_runs_it() -> None:
    """Otherwise it looks as if the cancellation was lost."""
    assert explain(replace(LEASED, cancel_requested=True), LANE, NOW).code == "cancelling"


@pytest.mark.parametrize(("attempts", "why"), [(5, "which was its last"), (1, "is not retried after this error")])
def test_a_failed_job_tells_why_it_is_not_tried_again(attempts: int, why: str) -> None:
    """Used-up attempts and a ruled-out retry need different reactions."""
    reason = explain(replace(READY, state=State.FAILED, attempts=attempts, last_error_code="gone"), LANE, NOW)
    assert why in reason.text
    assert f"leaseway jobs retry {ID}" in str(reason.advice)


@pytest.mark.parametrize("state", list(State))
@pytest.mark.parametrize("lease_until", [None, 0, NOW + 1])
def test_every_state_has_a_reason(state: State, lease_until: int | None) -> None:
    """A state without an explanation would crash `jobs why`."""
    reason = explain(replace(LEASED, state=state, lease_until=lease_until), None, NOW)
    assert reason.code
    assert reason.text.endswith(".")


# -- behind a gate --------------------------------------------------------------------------------------------------

NEEDY = replace(READY, needs=render_needs(Needs((PermitRequest("maps", "maps"),), (Charge("spend", "spend"),))))
USED_UP = Closure("limit", "maps", "100/minute is used up", 4 * SECOND_US, "The next permit is free")


def test_a_ready_job_behind_a_shut_gate_tells_what_it_waits_for_and_until_when() -> None:
    """Starting another worker would not help and must not be advised."""
    reason = explain(NEEDY, LANE, NOW, [USED_UP])
    assert (reason.code, reason.until) == ("limit", NOW + 4 * SECOND_US)
    assert reason.text == "It waits for limit maps: 100/minute is used up."
    assert (reason.then, reason.advice) == ("The next permit is free", None)


def test_the_longest_wait_is_the_answer_and_the_others_are_named() -> None:
    """Removing a shorter cause would not let the job start."""
    spent = Closure("budget", "spend", "25 of 25 usd are spent", 9_999 * SECOND_US)
    reason = explain(
        NEEDY, LANE, NOW, [USED_UP, spent, Closure("tenant", "acme", "its limit of 1 concurrent call is reached")]
    )
    assert reason.code == "budget"
    assert reason.text.endswith("are spent. It waits for limit maps and tenant acme as well.")


def test_a_gate_is_no_reason_for_a_job_whose_time_has_not_come() -> None:
    """Its own time is the cause; the limit may be free by then."""
    later = replace(NEEDY, run_at=NOW + 5)
    assert explain(later, LANE, NOW, [USED_UP]).code == "scheduled"


def test_an_open_gate_leaves_the_question_for_a_worker() -> None:
    """A limit with permits left must not be blamed."""
    assert explain(NEEDY, LANE, NOW, []).code == "ready"


# -- lanes that a worker has closed ---------------------------------------------------------------------------------

CLOSED = replace(LANE, closed_until=NOW + 40 * SECOND_US, closed_why="limit mail:7: its rate per 3600 s is used up")


def test_a_closed_lane_is_a_reason_until_its_time() -> None:
    """ "Start a worker" would be wrong advice: workers are running, and have found the limit used up."""
    (shut,) = closed_by_worker(CLOSED, NOW)
    reason = explain(READY, CLOSED, NOW, [shut])
    assert reason.text == (
        "It waits for lane maps: a worker found it closed (limit mail:7: its rate per 3600 s is used up)."
    )
    assert (reason.code, reason.until, reason.then) == ("lane", CLOSED.closed_until, "A worker tries it again")
    assert reason.advice is None
    assert (
        closed_by_worker(CLOSED, NOW + 40 * SECOND_US)
        == closed_by_worker(LANE, NOW)
        == closed_by_worker(None, NOW)
        == []
    )


def test_what_the_limiter_says_now_is_better_than_what_a_worker_was_told() -> None:
    """The limiter knows the exact time, and the lane is closed for a minute at most. An unreachable limiter knows
    nothing."""
    exact, unknown = Closure("limit", "maps", "used up", 3_600 * SECOND_US), Closure("limit", "maps", "cannot be read")
    assert closed_by_worker(CLOSED, NOW, [exact]) == []
    assert len(closed_by_worker(CLOSED, NOW, [unknown])) == 1


def test_a_job_whose_queue_is_served_needs_no_first_worker() -> None:
    """Its turn comes after other lanes; a reader must not look for a worker that is missing."""
    assert "lanes take turns" in (explain(READY, LANE, NOW, busy_elsewhere=3).advice or "")
    assert "start one: leaseway work" in (explain(READY, LANE, NOW, busy_elsewhere=0).advice or "")


# -- nothing is guessed -----------------------------------------------------------------------------------------------


def test_idle_workers_are_not_known() -> None:
    """A worker without a job leaves no trace in the store, so "no worker runs" would be a guess."""
    advice = explain(READY, LANE, NOW, busy_elsewhere=0).advice or ""
    assert advice.startswith(
        "No worker holds a job of this queue; the store does not know idle workers. If none serves"
    )


def test_a_reader_who_does_not_see_other_tenants_is_told_that_it_is_not_known() -> None:
    """The workers may be busy with jobs of other tenants, which this reader must not learn."""
    advice = explain(READY, LANE, NOW, busy_elsewhere=None).advice or ""
    assert advice.startswith("Whether a worker serves this queue is not known here. If none does, start one: ")


@pytest.mark.parametrize(("fence", "set_by"), [(0, "when it was submitted"), (3, "by a lease that used no attempt")])
def test_a_scheduled_job_tells_what_can_have_set_its_time(fence: int, set_by: str) -> None:
    """A job that was never leased got its time at its submission; one that was leased may have been given back for
    several reasons."""
    assert f"which was set {set_by}" in explain(replace(READY, run_at=NOW + 5, fence=fence), LANE, NOW).text


def test_a_failed_attempt_is_not_the_cause_of_every_later_wait() -> None:
    """A snooze after a failed attempt leaves the error in the record. Only without a later lease is it certain."""
    failed = replace(READY, run_at=NOW + 5, attempts=1, fence=1, last_error_code="timeout", last_error_at=NOW - 1)
    assert explain(failed, LANE, NOW).text.endswith("it waits for attempt 2 of 5.")
    later = explain(replace(failed, fence=2), LANE, NOW)
    assert "The wait is the pause after the error, or was set by a later lease: a snooze, or a limit" in later.text
    assert later.code == "retry"


@pytest.mark.parametrize("code", ["unknown_kind", "bad_payload", "unknown_key"])
def test_code_that_did_not_fit_once_is_not_the_cause_of_a_long_wait(code: str) -> None:
    """Such a job comes back within a minute. Its error stays in the record when newer code has snoozed it."""
    returned = replace(READY, run_at=NOW + 5, fence=1, last_error_code=code, last_error_at=NOW - 1)
    assert explain(returned, LANE, NOW).code in ("misfit", "unknown_key")
    snoozed = explain(replace(returned, fence=2, run_at=NOW + 86_400 * SECOND_US), LANE, NOW)
    assert (snoozed.code, "by a lease that used no attempt" in snoozed.text) == ("scheduled", True)


def test_a_ready_job_that_did_not_fit_says_so() -> None:
    """ "Start a worker" alone would be wrong: a worker has claimed it and has no such job."""
    reason = explain(replace(READY, fence=1, last_error_code="unknown_kind", last_error_at=NOW - 1), LANE, NOW)
    assert "A worker that claimed it has no job of this kind." in reason.text


def test_a_lease_does_not_prove_that_the_job_runs() -> None:
    """A worker leases jobs a moment before it starts them, and may have died since."""
    assert explain(LEASED, LANE, NOW).text.startswith("Worker host:1 holds its lease, in attempt 1 of 5")
    cancelled = explain(replace(LEASED, cancel_requested=True), LANE, NOW).text
    assert "If the worker is gone, the job ends as cancelled after its lease has ended." in cancelled


def test_the_time_for_which_misfits_are_believed_is_that_of_the_worker() -> None:
    """Both constants describe the same wait."""
    assert max(MISFIT_SECONDS_MAX * SECOND_US, KEY_MISSING_US) <= RETURNED_US_MAX
