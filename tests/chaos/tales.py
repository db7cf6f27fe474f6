"""Stories in which something goes wrong, by the rule that must notice; and some in which all is well but looks odd."""

from collections.abc import Callable

from chaos import history
from msgspec.structs import replace
from tests.chaos.story import EAST, SUBMITTER, WEST, Story

Tale = Callable[[Story], None]
BROKEN: list[tuple[str, Tale]] = []
SOUND: list[Tale] = []


def breaks(rule: str) -> Callable[[Tale], Tale]:
    def register(tale: Tale) -> Tale:
        BROKEN.append((rule, tale))
        return tale

    return register


def sound(tale: Tale) -> Tale:
    SOUND.append(tale)
    return tale


# -- submissions ----------------------------------------------------------------------------------------------------


@breaks("acknowledged_is_stored")
def an_acknowledged_job_is_gone(story: Story) -> None:
    story.submitted("a")


@breaks("acknowledged_is_stored")
def two_submissions_got_each_others_jobs(story: Story) -> None:
    story.asked("both", "a", "b")
    story.acknowledged("both", "job b", "job a")
    for job in ("a", "b"):
        story.worked(EAST, f"job {job}", 1, 1.0, 1.1)
        story.stored(f"job {job}", label=job)


@breaks("refused_left_nothing")
def a_refused_job_is_there(story: Story) -> None:
    story.asked("once", "a")
    story.refused("once")
    story.worked(EAST, "a", 1, 1.0, 1.1)
    story.stored("a")


@sound
def a_job_is_refused_after_a_lost_reply_and_is_there(story: Story) -> None:
    """The first try may have happened: the refusal of the second one says nothing about it."""
    story.asked("first", "a", key="k")
    story.unknown("first")
    story.asked("second", "a", key="k")
    story.refused("second")
    story.worked(EAST, "a", 1, 1.0, 1.1)
    story.stored("a")


@breaks("one_job_for_each_label")
def an_unknown_submission_is_there_twice(story: Story) -> None:
    story.asked("once", "a")
    story.unknown("once")
    for job in ("job 1", "job 2"):
        story.worked(EAST, job, 1, 1.0, 1.1)
        story.stored(job, label="a")


@breaks("one_job_for_each_label")
def a_job_came_from_nobody(story: Story) -> None:
    story.worked(EAST, "a", 1, 1.0, 1.1)
    story.stored("a")


@sound
def an_unknown_submission_is_not_there(story: Story) -> None:
    story.asked("once", "a")
    story.unknown("once")


@breaks("all_or_nothing")
def half_a_bulk_submission_is_there(story: Story) -> None:
    story.asked("bulk", "a", "b")
    story.unknown("bulk")
    story.worked(EAST, "a", 1, 1.0, 1.1)
    story.stored("a")


@breaks("a_key_names_one_job")
def a_key_is_answered_with_two_jobs(story: Story) -> None:
    for call, label in (("first", "a"), ("second", "b")):
        story.asked(call, label, key="k")
        story.acknowledged(call, label)
        story.worked(EAST, label, 1, 1.0, 1.1)
        story.stored(label)


@breaks("every_job_ends_as_it_must")
def a_job_failed_that_should_be_done(story: Story) -> None:
    story.submitted("a")
    story.stored("a", state="failed")


@breaks("every_job_ends_as_it_must")
def a_cancelled_job_is_done_all_the_same(story: Story) -> None:
    story.done("a")
    story.says(SUBMITTER, history.Cancelling(at=0.5, job="a"))
    story.says(SUBMITTER, history.Cancelled(at=0.6, job="a", answer="cancelled"))


@sound
def a_job_was_done_before_its_cancelling_reached_it(story: Story) -> None:
    story.done("a")
    story.says(SUBMITTER, history.Cancelling(at=0.5, job="a"))
    story.says(SUBMITTER, history.Cancelled(at=0.6, job="a", answer="requested"))


@breaks("cancelling_finds_its_job")
def a_job_is_unknown_to_who_wants_to_cancel_it(story: Story) -> None:
    story.done("a")
    story.says(SUBMITTER, history.Cancelling(at=0.5, job="a"))
    story.says(SUBMITTER, history.Cancelled(at=0.6, job="a", answer="unknown"))


# -- results --------------------------------------------------------------------------------------------------------


@breaks("one_accepted_result")
def two_attempts_are_accepted(story: Story) -> None:
    story.done("a")
    story.settled(WEST, "a", 9, 1.3)


@breaks("accepted_stands")
def an_accepted_result_is_forgotten_by_a_crash(story: Story) -> None:
    story.submitted("a")
    story.granted(EAST, "a", 1, 1.0)
    story.ran(EAST, "a", 1, 1.01, 1.1, "failed")
    story.settled(EAST, "a", 1, 1.2, "failed")
    story.worked(WEST, "a", 2, 5.0, 5.1)
    story.stored("a", fence=2)


