"""The demo's check of its result detects every kind of error; a check that always passes proves nothing."""

import io
import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console
from tests.sqlite_files import open_sqlite

from leaseway.demo.main import command
from leaseway.demo.report import as_dict, print_report
from leaseway.demo.runner import DemoSettings, Kill, Shown
from leaseway.demo.spec import Files
from leaseway.demo.verify import DemoVerdict, JournaledRequest, Place, judge, judge_files
from leaseway.demo.work_folder import WorkFolder
from leaseway.imports.domain.run_state import RunState

SECOND_NS = 1_000_000_000
TRUTH: dict[int, Place] = {
    101: (1_000, "Zürich", 214, 47.4, 8.5),
    102: (2_000, "Quito", 62, -0.2, -78.5),
    104: (3_000, "Apia", None, -13.8, -171.8),
}
ROWS = list(TRUTH.items())


def page(at_seconds: float, after: int, status: int = 200, limit: int = 250) -> JournaledRequest:
    return JournaledRequest(round(at_seconds * SECOND_NS), status, f"/v3/poi?greaterthanid={after}&maxresults={limit}")


JOURNAL = [page(0.0, 0), page(0.5, 102), page(1.0, 104)]


def judged(
    rows: list[tuple[int, Place]] = ROWS, journal: list[JournaledRequest] = JOURNAL, inserted: int | None = None
) -> DemoVerdict:
    return judge(TRUTH, rows, journal, limit=2, inserted=len(rows) if inserted is None else inserted)


def test_one_row_per_place_and_no_window_over_the_limit_is_clean() -> None:
    """A correct import must pass, or the demo would report errors that do not exist."""
    verdict = judged()
    assert verdict.is_clean
    assert (verdict.places, verdict.rows, verdict.requests, verdict.most_in_a_second) == (3, 3, 3, 2)
    assert verdict.requests_per_second == pytest.approx(2)


def test_a_place_that_is_not_in_the_table_is_missing() -> None:
    """Comparing only the rows that exist would not detect it."""
    verdict = judged(rows=[ROWS[0], ROWS[2]])
    assert (verdict.missing, verdict.is_clean) == ((102,), False)


def test_a_row_without_a_place_is_extra() -> None:
    """An import must not invent rows."""
    verdict = judged(rows=[*ROWS, (103, TRUTH[101])])
    assert (verdict.extra, verdict.is_clean) == ((103,), False)


def test_a_place_with_two_rows_is_a_duplicate() -> None:
    """This happens if the killed worker and its successor both write a page."""
    verdict = judged(rows=[*ROWS, ROWS[1]])
    assert (verdict.doubled, verdict.is_clean) == ((102,), False)


@pytest.mark.parametrize(
    "other",
    [(9, "Quito", 62, -0.2, -78.5), (2_000, "Lima", 62, -0.2, -78.5), (2_000, "Quito", 62, -0.2, 78.5)],
    ids=["stamp", "title", "place"],
)
def test_a_row_with_other_values_is_different(other: Place) -> None:
    """Correct ids with wrong values are not a correct import."""
    verdict = judged(rows=[ROWS[0], (102, other), ROWS[2]])
    assert (verdict.different, verdict.missing, verdict.is_clean) == ((102,), (), False)


def test_a_429_is_an_error_even_if_the_retry_succeeded() -> None:
    """A 429 shows that the limit was exceeded."""
    verdict = judged(journal=[*JOURNAL, page(9.0, 0, status=429)])
    assert (verdict.refused, verdict.is_clean) == (1, False)


def test_a_window_over_the_limit_is_found_wherever_it_starts() -> None:
    """Three requests fall into the second that starts at 0.5, although no calendar second has more than two."""
    verdict = judged(journal=[page(0.5, 0), page(0.9, 102), page(1.4, 104)])
    assert (verdict.most_in_a_second, verdict.is_clean) == (3, False)


def test_a_row_that_was_counted_twice_is_an_error() -> None:
    """The reports of real imports rely on these counters."""
    verdict = judged(inserted=4)
    assert (verdict.is_exact, verdict.is_clean) == (False, False)


