"""The progress display: wrong figures are worse than none."""

import asyncio
import io
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from leaseway.domain.limits.limit import Rate
from leaseway.imports.domain.partition import make_shard
from leaseway.imports.domain.run_state import RunRow, ShardRow, ShardState
from leaseway.imports.run import progress_view
from leaseway.imports.run.assembly import load_import
from leaseway.imports.run.progress import (
    ProgressTracker,
    RequestBudget,
    RunningShard,
    RunSnapshot,
    ShardProblem,
    completed_share,
    tightest,
)
from leaseway.imports.run.progress_view import LINE_SECONDS, POLL_SECONDS, ProgressView, asked, frame, line, span, watch

FIFTY = Rate(1_000_000, 50)
WAITING, RUNNING, DONE, SPLIT, PARKED = ShardState


def run_row(**changes: Any) -> RunRow:
    return RunRow(id="ocm-1", source="ocm", spec_hash="", started_at=0, **changes)


def row(
    predicate: Mapping[str, Any], state: ShardState = RUNNING, estimate: int | None = None, **changes: Any
) -> ShardRow:
    shard = make_shard("ocm", str(predicate), predicate, estimate)
    return ShardRow(run="ocm-1", shard=shard, state=state, fence=1, **{"cursor": None, **changes})


# -- completed share --


def test_where_the_cursors_stand_in_their_ranges_is_how_far_it_is() -> None:
    """Shards may be few and large, so counting finished shards would show no progress for hours."""
    shards = [
        row({"id": [0, 1_000]}, DONE, rows=3),
        row({"id": [1_000, 2_000]}, cursor={"after": 1_499}),
        row({"id": [2_000, 3_000]}, WAITING),
        row({"id": [3_000, None]}, WAITING),
    ]
    assert completed_share(run_row(id_max=3_999), shards) == pytest.approx(1_500 / 4_000)


def test_the_last_range_has_no_end_and_stops_nobody_from_measuring() -> None:
    """A run without a recorded largest id must still be measured by its other ranges."""
    shards = [row({"id": [0, 1_000]}, DONE), row({"id": [1_000, None]}, cursor={"after": 70_000})]
    assert 0.9 < completed_share(run_row(), shards) <= 1.0


def test_estimated_rows_go_before_ids_and_an_estimate_that_was_too_low_never_exceeds_the_whole() -> None:
    """Progress above 100 percent makes all other figures doubtful."""
    shards = [
        row({"country": ["ES"]}, estimate=100, rows=150),
        row({"country": ["FR"]}, WAITING, estimate=150),
        row({"country": ["IT"]}, DONE, estimate=900, rows=100),
    ]
    assert completed_share(run_row(), shards) == pytest.approx(250 / 400)


def test_without_ids_and_estimates_shards_are_counted() -> None:
    """A run without estimates still needs a progress figure."""
    shards = [row({"country": ["ES"]}, DONE), row({"country": ["FR"]}), row({"country": ["IT"]}, PARKED)]
    assert completed_share(run_row(), [*shards, row({"country": ["NL"]}, WAITING)]) == pytest.approx(0.5)


def test_a_split_shard_counts_for_what_it_has_read_and_its_children_for_the_rest() -> None:
    """Otherwise a split would make the progress bar jump ahead or back."""
    parent = row({"id": [0, 1_000]}, cursor={"after": 399})
    before = completed_share(run_row(), [parent, row({"id": [1_000, 2_000]}, WAITING)])
    children = [row({"id": [400, 700]}, WAITING), row({"id": [700, 1_000]}, WAITING)]
    split = row({"id": [0, 1_000]}, SPLIT, cursor={"after": 399})
    assert completed_share(run_row(), [split, *children, row({"id": [1_000, 2_000]}, WAITING)]) == pytest.approx(before)


def test_a_run_without_shards_is_nowhere() -> None:
    """A division by zero would end the display of a run that has just started."""
    assert completed_share(run_row(), []) == 0


# -- rates --


def seen(watching: ProgressTracker, at: float, rows: int, requests: int = 0, after: int = 0) -> RunSnapshot:
    shard = row({"id": [0, 10_000]}, rows=rows, requests=requests, cursor={"after": after - 1})
    return watching.update(at, run_row(), [shard])


def test_paces_are_those_of_the_last_seconds() -> None:
    """An average over the whole run hides that it is stalled now."""
    watching = ProgressTracker(FIFTY)
    for second in range(10):
        snapshot = seen(watching, second, rows=second * 1_000, requests=second * 40)
    assert (snapshot.rows_per_second, snapshot.requests_per_second) == (1_000, 40)
    for second in range(10, 20):
        snapshot = seen(watching, second, rows=9_000, requests=360)
    assert (snapshot.rows_per_second, snapshot.requests_per_second, snapshot.seconds) == (0, 0, 19)


