"""`./dev simulate`: its output and its exit code."""

from pathlib import Path

import pytest
from tests.simulation.campaign.__main__ import main

from leaseway.simulation.coverage import CATALOGUES


def test_a_campaign_says_what_it_reached(capsys: pytest.CaptureFixture[str]) -> None:
    """A campaign that never reached a fault has proved nothing about it."""
    assert main(["--seeds", "2", "--jobs", "1"]) == 0
    out = capsys.readouterr().out
    assert out.count("2 seeds, 0 violated") == len(CATALOGUES)
    assert "seeds/s" in out
    assert all(what in out for catalogue in CATALOGUES.values() for what in catalogue)


@pytest.mark.slow
def test_processes_share_a_campaign(capsys: pytest.CaptureFixture[str]) -> None:
    """The result must not depend on how many processes ran the seeds."""
    assert main(["--seeds", "12", "--jobs", "2", "--first", "100", "--scenario", "jobs"]) == 0
    assert "12 seeds, 0 violated" in capsys.readouterr().out


def test_a_violation_comes_with_the_command_that_repeats_it(capsys: pytest.CaptureFixture[str]) -> None:
    """A violation that cannot be replayed cannot be debugged."""
    assert main(["--seeds", "1", "--jobs", "1", "--sabotage", "attempt_uncounted"]) == 1
    out = capsys.readouterr().out
    assert "seed 0 violated: I14" in out
    assert "replay: ./dev simulate --seed 0 --sabotage attempt_uncounted" in out


def test_a_seed_is_replayed_with_its_trace(capsys: pytest.CaptureFixture[str]) -> None:
    """The trace is what a developer reads to find the cause."""
    assert main(["--seed", "3"]) == 0
    told = capsys.readouterr()
    assert "exchange" in told.err
    assert "virtual seconds" in told.out


def test_a_trace_can_go_into_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Traces are long, and comparing two of them needs files."""
    file = tmp_path / "trace.txt"
    assert main(["--seed", "3", "--trace", str(file)]) == 0
    assert "exchange" in file.read_text()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ["--seeds", "0"],
        ["--sabotage", "unsaid_is_free", "--scenario", "jobs"],
        ["--first", "-1"],
        ["--sabotage", "nothing"],
        ["--trace", "file"],
        ["--seeds", "many"],
    ],
)
def test_a_wrong_command_is_refused(arguments: list[str]) -> None:
    """A wrong option must not pass for a successful campaign."""
    with pytest.raises(SystemExit) as refused:
        main(arguments)
    assert refused.value.code == 2
