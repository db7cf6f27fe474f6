"""leaseway lanes, leaseway cron"""

import re

from tests.cli.place import Place


def test_lanes_are_counted_and_summed_up(place: Place) -> None:
    """Operators read the backlog from this table."""
    place.submit("add", "x=1")
    place.submit("hopeless", "--tenant", "acme")
    place.work_off()
    place.submit("add", "x=1", "--delay", "1h")
    place.submit("add", "x=1", "--queue", "elsewhere")
    told = place.json("lanes")
    assert [(lane["queue"], lane["tenant"]) for lane in told["lanes"]] == [
        ("default", "acme"),
        ("default", "default"),
        ("elsewhere", "default"),
    ]
    assert told["total"] == {"ready": 1, "scheduled": 1, "leased": 0, "done": 1, "failed": 1, "cancelled": 0}
    table = [line.split() for line in place.ok("lanes").out.splitlines()]
    assert table[0] == ["queue", "tenant", "ready", "scheduled", "leased", "done", "failed", "cancelled"]
    assert table[-1] == ["total", "1", "1", "0", "1", "1", "0"]


def test_a_store_without_lanes_says_so_beside_the_answer(place: Place) -> None:
    """The hint goes to stderr, so that scripts still read an empty answer."""
    place.ok("migrate")
    assert place.ok("lanes").out == ""
    assert place.json("lanes")["lanes"] == []


def test_schedules_are_shown_with_their_next_time(place: Place) -> None:
    """The next fire time shows whether time zone and expression are right."""
    place.ok("migrate")
    assert "a worker declares" in place.ok("cron").err
    place.process("work", "tasks", "--until-empty")
    (told,) = place.json("cron")["schedules"]
    assert (told["name"], told["kind"], told["cron"], told["tz"]) == (
        "nightly",
        "nightly",
        "0 3 * * *",
        "Europe/Berlin",
    )
    assert (told["missed"], told["last_fire"], told["paused"]) == ("latest", None, False)
    assert re.search(r"T0[12]:00:00\.000000Z$", told["next_fire"]), "three o'clock in Berlin, told in UTC"
    assert place.json("cron", "list") == place.json("cron")
    assert re.search(r"nightly.*0 3 \* \* \*.*never +in \d+ \w+ \(", place.ok("cron").out)


def test_a_schedule_is_paused_and_resumed_by_its_name(place: Place) -> None:
    """Pausing is the emergency stop of a schedule."""
    place.process("work", "tasks", "--until-empty")
    assert place.ok("cron", "pause", "nightly").out == "schedule nightly: paused\n"
    (told,) = place.json("cron")["schedules"]
    assert (told["paused"], told["next_fire"]) == (True, None)
    assert "paused" in place.ok("cron").out
    assert place.json("cron", "resume", "nightly") == {"name": "nightly", "paused": False}
    assert place.json("cron")["schedules"][0]["paused"] is False


def test_a_schedule_that_does_not_exist_is_answered_with_those_that_do(place: Place) -> None:
    """A typing error must lead to the right name."""
    place.process("work", "tasks", "--until-empty")
    answer = place.run("cron", "pause", "daily")
    assert answer.code == 2
    assert "there is no schedule 'daily'; there are: nightly" in answer.err


def test_a_time_zone_that_this_machine_lacks_does_not_hide_the_others(place: Place) -> None:
    """The worker's machine may have time zones that this one lacks."""
    place.process("work", "tasks", "--until-empty")
    row = ("x", "x", "* * * * *", "No/Where", "all", 0)
    place.sql("INSERT INTO schedules (name, kind, cron, tz, missed, seen) VALUES (?, ?, ?, ?, ?, ?)", *row)
    assert [row["next_fire"] is None for row in place.json("cron")["schedules"]] == [False, True]
    assert "nightly" in place.ok("cron").out


def test_lanes_are_paused_and_resumed(place: Place) -> None:
    """A waiting job names the command that resumes it, and only a paused lane can be resumed."""
    job = place.submit("add", "x=1", "--tenant", "acme")
    assert place.ok("lanes", "pause", "default", "--tenant", "acme").out.startswith(
        "queue 'default' of tenant 'acme': p"
    )
    assert "was already paused" in place.ok("lanes", "pause", "default", "--tenant", "acme").out
    (lane,) = place.json("lanes", "list")["lanes"]
    assert (lane["ready"], lane["waits_for"][0]["what"], lane["waits_for"][0]["why"]) == (1, "lane", "it is paused")
    why = place.json("jobs", "why", job)
    assert (why["code"], why["advice"]) == ("lane", "Resume it: leaseway lanes resume default --tenant acme")
    wrong = place.run("lanes", "resume", "default")
    assert (wrong.code, "queue 'default' of tenant 'acme'" in wrong.err) == (2, True)
    assert place.json("lanes", "resume", "default", "--tenant", "acme") == {
        "queue": "default",
        "tenant": "acme",
        "paused": False,
    }
    place.work_off()
    assert place.json("jobs", "show", job)["state"] == "done"
