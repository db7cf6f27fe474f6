"""Forking: threads, locks and connections of the parent do not work in the child process."""

import pytest
from tests.faults.harness import Lab

pytestmark = pytest.mark.slow


def test_an_app_that_was_not_used_before_a_fork_works_in_both_processes(lab: Lab) -> None:
    """Web servers import the application first and fork afterwards."""
    program = lab.start("fork", used_before=False)
    assert program.wait_for_exit() == 0, program.output()
    assert lab.history("refused") == []
    assert stored(lab) == acknowledged(lab)
    assert len(stored(lab)) == 20 + 20 + 5


def test_an_app_that_was_used_before_a_fork_is_refused_in_the_child(lab: Lab) -> None:
    """SQLite records its locks in memory, which the child inherits, and in the kernel, which the child does not
    inherit, so writes of the child could be lost. The parent must be able to continue."""
    program = lab.start("fork", used_before=True)
    assert program.wait_for_exit() == 0, program.output()
    assert [refusal["message"][:40] for refusal in lab.history("refused")] == [
        "the store was opened before this process"[:40]
    ]
    assert stored(lab) == acknowledged(lab)
    assert len(stored(lab)) == 5 + 20 + 5


def stored(lab: Lab) -> set[str]:
    return {id_ for (id_,) in lab.rows("SELECT id FROM jobs")}


def acknowledged(lab: Lab) -> set[str]:
    return {job for record in lab.history("acknowledged") for job in record["jobs"]}
