"""Why a job has not run: the explanation must match the state and must not promise what is unknown."""

import pytest
from msgspec.structs import replace

from leaseway.domain.budgets.budget import Charge
from leaseway.domain.explain import explain
from leaseway.domain.gates import Closure
from leaseway.domain.ids import SECOND_US, JobId
from leaseway.domain.job import Job, State
from leaseway.domain.lane import LaneCount
from leaseway.domain.limits.limit import PermitRequest
from leaseway.domain.requirements import Needs, render_needs

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
    assert "busy" in str(reason.advice)


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


@pytest.mark.parametrize(("attempts", "why"), [(5, "which was its last"), (1, "the handler ruled out a retry")])
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


def test_a_scheduled_job_that_pays_from_a_budget_may_have_been_booked_ahead() -> None:
    """It looks like a job that was submitted for later, so the explanation must name the possibility without claiming
    it.
    """
    assert "budget spend" in explain(replace(NEEDY, run_at=NOW + 5), LANE, NOW).text
    assert "budget" not in explain(replace(READY, run_at=NOW + 5), LANE, NOW).text


def test_an_open_gate_leaves_the_question_for_a_worker() -> None:
    """A limit with permits left must not be blamed."""
    assert explain(NEEDY, LANE, NOW, []).code == "ready"