@breaks("accepted_stands")
def a_settled_job_is_gone(story: Story) -> None:
    story.asked("once", "a")
    story.unknown("once")
    story.worked(EAST, "a", 1, 1.0, 1.1)


@breaks("late_settlements_are_refused")
def a_zombie_hands_a_job_back_that_another_one_holds(story: Story) -> None:
    story.submitted("a")
    story.granted(EAST, "a", 1, 1.0)
    story.ran(EAST, "a", 1, 1.01, 1.1, "failed")
    story.worked(WEST, "a", 2, 5.0, 5.1)
    story.settled(EAST, "a", 1, 5.05, "pending")
    story.stored("a", fence=2)


@sound
def a_settlement_is_accepted_again_after_a_lost_reply(story: Story) -> None:
    """It was said before the next one got the job; only the answer came later."""
    story.submitted("a")
    story.granted(EAST, "a", 1, 1.0)
    story.ran(EAST, "a", 1, 1.01, 1.1, "failed")
    said = history.Settled("a", "token-1", "pending", 1.2, True)
    story.says(EAST, history.Exchanged(at=6.0, sent=1.2, settled=[said], is_repeat=True))
    story.worked(WEST, "a", 2, 5.0, 5.1)
    story.stored("a", fence=2)


@breaks("the_result_is_the_last_holders")
def the_result_of_an_older_attempt_is_stored(story: Story) -> None:
    story.submitted("a")
    story.granted(EAST, "a", 1, 1.0)
    story.ran(EAST, "a", 1, 1.01, 1.1)
    story.granted(WEST, "a", 2, 5.0)
    story.ran(WEST, "a", 2, 5.01, 5.1)
    story.stored("a", fence=2)
    story.jobs["a"] = replace(story.jobs["a"], result_fence=1)


@breaks("the_result_is_the_last_holders")
def a_job_is_done_that_no_handler_finished(story: Story) -> None:
    story.submitted("a")
    story.granted(EAST, "a", 1, 1.0)
    story.ran(EAST, "a", 1, 1.01, 1.1, "failed")
    story.stored("a")


@breaks("the_result_is_the_last_holders")
def a_job_was_leased_again_after_its_end(story: Story) -> None:
    story.done("a")
    story.granted(WEST, "a", 2, 5.0)
    story.ran(WEST, "a", 2, 5.01, 5.1, "failed")


def parent(story: Story, children: int) -> None:
    story.done("p")
    story.jobs["p"] = replace(story.jobs["p"], kind="parent", children=children)


def child(story: Story, job: str, index: int, fence: int = 1) -> None:
    story.worked(EAST, job, 1, 2.0, 2.1)
    story.stored(job)
    story.jobs[job] = replace(story.jobs[job], kind="child", label="", parent="p", index=index, parent_fence=fence)


@sound
def children_exist_once(story: Story) -> None:
    parent(story, 2)
    child(story, "c0", 0)
    child(story, "c1", 1)


@breaks("children_follow_their_parent")
def a_child_exists_twice(story: Story) -> None:
    parent(story, 1)
    child(story, "c0", 0)
    child(story, "c0 again", 0)


@breaks("children_follow_their_parent")
def a_child_is_missing(story: Story) -> None:
    parent(story, 2)
    child(story, "c0", 0)


@breaks("children_follow_their_parent")
def a_child_has_no_parent(story: Story) -> None:
    child(story, "c0", 0)


@breaks("children_follow_their_parent")
def a_child_comes_from_an_attempt_that_was_refused(story: Story) -> None:
    parent(story, 1)
    child(story, "c0", 0, fence=7)


# -- leases ---------------------------------------------------------------------------------------------------------


@breaks("fences_only_grow")
def a_crash_forgot_a_claim_and_gave_its_fence_again(story: Story) -> None:
    story.submitted("a")
    story.granted(EAST, "a", 1, 1.0, token="forgotten")
    story.says(
        EAST, history.Exchanged(at=1.1, sent=1.05, settled=[history.Settled("a", "forgotten", "pending", 1.05, True)])
    )
    story.worked(WEST, "a", 1, 5.0, 5.1)
    story.stored("a")


@breaks("fences_only_grow")
def a_smaller_fence_came_later(story: Story) -> None:
    story.submitted("a")
    story.worked(EAST, "a", 2, 1.0, 1.1)
    story.granted(WEST, "a", 1, 5.0)
    story.ran(WEST, "a", 1, 5.01, 5.1, "failed")
    story.stored("a", fence=2)