def test_repeated_pages_are_counted_and_confirmations_are_not() -> None:
    """A shard confirms its end by requesting one row twice, and the retry of a failed request is not a repeat."""
    confirmed = [page(3.0, 104, limit=1), page(4.0, 104, limit=1)]
    assert judged(journal=[*JOURNAL, *confirmed, page(5.0, 500, status=500), page(6.0, 500)]).pages_again == 0
    assert judged(journal=[*JOURNAL, page(5.0, 102)]).pages_again == 1


def written(folder: Path, rows: list[tuple[int, Place]]) -> Files:
    files = Files(folder)
    files.truth.write_text(json.dumps([[number, *place] for number, place in TRUTH.items()]))
    files.journal.write_text(json.dumps(JOURNAL))
    with open_sqlite(files.places) as table:
        table.execute("CREATE TABLE poi (external_id TEXT, stamp, title, country, latitude, longitude)")
        table.executemany("INSERT INTO poi VALUES (?, ?, ?, ?, ?, ?)", [(str(number), *row) for number, row in rows])
    return files


def test_the_check_reads_the_rows_the_places_and_the_journal(tmp_path: Path) -> None:
    """It must not rely on leaseway's own counters, because those are being checked."""
    assert judge_files(written(tmp_path, ROWS), 2, 3) == judged()


def shown_with(verdict: DemoVerdict, state: RunState = RunState.COMPLETE) -> Shown:
    settings, kill = DemoSettings(3, 4, 2, 1), Kill(2, 4242, 4)
    return Shown(settings, verdict, kill, state, 48, 0, 4, 250, 2.0, 3, "no work", 64_000_000, is_real=True)


@pytest.mark.parametrize("width", [80, 120])
def test_the_report_shows_errors_with_their_ids(tmp_path: Path, width: int) -> None:
    """A report that only shows success would hide a defect."""
    rows = [ROWS[0], ROWS[0], (103, TRUTH[101])]
    written(tmp_path, rows)
    shown = shown_with(judged(rows))
    assert as_dict(shown)["ok"] is False
    console = Console(width=width, file=io.StringIO())
    print_report(console, shown, WorkFolder(tmp_path, is_kept=True))
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert [line.split()[-1] for line in lines if line.strip().startswith("missing")] == ["104"]
    assert [line.split()[-3:] for line in lines if line.strip().startswith("duplicates")] == [["1", "ids", "101"]]
    assert max(map(len, (line for line in lines if "sqlite3" not in line and "status" not in line))) <= width


def test_an_incomplete_run_is_not_ok() -> None:
    """All rows may exist while the end of a shard has not been confirmed yet."""
    assert as_dict(shown_with(judged()))["ok"] is True
    assert as_dict(shown_with(judged(), RunState.PARTIAL))["ok"] is False


@pytest.mark.parametrize(
    ("rows", "journal", "told"),
    [
        (ROWS[1:], JOURNAL, "missing 1 ids 101"),
        ([*ROWS, ROWS[0]], JOURNAL, "duplicates 1 ids 101"),
        (ROWS, [*JOURNAL, page(9, 0, status=429)], "refused with 429 1"),
        (ROWS, [page(0.5, 0), page(0.9, 102), page(1.4, 104)], "most in any second 3 2 are permitted"),
    ],
    ids=["missing", "duplicate", "429", "overfull window"],
)
def test_each_error_is_reported_and_the_demo_exits_with_1(
    rows: list[tuple[int, Place]],
    journal: list[JournaledRequest],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A script that runs the demo checks only its exit code."""

    def show(settings: DemoSettings, folder: Path, screen: object) -> Shown:
        written(folder, rows)
        return shown_with(judged(rows, journal))

    monkeypatch.setattr("leaseway.demo.runner.show", show)
    answer = CliRunner().invoke(command, ["--keep", str(tmp_path)])
    assert answer.exit_code == 1
    assert told in " ".join(answer.output.split())
    assert f"the evidence is in {tmp_path}" in answer.output.replace("\n", "")
