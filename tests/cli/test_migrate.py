"""leaseway migrate. Problems with the file are in test_stores."""

from tests.cli.place import Place

from leaseway.stores.sqlite.schema import MIGRATIONS

NEWEST = len(MIGRATIONS)


def test_a_check_changes_nothing_and_says_whether_there_is_something_to_do(place: Place) -> None:
    """Deployment scripts rely on it: exit code 1 before, 0 after."""
    answer = place.run("migrate", "--check")
    assert answer.code == 1
    assert "run: leaseway migrate" in answer.out
    assert not place.database.exists()
    place.database.touch()
    assert place.run("migrate", "--check").code == 1
    assert place.database.read_bytes() == b""
    assert place.ok("migrate").out == f"sqlite:///work.db: created with schema version {NEWEST}\n"
    assert place.ok("migrate", "--check").out == f"sqlite:///work.db: schema version {NEWEST}, the newest\n"


def test_migrating_twice_does_nothing_the_second_time(place: Place) -> None:
    """Deployments run the command on every start."""
    assert place.json("migrate") == {"store": "sqlite:///work.db", "from": 0, "to": NEWEST}
    place.submit("add", "x=1")
    assert place.json("migrate") == {"store": "sqlite:///work.db", "from": NEWEST, "to": NEWEST}
    assert "nothing to do" in place.ok("migrate").out
    assert len(place.json("jobs", "list")["jobs"]) == 1


def test_a_check_is_json_if_asked(place: Place) -> None:
    """Deployment scripts decide by this answer."""
    answer = place.run("migrate", "--check", "--json")
    assert answer.json == {"store": "sqlite:///work.db", "version": 0, "newest": NEWEST, "is_due": True}
