"""Which worker held a job, and at which cursor it continued."""

from chaos import history
from msgspec.structs import replace
from tests.chaos.story import EAST, WEST, Story
from tests.chaos.tales.register import breaks, sound


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
    """Without the renewal at 3.5 the grant at 5 would be correct."""
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


def two_attempts(story: Story, began: int, *, stored: int) -> None:
    """The first attempt stores cursor 3 and fails; the second one starts at a given cursor and finishes."""
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
