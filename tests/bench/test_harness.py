"""The arithmetic behind the numbers that we publish."""

from collections.abc import Callable
from datetime import date
from pathlib import Path

import pytest
from benchmarks.harness import Figure, Target, in_turns, median, orders, shown, spread
from benchmarks.results import BEGIN, END, as_markdown, between_markers, provenance, write

from leaseway.bench.measure import percentile


def test_every_contestant_gets_to_run_first_and_last() -> None:
    """Who always runs second is measured with a warm cache."""
    rounds = orders(["a", "b", "c"], 6)
    assert {turn[0] for turn in rounds} == {turn[-1] for turn in rounds} == {"a", "b", "c"}
    assert all(sorted(turn) == ["a", "b", "c"] for turn in rounds)


def test_two_contestants_alternate() -> None:
    """Turning the list and reversing it must not cancel each other out."""
    assert {tuple(turn) for turn in orders(["a", "b"], 4)} == {("a", "b"), ("b", "a")}


def test_a_contestant_gets_a_fresh_folder_each_time() -> None:
    """A file of the last round would be measured instead of an empty one."""
    seen: list[Path] = []

    def measure(folder: Path) -> float:
        assert not list(folder.iterdir())
        (folder / "work.db").touch()
        seen.append(folder)
        return float(len(seen))

    assert in_turns({"only": measure}, 3) == {"only": [1.0, 2.0, 3.0]}
    assert len(set(seen)) == 3
    assert not any(folder.exists() for folder in seen)


def test_one_slow_round_does_not_move_the_median() -> None:
    """A neighbour on the machine must not decide."""
    assert median([10.0, 11.0, 1_000.0]) == 11.0
    assert spread([10.0, 11.0, 1_000.0]) == "3 rounds, 10 to 1,000"


@pytest.mark.parametrize(("percent", "expected"), [(50, 50.0), (99, 99.0), (100, 100.0), (0, 1.0)])
def test_a_percentile_is_a_value_that_was_measured(percent: float, expected: float) -> None:
    """Interpolation would invent latencies that nobody had."""
    assert percentile([float(value) for value in range(100, 0, -1)], percent) == expected


def test_the_p99_of_few_values_is_the_worst_of_them() -> None:
    """Rounding down would drop the one outlier that matters."""
    assert percentile([1.0, 2.0, 50.0], 99) == 50.0


@pytest.mark.parametrize(
    ("target", "value", "verdict"),
    [(Target("≥", 8), 7.99, "MISSED"), (Target("≥", 8), 8, "met"), (Target("≤", 3), 3.01, "MISSED"), (None, 1, "")],
)
def test_a_missed_target_is_called_missed(target: Target | None, value: float, verdict: str) -> None:
    """A results page that cannot disappoint is an advertisement."""
    assert Figure("drain", value, "×", target).verdict == verdict


@pytest.mark.parametrize(("value", "text"), [(31_234.6, "31,235"), (99.96, "100"), (2.345, "2.35"), (0.0123, "0.0123")])
def test_numbers_keep_three_digits_that_matter(value: float, text: str) -> None:
    """More would pretend a precision that a noisy machine does not have."""
    assert shown(value) == text


def test_the_table_has_a_row_for_each_figure() -> None:
    """Readers compare lines."""
    rows = as_markdown([Figure("drain", 1_234, "jobs/s", Target("≥", 20_000), "5 rounds")]).splitlines()
    assert rows[0].count("|") == rows[1].count("|") == rows[2].count("|")
    assert rows[2] == "| drain | ≥ 20,000 jobs/s | 1,234 jobs/s | **MISSED** | 5 rounds |"


def test_only_what_stands_between_the_markers_is_replaced(tmp_path: Path) -> None:
    """What people wrote on the page must survive every run."""
    file = tmp_path / "RESULTS.md"
    file.write_text(f"# Title\n\n{BEGIN}\n\nold\n\n{END}\n\nthe end\n")
    for _ in range(2):
        write(file, "new\n")
    assert file.read_text() == f"# Title\n\n{BEGIN}\n\nnew\n\n{END}\n\nthe end\n"


@pytest.mark.parametrize("spoil", [lambda text: text.replace(BEGIN, ""), lambda text: text.replace(END, "")])
def test_a_page_without_its_markers_is_left_alone(spoil: Callable[[str], str]) -> None:
    """Guessing a place would overwrite somebody's text."""
    with pytest.raises(ValueError, match="markers"):
        between_markers(spoil(f"a {BEGIN} b {END} c"), "new")


def test_the_results_say_where_they_come_from() -> None:
    """A number without versions, machine and command cannot be repeated."""
    text = provenance("./dev bench drain", date(2026, 1, 2))
    for part in ("2026-01-02", "Python 3.", "SQLite 3.", "leaseway 0.", "CPUs", "`./dev bench drain`"):
        assert part in text


def test_the_published_page_has_its_markers() -> None:
    """Otherwise the first `--write` fails after an hour of measuring."""
    page = Path(__file__).parents[2] / "benchmarks" / "RESULTS.md"
    assert "new" in between_markers(page.read_text("utf-8"), "new")
