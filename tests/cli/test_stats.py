"""leaseway stats"""

from tests.cli.place import Place


def test_attempts_of_the_last_hour_are_shown_by_kind(place: Place) -> None:
    """The first command after an alarm: which kind fails, and how often."""
    place.ok("migrate")
    assert "no attempt ended" in place.ok("stats").err
    place.submit("add", "x=1")
    place.submit("shaky")
    place.work_off()
    told = {kind["kind"]: kind for kind in place.json("stats")["kinds"]}
    assert (told["add"]["done"], told["add"]["failed_share"]) == (1, 0.0)
    assert (told["shaky"]["started"], told["shaky"]["failed"], told["shaky"]["dead"]) == (2, 2, 1)
    assert "100.0%" in place.ok("stats", "--range", "15m").out
    refused = place.run("stats", "--range", "1y")
    assert (refused.code, "between 15m and 30d" in refused.err) == (2, True)
