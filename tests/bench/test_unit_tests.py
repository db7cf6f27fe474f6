"""The benchmark of users' tests runs. Measured values are not checked: this machine may be busy."""

from benchmarks.unit_tests import CASES, run


def test_a_quick_run_ends_with_its_figure() -> None:
    """A benchmark that fails is noticed when its figure is needed."""
    (figure,) = run(list(CASES), quick=True, repeats=None).figures
    assert figure.what == "a unit test in virtual time"
    assert figure.value > 0
