"""Submissions, and the jobs that they became."""

from chaos import history
from tests.chaos.story import EAST, SUBMITTER, Story
from tests.chaos.tales.register import breaks, sound


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
    """The first try may have been executed: the refusal of the second one says nothing about it."""
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