def test_a_resumed_run_does_not_count_what_was_there_as_its_pace() -> None:
    """The first poll finds a million rows that were not written in this second."""
    watching = ProgressTracker()
    assert seen(watching, 100.0, rows=1_000_000).rows_per_second == 0
    assert seen(watching, 100.1, rows=1_000_100).rows_per_second == pytest.approx(100)


def test_the_time_left_follows_from_the_pace_and_is_not_guessed_too_early() -> None:
    """An estimate from one sample can be wrong by hours."""
    watching = ProgressTracker()
    assert seen(watching, 0, 0).seconds_left is None
    assert seen(watching, 1, 0, after=1_000).seconds_left is None
    assert seen(watching, 4, 0, after=4_000).seconds_left == pytest.approx(6)
    assert seen(watching, 5, 0, after=10_000).seconds_left == 0


def test_a_run_that_stands_still_names_no_time() -> None:
    """A time left for a stalled run would hide that it is stalled."""
    watching = ProgressTracker()
    for second in range(30):
        snapshot = seen(watching, second, 0, after=5_000)
    assert snapshot.seconds_left is None


def test_of_several_limits_the_tightest_one_is_shown() -> None:
    """The user must see the limit that actually slows the run down."""
    day = Rate(86_400_000_000, 20_000)
    assert tightest([FIFTY, day]) is day
    assert tightest([]) is None


# -- display --


def test_reactions_errors_and_the_budget_are_shown() -> None:
    """A run that is in trouble must not look healthy."""
    shards = [
        row({"id": [0, 10]}, RUNNING, guards={"empty_page": 2}, why="HTTP 503", quarantined=1),
        row({"id": [10, 20]}, PARKED, guards={"empty_page": 1, "bad_rows": 1}, why="too many", quarantined=2),
        row({"id": [20, 30]}, DONE, why="was tried again once"),
    ]
    snapshot = ProgressTracker().update(0, run_row(requests_max=100, requests=40), shards)
    assert (snapshot.guards, snapshot.quarantined) == ({"empty_page": 3, "bad_rows": 1}, 3)
    assert snapshot.budget == RequestBudget(40, 100)
    assert [(each.why, each.is_parked) for each in snapshot.problems] == [("HTTP 503", False), ("too many", True)]
    assert (snapshot.shards, snapshot.ended, snapshot.running) == (3, 2, 1)


def snapshot_with(running: int = 12, **changes: Any) -> RunSnapshot:
    strips = [RunningShard(f"id=00001{number:04}-000020000", 2_500, number / running) for number in range(running)]
    plain: dict[str, Any] = {
        "run": "ocm-1763291234567", "seconds": 61.4, "shards": 48, "ended": 19, "running": running, "rows": 125_000,
        "requests": 500, "share": 0.52, "rows_per_second": 12_290.4, "requests_per_second": 47.84,
        "seconds_left": 11.2, "limit": FIFTY, "running_shards": strips,
    }  # fmt: skip
    return RunSnapshot(**{**plain, **changes})


def drawn(snapshot: RunSnapshot, width: int) -> list[str]:
    console = Console(width=width, file=io.StringIO(), force_terminal=True, color_system=None)
    console.print(frame(snapshot, "ocm → poi", width))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [80, 120])
def test_a_frame_has_all_figures_and_fits(width: int) -> None:
    """A line that wraps would destroy the redrawn display."""
    lines = drawn(snapshot_with(guards={"empty_page": 3}, budget=RequestBudget(641, 2_000)), width)
    text = " ".join(" ".join(lines).split())
    for figure in (
        "52%", "125,000 rows", "0:11 left", "12,290 rows/s", "47.8 of 50 requests/s", "19 of 48 shards, 12 at work",
        "budget 641 of 2,000", "empty_page 3", "run ocm-1763291234567", "id=000010000-000020000",
    ):  # fmt: skip
        assert figure in text
    assert max(map(len, lines)) <= width


def test_wide_terminals_show_more_shards_and_narrow_ones_say_how_many_are_not_shown() -> None:
    """Hidden shards must be counted, or the display looks complete."""
    assert "and 4 more" in "\n".join(drawn(snapshot_with(running=12), 80))
    wide = "\n".join(drawn(snapshot_with(running=12), 120))
    assert "more" not in wide
    assert wide.count("-000020000") == 12


