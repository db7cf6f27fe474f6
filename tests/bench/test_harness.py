"""The arithmetic behind the published benchmark results."""

import sys
from datetime import date
from pathlib import Path

import pytest
from benchmarks import charts
from benchmarks.__main__ import BENCHES
from benchmarks.harness import Figure, Target, in_turns, median, orders, shown, spread
from benchmarks.postgres.cases import Rate
from benchmarks.processes import rate_of, run_together, start_seconds
from benchmarks.results import as_markdown, between_markers, markers, provenance, table_rows, write

from leaseway.bench.measure import percentile


def test_every_contestant_gets_to_run_first_and_last() -> None:
    """A contestant that always runs second would be measured with a warm cache."""
    rounds = orders(["a", "b", "c"], 6)
    assert {turn[0] for turn in rounds} == {turn[-1] for turn in rounds} == {"a", "b", "c"}
    assert all(sorted(turn) == ["a", "b", "c"] for turn in rounds)


def test_two_contestants_alternate() -> None:
    """With two contestants, rotating the list and reversing it must not cancel each other out."""
    assert {tuple(turn) for turn in orders(["a", "b"], 4)} == {("a", "b"), ("b", "a")}


def test_a_contestant_gets_a_fresh_folder_each_time() -> None:
    """Otherwise it would be measured on the file of the previous round instead of an empty one."""
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
    """Other load on the machine must not decide a comparison."""
    assert median([10.0, 11.0, 1_000.0]) == 11.0
    assert spread([10.0, 11.0, 1_000.0]) == "3 rounds, 10 to 1,000"


def test_workers_that_ran_together_are_timed_from_the_first_claim_to_the_last_settlement() -> None:
    """Adding up their rates would leave out the time in which one of them had no job left."""
    first = {"count": 60, "begun_ns": 1_000_000_000, "ended_ns": 3_000_000_000}
    second = {"count": 40, "begun_ns": 2_000_000_000, "ended_ns": 5_000_000_000}
    idle = {"count": 0, "begun_ns": 0, "ended_ns": 9_000_000_000}
    assert rate_of([first, second, idle], 100) == 25.0


def test_the_start_of_processes_is_measured_and_counts_once() -> None:
    """A worker that needs seconds to start looks as fast as another one if only its rate is shown."""
    says = 'import time; print(flush=True); input(); print(\'{"count": 1, "begun_ns": %d}\' % time.monotonic_ns())'
    (figures,) = run_together([[sys.executable, "-c", says]])
    assert 0 < start_seconds([figures, {"start_ns": 1}]) == figures["start_ns"] / 1e9
    assert Rate(100, start_seconds=3, jobs=100).with_start() == 25


@pytest.mark.parametrize("settled", [99, 101])
def test_a_job_that_was_lost_or_done_twice_spoils_the_measurement(settled: int) -> None:
    """A queue that loses or repeats jobs can be fast without being correct."""
    with pytest.raises(RuntimeError, match=f"{settled} jobs"):
        rate_of([{"count": settled, "begun_ns": 0, "ended_ns": 1_000_000_000}], 100)


@pytest.mark.parametrize(("percent", "expected"), [(50, 50.0), (99, 99.0), (100, 100.0), (0, 1.0)])
def test_a_percentile_is_a_value_that_was_measured(percent: float, expected: float) -> None:
    """Interpolation would publish latencies that did not occur."""
    assert percentile([float(value) for value in range(100, 0, -1)], percent) == expected


def test_the_p99_of_few_values_is_the_worst_of_them() -> None:
    """Rounding down would drop the one outlier that matters."""
    assert percentile([1.0, 2.0, 50.0], 99) == 50.0


@pytest.mark.parametrize(
    ("target", "value", "verdict"),
    [(Target("≥", 8), 7.99, "MISSED"), (Target("≥", 8), 8, "met"), (Target("≤", 3), 3.01, "MISSED"), (None, 1, "")],
)
def test_a_missed_target_is_called_missed(target: Target | None, value: float, verdict: str) -> None:
    """Readers must see which targets are not reached."""
    assert Figure("drain", value, "×", target).verdict == verdict


@pytest.mark.parametrize(("value", "text"), [(31_234.6, "31,235"), (99.96, "100"), (2.345, "2.35"), (0.0123, "0.0123")])
def test_numbers_keep_three_digits_that_matter(value: float, text: str) -> None:
    """More digits would suggest a precision that the measurement does not have."""
    assert shown(value) == text


def test_the_table_has_a_row_for_each_figure() -> None:
    """A figure without a row would be measured but never published."""
    rows = as_markdown([Figure("drain", 1_234, "jobs/s", Target("≥", 20_000), "5 rounds")]).splitlines()
    assert rows[0].count("|") == rows[1].count("|") == rows[2].count("|")
    assert rows[2] == "| drain | ≥ 20,000 jobs/s | 1,234 jobs/s | **MISSED** | 5 rounds |"


