"""The benchmark of rolling deploys runs with real worker processes."""

from benchmarks.deploys import run


def test_a_quick_deploy_fails_no_job_and_repeats_none() -> None:
    """Here the figures decide: they count jobs, not time."""
    figures = run(["deploy_sqlite"], quick=True, repeats=None).figures
    assert [figure.value for figure in figures] == [0, 0]
