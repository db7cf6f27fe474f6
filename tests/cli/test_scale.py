"""leaseway scale: what the load needs now, and what the autoscaler would do with another one."""

from pathlib import Path
from xml.etree import ElementTree

import pytest
from tests.cli.place import Place

SVG = "{http://www.w3.org/2000/svg}"


def test_status_counts_and_gives_the_reason(place: Place) -> None:
    """It answers without a worker or a service, also on a machine where neither runs."""
    for _ in range(3):
        place.submit("add", "x=1")
    place.submit("add", "x=1", "--queue", "elsewhere")
    told = place.json("scale", "status", "--sample", "0")
    assert (told["desired_workers"], told["ready"], told["queues"]) == (1, 4, ["default", "elsewhere"])
    shown = place.ok("scale", "status", "--queue", "default", "--sample", "0").out
    assert "3 ready, 0 running" in shown
    assert "1 worker suffices" in shown


def test_status_shows_what_binds(place: Place) -> None:
    """An operator with a long queue must see that more workers would not help."""
    place.submit("add", "x=1")
    place.ok("lanes", "pause", "default")
    told = place.json("scale", "status", "--sample", "0")
    assert (told["desired_workers"], told["cause"]) == (0, "lane")
    assert told["bounds"] == [
        {"what": "lane", "name": "default of default", "starts_per_second": 0.0, "at_once": None}
    ]  # fmt: skip
    shown = place.ok("scale", "status", "--sample", "0").out
    assert "lane default of default binds: 0.0/s; 0 workers suffice" in shown


def test_a_limit_keeps_the_simulated_fleet_small(place: Place) -> None:
    """The question that the command is for: would more workers help? The same load without the limit needs them."""
    backlog = ("scale", "simulate", "--load", "0", "--backlog", "3600", "--concurrency", "4")
    limited, free = place.json(*backlog, "--limit", "1"), place.json(*backlog)
    assert (limited["workers_max"], free["workers_max"]) == (1, 8)
    assert limited["done"] > 3_500
    assert limited["samples"][10]["reason"].startswith("limit maps binds: 1.0/s; 1 worker suffices")


def test_a_simulation_is_drawn(place: Place) -> None:
    """People compare shapes: the burst is the long bars."""
    out = place.ok("scale", "simulate", "--load", "0:1,10m:5,20m:1", "--concurrency", "4", "--duration", "30m").out
    lines = out.splitlines()
    assert lines[0] == f"  0:00:00    1 {'█' * 4:<40}       0 wait"
    assert any("█" * 16 in line for line in lines)
    assert "worker hours" in out
    assert "wait" in lines[-1]


def test_a_recorded_load_is_replayed(place: Place, tmp_path: Path) -> None:
    """Yesterday's load is the best test of tomorrow's settings."""
    recorded = tmp_path / "load.csv"
    recorded.write_text("second,jobs\n0,1\n600,5\n1200,1\n")
    told = place.json("scale", "simulate", "--replay", str(recorded), "--duration", "30m", "--concurrency", "4")
    assert told == place.json(
        "scale", "simulate", "--load", "0:1,10m:5,20m:1", "--duration", "30m", "--concurrency", "4"
    )


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["simulate", "--load", "fast"], "load: cannot read 'fast'; write for example 0:1,10m:5,30m:1"),
        (["simulate", "--load", "5m:1"], "load: needs seconds that start at 0 and grow"),
        (["simulate", "--load", "-1"], "load: must be a number from 0 to 1,000 (is -1.0)"),
        (["simulate", "--service", "-1"], "service_seconds: must be a number from 0.001"),
        (["simulate", "--concurrency", "0"], "slots: must be between 1 and 10,000 (is 0)"),
        (["simulate", "--fleet", "min=3,max=2"], "fleet: min: must not exceed max (is 3, max is 2)"),
        (["simulate", "--load", "1", "--replay", "tasks.py"], "give either --load or --replay"),
        (["simulate", "--replay", "tasks.py"], "tasks.py: line 2: must be SECOND,JOBS_PER_SECOND"),
        (["status", "--concurrency", "0"], "--concurrency must be at least 1"),
    ],
)
def test_a_question_that_makes_no_sense_is_refused(place: Place, options: list[str], problem: str) -> None:
    """A wrong model with a plausible chart would be believed."""
    refused = place.run("scale", *options)
    assert refused.code == 2
    assert problem in " ".join(refused.err.split())


def test_the_chart_is_a_picture_with_every_change(place: Place, tmp_path: Path) -> None:
    """A proposal for other bounds convinces with the picture, so it must show what the table says, and be valid."""
    command = ("scale", "simulate", "--load", "0:1,10m:5,20m:1", "--duration", "30m", "--concurrency", "4")
    told = place.json(*command, "--svg", str(tmp_path / "chart.svg"))
    picture = ElementTree.parse(tmp_path / "chart.svg").getroot()
    marks = picture.findall(f"{SVG}circle/{SVG}title")
    changes = [each for each in told["samples"] if each["desired"] != each["workers"]]
    assert [mark.text for mark in marks] == [
        f"{each['workers']} to {each['desired']}: {each['reason']}" for each in changes
    ]  # fmt: skip
    assert len(picture.findall(f"{SVG}path[@d]")) >= 2
    assert f"{told['workers_max']} workers at most" in (picture.findtext(f"{SVG}title") or "")
    refused = place.run(*command, "--svg", str(tmp_path / "missing" / "chart.svg"))
    assert (refused.code, "cannot be written" in refused.err) == (2, True)
