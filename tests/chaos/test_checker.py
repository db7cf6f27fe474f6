"""A checker that misses a violation proves nothing. Each history breaks one promise, and its rule must report it."""

from pathlib import Path

import pytest
from chaos import history
from chaos.verdict import RULES, page
from tests.chaos.story import EAST, Story
from tests.chaos.tales import BROKEN, SOUND, Tale


@pytest.mark.parametrize(("rule", "tale"), BROKEN, ids=[tale.__name__ for _, tale in BROKEN])
def test_a_broken_promise_is_noticed(rule: str, tale: Tale) -> None:
    """A checker that misses a broken history would pass every campaign."""
    story = Story()
    tale(story)
    verdict = story.verdict()
    assert rule in verdict.violations
    assert not verdict.is_good


@pytest.mark.parametrize("tale", SOUND, ids=[tale.__name__ for tale in SOUND])
def test_what_only_looks_odd_is_not_accused(tale: Tale) -> None:
    """A checker with false alarms is switched off."""
    story = Story()
    tale(story)
    assert story.verdict().violations == {}


def test_every_rule_has_a_tale() -> None:
    """A rule without an example of its violation may never be able to fail."""
    assert {rule for rule, _ in BROKEN} == {rule.__name__ for rule in RULES}


def test_every_rule_is_needed_by_some_tale_alone() -> None:
    """Otherwise the rule could be deleted unnoticed."""
    alone: set[str] = set()
    for _, tale in BROKEN:
        story = Story()
        tale(story)
        if len(violations := story.verdict().violations) == 1:
            alone.update(violations)
    assert alone == {rule.__name__ for rule in RULES}


def test_what_is_written_is_read_again_except_half_a_line(tmp_path: Path) -> None:
    """A process that is killed while it writes a line has recorded nothing with it."""
    journal = history.Journal(tmp_path, EAST)
    written = [history.Started(job="a", kind="quick", fence=1, attempt=1), history.Renewed(sent=1.0, kept=[("a", "t")])]
    for record in written:
        journal.write(record)
    journal.close()
    with (tmp_path / f"{EAST}.jsonl").open("ab") as file:
        file.write(b'{"event":"started","at":')
    assert list(history.read(tmp_path)) == [(EAST, record) for record in written]


def test_a_quiet_story_is_good_and_says_so() -> None:
    """A checker that reports violations where there are none is ignored soon."""
    story = Story()
    story.done("a")
    verdict = story.verdict()
    assert verdict.is_good
    assert "nothing lost" in "\n".join(page(verdict))


def test_a_bad_verdict_names_rule_and_job() -> None:
    """Without both, a campaign of an hour has to be repeated to find the cause."""
    story = Story()
    story.submitted("a")
    text = "\n".join(page(story.verdict()))
    assert "VIOLATED acknowledged_is_stored: 1" in text
    assert "job a (a) was acknowledged and is lost" in text


def test_the_slowest_return_after_each_fault_is_told() -> None:
    """The time to recover is a promise, and its worst case is what counts."""
    story = Story()
    story.fault("reset", [EAST], 2.0, 2.1)
    story.fault("reset", [EAST], 4.0, 4.1)
    story.done("a", 2.4, EAST)
    story.done("b", 5.0, EAST)
    assert story.verdict().recovered["reset"] == pytest.approx(5.15 - 4.1)


def test_the_return_from_a_long_fault_is_told_by_itself() -> None:
    """The slowest recovery may have followed a short fault, and says nothing about the long ones."""
    story = Story()
    story.fault("blackhole", [EAST], 2.0, 3.0)
    story.fault("blackhole", [EAST], 10.0, 55.0)
    story.done("a", 4.9, EAST)
    story.done("b", 56.0, EAST)
    assert "after 45.0 s of blackhole everything was back in: 1.1 s" in [*page(story.verdict())]
    assert len(story.verdict().lasting) == 1


def test_what_was_not_reached_is_a_zero() -> None:
    """A fault that never happened must not look like one that was survived."""
    reached = Story().verdict().reached
    assert reached["exchanges repeated"] == 0
    assert set(reached.values()) == {0}
