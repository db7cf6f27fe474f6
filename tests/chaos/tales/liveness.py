"""Jobs that are left at the end, and processes that recovered."""

from chaos import history
from tests.chaos.story import EAST, SUBMITTER, WEST, Story
from tests.chaos.tales.register import breaks, sound


@breaks("nothing_is_left")
def the_drain_did_not_end(story: Story) -> None:
    story.says("supervisor", history.Drained(at=9.0, left=1))


@breaks("counters_are_true")
def a_counter_is_wrong(story: Story) -> None:
    story.miscounted = 1


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


@sound
def a_worker_whose_slots_are_full_of_long_jobs_settles_nothing_yet(story: Story) -> None:
    """It has claimed and started jobs after the fault, so it works."""
    story.fault("reset", [EAST], 2.0, 2.1)
    for n in range(30):
        story.done(f"job {n}", 1.0 + n / 2, WEST)
    story.submitted("long")
    story.worked(EAST, "long", 1, 2.6, 8.5)
    story.stored("long")


@breaks("everything_comes_back")
def a_worker_starts_handlers_that_never_end(story: Story) -> None:
    story.fault("reset", [EAST], 2.0, 2.1)
    for n in range(30):
        story.done(f"job {n}", 1.0 + n / 2, WEST)
    story.submitted("a")
    story.granted(EAST, "a", 1, 2.5)
    story.ran(EAST, "a", 1, 2.6, None)
    story.worked(WEST, "a", 2, 9.0, 9.1)
    story.stored("a", fence=2)


@breaks("everything_comes_back")
def a_submitter_is_not_heard_of_again(story: Story) -> None:
    story.fault("reset", [SUBMITTER], 2.0, 2.1)
    for n in range(20):
        story.done(f"job {n}", 1.0 + n / 2, WEST)


@breaks("everything_comes_back")
def everybody_does_a_little_and_it_is_not_enough(story: Story) -> None:
    """Eight settlements a second before, one a second afterwards: the work has not resumed."""
    story.fault("delay", [], 0.5, 0.6)
    for n in range(80):
        story.done(f"before {n}", 1.0 + n / 8, WEST)
    story.fault("reset", [EAST, WEST], 11.5, 11.6)
    for n in range(10):
        story.done(f"after {n}", 13.0 + 2 * n, EAST if n % 2 else WEST)


@breaks("everything_comes_back")
def who_started_where_nothing_went_through_never_does_anything(story: Story) -> None:
    story.fault("bury", [EAST], 2.0, 12.0)
    story.ended(EAST, 5.0)
    story.started("worker-heir", 5.1)
    for n in range(40):
        story.done(f"job {n}", 1.0 + n / 2, WEST)


@sound
def who_started_at_the_end_of_a_fault_may_take_his_time(story: Story) -> None:
    story.fault("kill", [EAST], 2.0, 3.0)
    story.ended(EAST, 2.0)
    story.started("worker-heir", 2.9)
    for n in range(40):
        story.done(f"job {n}", 1.0 + n / 2, WEST)


@sound
def who_loads_his_code_for_long_is_not_hit_by_a_fault_meanwhile(story: Story) -> None:
    """A busy machine takes longer than five seconds to load it. The process does not know the store yet."""
    story.fault("kill", [EAST], 2.0, 2.2)
    story.ended(EAST, 2.1)
    story.started("worker-heir", 2.15, loaded=10.0)
    story.fault("vacuum", [WEST, "worker-heir"], 4.0, 4.5)
    for n in range(40):
        story.done(f"job {n}", 1.0 + n / 2, WEST)
    story.done("of the heir", 11.0, "worker-heir")


@breaks("everything_comes_back")
def who_has_loaded_his_code_must_come_back(story: Story) -> None:
    story.fault("kill", [EAST], 2.0, 2.2)
    story.ended(EAST, 2.1)
    story.started("worker-heir", 2.15, loaded=3.0)
    story.fault("vacuum", [WEST, "worker-heir"], 4.0, 4.5)
    for n in range(40):
        story.done(f"job {n}", 1.0 + n / 2, WEST)
    story.done("of the heir", 11.0, "worker-heir")


@sound
def who_is_killed_where_nothing_goes_through_had_no_time_to_come_back_before(story: Story) -> None:
    """The process had two seconds to recover from the first fault before the fatal one began, although it died much
    later.
    """
    story.fault("crash", [EAST], 2.0, 2.1)
    story.fault("bury", [EAST], 4.0, 20.0)
    story.ended(EAST, 10.0)
    for n in range(60):
        story.done(f"job {n}", 1.0 + n / 2, WEST)


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


@sound
def who_does_something_before_he_finds_the_dead_connection_is_given_the_same_time(story: Story) -> None:
    """The one settlement had been answered before; the call that it waits for was lost in the first fault."""
    story.fault("forget", [EAST], 2.0, 2.1)
    story.done("answered already", 2.3, EAST)
    story.fault("terminate", [EAST, WEST], 2.5, 2.6)
    for n in range(60):
        story.done(f"job {n}", 1.0 + n / 2, WEST)
    story.done("late", 22.5, EAST)


@breaks("everything_comes_back")
def who_waits_longer_than_for_a_dead_connection_has_no_excuse(story: Story) -> None:
    story.fault("forget", [EAST], 2.0, 2.1)
    story.done("answered already", 2.3, EAST)
    story.fault("terminate", [EAST, WEST], 2.5, 2.6)
    for n in range(80):
        story.done(f"job {n}", 1.0 + n / 2, WEST)
    story.done("too late", 29.0, EAST)


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


def killed_before_a_bury(story: Story, hits: list[str]) -> None:
    """A worker is killed, and a second later nothing goes through for the workers in `hits`; one of them is replaced
    meanwhile. The job of the first one runs again only afterwards.
    """
    story.submitted("a")
    story.granted(EAST, "a", 1, 1.0)
    story.ran(EAST, "a", 1, 1.01, None)
    story.fault("kill", [EAST], 1.5, 1.6)
    story.ended(EAST, 1.55)
    story.started("worker-north", 1.58)
    story.done("b", 2.0, WEST)
    story.fault("bury", hits, 2.5, 29.0)
    story.ended(WEST, 10.0)
    story.started("worker-heir", 10.1)
    story.worked("worker-heir", "a", 2, 30.0, 30.1)
    story.done("c", 30.0, "worker-north")
    story.stored("a", fence=2)


@sound
def the_job_of_a_dead_worker_waits_while_nothing_goes_through_for_anybody(story: Story) -> None:
    """The replacement that starts during the fault is cut off as well, although the fault could not name it."""
    killed_before_a_bury(story, [WEST, "worker-north"])


@breaks("what_the_dead_held_runs_again")
def the_job_of_a_dead_worker_waits_though_another_worker_is_well(story: Story) -> None:
    killed_before_a_bury(story, [WEST])