def test_rates_with_start_up_have_a_column_if_there_are_any() -> None:
    """The column must not appear in the tables of other suites, and charts read the measured values."""
    figures = [Figure("drain", 10, "jobs/s", None, "5 rounds", 4), Figure("memory", 35, "MB")]
    header, _, drain, memory = as_markdown(figures).splitlines()
    assert header == "| figure | target | measured |  | with start-up | how |"
    assert drain == "| drain |  | 10 jobs/s |  | 4 jobs/s | 5 rounds |"
    assert memory == "| memory |  | 35 MB |  |  |  |"


def test_only_what_stands_between_the_markers_is_replaced(tmp_path: Path) -> None:
    """Text around the figures, and the figures of other stores, must survive every run."""
    file = tmp_path / "RESULTS.md"
    begin, end = markers("sqlite")
    other = "\n\nhours of measuring\n\n".join(markers("postgres"))
    file.write_text(f"# Title\n\n{begin}\n\nold\n\n{end}\n\n{other}\n\nthe end\n")
    for _ in range(2):
        write(file, "sqlite", "new\n")
    assert file.read_text() == f"# Title\n\n{begin}\n\nnew\n\n{end}\n\n{other}\n\nthe end\n"


def test_a_run_of_some_cases_keeps_the_figures_of_the_others(tmp_path: Path) -> None:
    """A suite takes half an hour, and a run of one of its cases would delete what the others have measured."""
    file = tmp_path / "RESULTS.md"
    old = [Figure("drain", 1, "/s"), Figure("slowest", 2, "ms"), Figure("slowest", 3, "ms"), Figure("submit", 4, "/s")]
    file.write_text("\n\nYesterday.\n\n".join(markers("sqlite")))
    write(file, "sqlite", f"Monday.\n\n{as_markdown(old)}")
    for day in ("Tuesday", "Wednesday"):
        new = as_markdown([Figure("drain", 10, "/s", with_start=5), Figure("slowest", 20, "ms")])
        write(file, "sqlite", f"{day}.\n\n{new}", is_whole=False)
    text = file.read_text()
    assert [(name, value) for name, _, value, *_ in table_rows(text)] == [
        ("drain", "10 /s"), ("slowest", "20 ms"), ("slowest", "3 ms"), ("submit", "4 /s")
    ]  # fmt: skip
    assert text.index("Wednesday.") < text.index("From earlier runs:") < text.index("Monday.")
    write(file, "sqlite", "Thursday.", is_whole=True)
    assert "From earlier runs:" not in file.read_text()


@pytest.mark.parametrize("missing", markers("sqlite"))
def test_a_page_without_its_markers_is_left_alone(missing: str) -> None:
    """Guessing a place could overwrite text on the page."""
    with pytest.raises(ValueError, match="markers"):
        between_markers(" b ".join(markers("sqlite")).replace(missing, ""), "sqlite", "new")


def test_the_results_say_where_they_come_from() -> None:
    """A figure without versions, machine and command cannot be reproduced."""
    text = provenance("./dev bench drain", date(2026, 1, 2), ["SQLite 3.40.1", "huey 3.5.4"])
    for part in ("2026-01-02", "Python 3.", "SQLite 3.40.1, huey 3.5.4", "leaseway 0.", "CPUs", "`./dev bench drain`"):
        assert part in text


@pytest.mark.parametrize("suite", [*BENCHES, charts.NAME])
def test_the_published_page_has_its_markers(suite: str) -> None:
    """Without them `--write` would fail after an hour of measuring."""
    page = Path(__file__).parents[2] / "benchmarks" / "RESULTS.md"
    assert "new" in between_markers(page.read_text("utf-8"), suite, "new")


TABLE = """
<!-- sqlite: written by ./dev bench --write -->
| figure | target | measured |  | how |
| --- | --- | --- | --- | --- |
| drain | ≥ 20,000 jobs/s | 26,500 jobs/s | met | 5 rounds |
| drain, times huey | ≥ 8 × | 8.24 × | met | best of 6 |
<!-- end of sqlite -->
<!-- mongodb: written by ./dev bench --write -->
| MongoDB, drain, one worker |  | 1,325 jobs/s |  | one round |
<!-- end of mongodb -->
"""


def test_charts_show_the_figures_of_the_tables() -> None:
    """A chart that was drawn by hand would keep the figures of an older run."""
    drawn = charts.draw(TABLE)
    assert f"  SQLite   26,500 jobs/s  {'█' * 40}  (target ≥ 20,000 jobs/s)\n  MongoDB   1,325 jobs/s  ██\n" in drawn
    assert drawn.count("?") == 2, "a question without figures is left out"


def test_the_published_charts_are_those_of_the_published_tables() -> None:
    """A table that was changed by hand needs `python -m benchmarks.charts`."""
    text = charts.RESULTS.read_text("utf-8")
    assert between_markers(text, charts.NAME, charts.draw(text)) == text