@breaks("one_live_lease")
def a_job_is_granted_while_another_one_holds_it(story: Story) -> None:
    story.submitted("a")
    story.granted(EAST, "a", 1, 1.0)
    story.ran(EAST, "a", 1, 1.01, 3.0, "failed")
    story.worked(WEST, "a", 2, 2.8, 2.9)
    story.stored("a", fence=2)


@breaks("one_live_lease")
def a_renewed_lease_was_not_honoured(story: Story) -> None:
    """Without the renewal at 3.5 the grant at 5 would be right."""
    story.submitted("a")
    story.fault("freeze", [EAST], 3.6, 7.0)
    story.granted(EAST, "a", 1, 1.0)
    story.ran(EAST, "a", 1, 1.01, 7.1, "stopped")
    story.renewed(EAST, "a", 1, 3.5)
    story.worked(WEST, "a", 2, 5.0, 5.1)
    for n in range(12):
        story.done(f"other {n}", 7.2 + n / 10, EAST)
    story.stored("a", fence=2)


@sound
def a_frozen_worker_loses_its_job_and_learns_it_late(story: Story) -> None:
    story.submitted("a")
    story.granted(EAST, "a", 1, 1.0)
    story.ran(EAST, "a", 1, 1.01, 7.1, "stopped")
    story.fault("freeze", [EAST], 1.5, 7.0)
    story.worked(WEST, "a", 2, 5.0, 5.1)
    story.settled(EAST, "a", 1, 7.2, is_accepted=False)
    story.stored("a", fence=2)
    story.done("b", 7.3, EAST)


@sound
def the_job_of_a_dead_worker_runs_again(story: Story) -> None:
    story.submitted("a")
    story.granted(EAST, "a", 1, 1.0)
    story.ran(EAST, "a", 1, 1.01, None)
    story.fault("kill", [EAST], 1.5, 1.6)
    story.ended(EAST, 1.55)
    story.worked(WEST, "a", 2, 5.0, 5.1)
    story.stored("a", fence=2)


@breaks("a_lease_is_run_once")
def a_repeated_claim_was_run_twice(story: Story) -> None:
    story.done("a")
    story.ran(EAST, "a", 1, 1.05, 1.1)


@breaks("a_lease_is_run_once")
def a_handler_ran_without_a_lease(story: Story) -> None:
    story.done("a")
    story.ran(WEST, "a", 0, 5.0, 5.1, "failed")


@breaks("nobody_runs_on_unaware")
def a_handler_was_not_told_that_its_lease_had_ended(story: Story) -> None:
    story.submitted("a")
    story.fault("blackhole", [EAST], 1.5, 6.5)
    story.granted(EAST, "a", 1, 1.0)
    story.ran(EAST, "a", 1, 1.01, 6.0, "stopped")
    story.worked(WEST, "a", 2, 5.0, 5.1)
    story.stored("a", fence=2)
    story.done("b", 6.6, EAST)


@breaks("nobody_runs_on_unaware")
def a_worker_that_was_frozen_does_not_look_around(story: Story) -> None:
    story.submitted("a")
    story.granted(EAST, "a", 1, 1.0)
    story.ran(EAST, "a", 1, 1.01, 8.1, "stopped")
    story.fault("freeze", [EAST], 1.5, 7.0)
    story.worked(WEST, "a", 2, 5.0, 5.1)
    story.stored("a", fence=2)
    story.done("b", 7.3, EAST)


@breaks("the_well_keep_their_leases")
def a_worker_lost_a_lease_for_no_reason(story: Story) -> None:
    story.submitted("a")
    story.granted(EAST, "a", 1, 1.0)
    story.ran(EAST, "a", 1, 1.01, 4.5, "stopped")
    story.worked(WEST, "a", 2, 5.0, 5.1)
    story.stored("a", fence=2)


@breaks("the_well_keep_their_leases")
def a_worker_forgot_what_it_was_granted(story: Story) -> None:
    story.submitted("a")
    story.granted(EAST, "a", 1, 1.0)
    story.worked(WEST, "a", 2, 5.0, 5.1)
    story.stored("a", fence=2)


# -- cursors --------------------------------------------------------------------------------------------------------


def two_attempts(story: Story, began: int, *, stored: int) -> None:
    """The first attempt keeps cursor 3 and fails; the second one begins somewhere and finishes."""
    story.submitted("a")
    story.granted(EAST, "a", 1, 1.0)
    story.ran(EAST, "a", 1, 1.01, 1.5, "failed")
    story.checkpointed(EAST, "a", 1, 1.2, 3)
    story.settled(EAST, "a", 1, 1.6, "pending")
    story.granted(WEST, "a", 2, 2.0)
    story.ran(WEST, "a", 2, 2.01, 2.1, at=began)
    story.settled(WEST, "a", 2, 2.2)
    story.stored("a", fence=2)
    story.jobs["a"] = replace(story.jobs["a"], cursor=stored)


