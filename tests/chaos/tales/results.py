"""Which attempt finished a job, and whose children exist."""

from chaos import history
from msgspec.structs import replace
from tests.chaos.story import EAST, WEST, Story
from tests.chaos.tales.register import breaks, sound


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
    """It was sent before the next worker got the job; only the reply arrived later."""
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