@pytest.mark.parametrize("width", [80, 120])
def test_a_frame_keeps_its_height_whoever_is_at_work(width: int) -> None:
    """A table that changes its height cannot be read."""
    heights = {len(drawn(snapshot_with(running=running), width)) for running in (1, 3, 16, 40)}
    assert len(heights) == 1


def test_a_shard_whose_size_nobody_knows_has_no_bar() -> None:
    """A bar for an unknown size would show invented progress."""
    known = drawn(snapshot_with(running=1, running_shards=[RunningShard("all", 7, 0.5)], share=0), 80)
    unknown = drawn(snapshot_with(running=1, running_shards=[RunningShard("all", 7, None)], share=0), 80)
    (bar,), (none,) = ([each for each in lines if each.startswith("all")] for lines in (known, unknown))
    assert "━" in bar
    assert none.split() == ["all", "7"]


def test_troubles_are_told_on_one_line_each_and_not_without_end() -> None:
    """Twenty long errors would push the figures off the screen."""
    troubles = [ShardProblem(f"id={number}", "HTTP 503 " * 40, number == 0) for number in range(20)]
    lines = drawn(snapshot_with(problems=troubles), 80)
    assert sum(each.startswith("parked: id=0: HTTP 503") for each in lines) == 1
    assert sum(each.startswith("tried again: ") for each in lines) == 2


def test_a_limit_is_shown_in_its_own_window() -> None:
    """Users compare the figure with the limit in their spec, which has the same unit."""
    assert asked(snapshot_with(limit=Rate(60_000_000, 100), requests_per_second=1.5)) == "90.0 of 100 requests/min"
    assert asked(snapshot_with(limit=Rate(2_500_000, 100), requests_per_second=4)) == "10.0 of 100 requests/2.5 s"
    assert asked(snapshot_with(limit=None)) == "47.8 requests/s"


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0:00"), (59.6, "1:00"), (3_599, "59:59"), (3_661, "1:01:01")])
def test_spans_are_read_at_a_glance(seconds: float, text: str) -> None:
    """Rounding must not show 0:60."""
    assert span(seconds) == text


def test_elsewhere_there_is_a_line_every_two_seconds() -> None:
    """Eight frames a second would flood a log."""
    console = Console(width=80, file=io.StringIO())
    with ProgressView(console, "ocm → poi") as screen:
        for tenth in range(100):
            screen.show(snapshot_with(seconds=tenth / 10))
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert lines == [line(snapshot_with())] * int(9.9 / LINE_SECONDS)


def test_what_stays_on_the_terminal_is_how_far_it_came_and_no_pace() -> None:
    """Workers stop one after the other, so the rate of the last seconds is not that of the run."""
    console = Console(width=80, file=io.StringIO(), force_terminal=True, color_system=None)
    with ProgressView(console, "ocm → poi") as screen:
        screen.show(snapshot_with())
    assert isinstance(console.file, io.StringIO)
    last = console.file.getvalue().rpartition("ocm → poi")[2]
    assert "125,000 rows" in last
    assert "19 of 48 shards" in last
    assert "rows/s" not in last


def test_a_line_says_what_went_wrong() -> None:
    """Logs without a terminal show only this line."""
    text = line(snapshot_with(quarantined=5, problems=[ShardProblem("a", "b", True), ShardProblem("c", "d", False)]))
    assert text.endswith("0:11 left, in quarantine 5, parked 1")


# -- polling --

SPEC = """
version = 1
[source]
name = "people"
file = "people.jsonl"
[resource]
key = "id"
[sink]
url = "sqlite:///{folder}/data.db"
table = "people"
"""


def waiting_process() -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)


async def test_watching_ends_with_the_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The workers decide when the run is over, so a slow display must not delay the end."""
    (tmp_path / "people.jsonl").write_text('{"id": 1}\n')
    (tmp_path / "spec.toml").write_text(SPEC.format(folder=tmp_path))
    parts = load_import(tmp_path / "spec.toml")
    await parts.sink.open()
    await parts.sink.runs.start(run_row(), [make_shard("people", "all", {}, 10)])
    await parts.sink.close()
    console = Console(width=80, file=io.StringIO(), force_terminal=True, color_system=None)
    with waiting_process() as worker:
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(watch(parts, "ocm-1", lambda: worker.poll() is None, console))
            assert isinstance(console.file, io.StringIO)
            while "0 of 1 shards" not in console.file.getvalue():
                await asyncio.sleep(0.02)
                assert not watching.done()
            monkeypatch.setattr(progress_view, "POLL_SECONDS", 600.0)
            await asyncio.sleep(2 * POLL_SECONDS)  # the last poll that was made in time
            async with asyncio.timeout(60):
                worker.communicate(b"\n")
                await watching
    assert "people → people" in console.file.getvalue()