@sound
def the_next_attempt_goes_on_where_the_last_one_stopped(story: Story) -> None:
    two_attempts(story, 3, stored=3)


@breaks("a_kept_cursor_is_found_again")
def an_acknowledged_cursor_is_lost(story: Story) -> None:
    two_attempts(story, 0, stored=3)


@breaks("a_kept_cursor_is_found_again")
def a_cursor_comes_from_nowhere(story: Story) -> None:
    two_attempts(story, 9, stored=3)


@breaks("a_kept_cursor_is_found_again")
def a_cursor_went_back(story: Story) -> None:
    two_attempts(story, 3, stored=2)


@breaks("late_cursors_are_refused")
def a_zombies_cursor_is_kept(story: Story) -> None:
    two_attempts(story, 3, stored=3)
    story.checkpointed(EAST, "a", 1, 2.05, 3)


# -- books ----------------------------------------------------------------------------------------------------------


@breaks("nothing_is_left")
def the_drain_did_not_end(story: Story) -> None:
    story.says("supervisor", history.Drained(at=9.0, left=1))


@breaks("counters_are_true")
def a_counter_is_wrong(story: Story) -> None:
    story.miscounted = 1


# -- liveness -------------------------------------------------------------------------------------------------------


@breaks("everything_comes_back")
def a_worker_does_nothing_after_a_fault(story: Story) -> None:
    story.fault("reset", [EAST, WEST], 2.0, 2.1)
    for n in range(20):
        story.done(f"job {n}", 1.0 + n / 2, WEST)
    story.done("before", 1.5, EAST)


@breaks("everything_comes_back")
def only_the_keeper_of_a_worker_comes_back(story: Story) -> None:
    story.fault("reset", [EAST], 2.0, 2.1)
    for n in range(20):
        story.done(f"job {n}", 1.0 + n / 2, WEST)
    story.submitted("a")
    story.granted(EAST, "a", 1, 2.5)
    story.settled(EAST, "a", 1, 2.6, "pending")
    story.worked(WEST, "a", 2, 3.0, 3.1)
    story.stored("a", fence=2)


@breaks("everything_comes_back")
def a_worker_comes_back_too_late(story: Story) -> None:
    story.fault("reset", [EAST], 2.0, 2.1)
    for n in range(20):
        story.done(f"job {n}", 1.0 + n / 2, WEST)
    story.done("late", 8.0, EAST)


@breaks("everything_comes_back")
def a_submitter_is_not_heard_of_again(story: Story) -> None:
    story.fault("reset", [SUBMITTER], 2.0, 2.1)
    for n in range(20):
        story.done(f"job {n}", 1.0 + n / 2, WEST)


@breaks("everything_comes_back")
def everybody_does_a_little_and_it_is_not_enough(story: Story) -> None:
    """Eight a second before, one a second afterwards: that is not what it was."""
    story.fault("delay", [], 0.5, 0.6)
    for n in range(80):
        story.done(f"before {n}", 1.0 + n / 8, WEST)
    story.fault("reset", [EAST, WEST], 11.5, 11.6)
    for n in range(10):
        story.done(f"after {n}", 13.0 + 2 * n, EAST if n % 2 else WEST)


@sound
def a_fault_that_follows_at_once_leaves_no_time_to_come_back(story: Story) -> None:
    story.fault("reset", [EAST], 2.0, 2.1)
    story.fault("reset", [EAST], 4.0, 4.1)
    story.done("a", 5.0, EAST)


@sound
def who_waits_on_a_dead_connection_comes_back_when_his_patience_ends(story: Story) -> None:
    story.fault("forget", [EAST], 2.0, 2.1)
    story.fault("lock", [EAST], 3.0, 3.1)
    for n in range(60):
        story.done(f"job {n}", 1.0 + n / 2, WEST)
    story.done("late", 22.5, EAST)


@breaks("nobody_leaves")
def a_worker_ended_by_itself(story: Story) -> None:
    story.ended(EAST, 5.0, code=1, is_wanted=False)


@breaks("nobody_leaves")
def a_worker_left_in_disorder(story: Story) -> None:
    story.ended(EAST, 5.0, code=4)


@breaks("what_the_dead_held_runs_again")
def the_job_of_a_dead_worker_waits_too_long(story: Story) -> None:
    story.submitted("a")
    story.granted(EAST, "a", 1, 1.0)
    story.ran(EAST, "a", 1, 1.01, None)
    story.fault("kill", [EAST], 1.5, 1.6)
    story.ended(EAST, 1.55)
    story.done("b", 2.0, WEST)
    story.worked(WEST, "a", 2, 15.0, 15.1)
    story.stored("a", fence=2)
