"""leaseway doctor: each problem is found, named and answered with advice; a healthy store has no findings."""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.cli.place import Place

from leaseway.domain.health import (
    GIB,
    Finding,
    FindingLevel,
    find_causes,
    judge_disk,
    judge_log,
    judge_waiting,
    render_bytes,
    render_duration,
)
from leaseway.domain.ids import SECOND_US, WorkerId
from leaseway.domain.lane import LaneCount, Pause
from leaseway.domain.workers import Heartbeat, StoredWorker
from leaseway.stores.sqlite import health
from leaseway.stores.sqlite.health import file_system_type

HOUR_US = 3_600 * SECOND_US


def findings(place: Place, *more: str) -> dict[str, dict[str, str]]:
    told = place.run("doctor", "--json", *more).json["findings"]
    return {finding["check"]: finding for finding in told}


def test_a_healthy_store_is_well(place: Place) -> None:
    """A doctor that always finds something is ignored."""
    place.submit("add", "x=1")
    emptied = place.submit("add", "x=1", "--tenant", "acme")
    place.work_off()
    place.ok("jobs", "discard", emptied)
    answer = place.ok("doctor", "--deep")
    told = findings(place)
    sick = {name for name, finding in told.items() if finding["level"] != "ok"}
    assert sick <= {"disk"}, "only the machine that runs this test may be short of something"
    assert {"file", "file system", "disk", "log", "SQLite", "schema", "journal", "lock", "integrity"} <= set(told)
    assert {"counters", "clock", "leases", "waiting", "failed"} <= set(told)
    assert answer.out.startswith("sqlite:///work.db\n")


def lose_the_clock(place: Place) -> None:
    place.sql("UPDATE jobs SET created_at = created_at + ?", HOUR_US)


def strand_a_lease(place: Place) -> None:
    place.sql("UPDATE jobs SET state = 'leased', until = ?, owner = 'gone', token = 't'", 1_000_000_000 * SECOND_US)
    place.sql("UPDATE lanes SET ready = 0, leased = 1")


def miscount(place: Place) -> None:
    place.sql("UPDATE lanes SET done = done + 1")


def lose_rows(place: Place) -> None:
    place.sql("DELETE FROM jobs")


def wait_long(place: Place) -> None:
    place.sql("UPDATE jobs SET run_at = run_at - ?", HOUR_US)


def be_overdue(place: Place) -> None:
    place.sql("UPDATE jobs SET state = 'scheduled', run_at = run_at - ?", HOUR_US)
    place.sql("UPDATE lanes SET ready = 0, scheduled = 1")


def fail(place: Place) -> None:
    place.sql("UPDATE jobs SET state = 'failed', finished_at = created_at, last_error_code = 'x'")
    place.sql("UPDATE lanes SET ready = 0, failed = 1")


def leave_the_log(place: Place) -> None:
    place.sql("PRAGMA journal_mode = DELETE")


SICKNESSES: list[tuple[Callable[[Place], None], str, str, str, str]] = [
    (lose_the_clock, "clock", "problem", "59 min in the future", "NTP"),
    (strand_a_lease, "leases", "problem", "1 expired", "No worker is running"),
    (miscount, "counters", "problem", "1 of 1 lanes have wrong counters: default/default", "Report it"),
    (lose_rows, "counters", "problem", "1 of 1 lanes have wrong counters: default/default", "Report it"),
    (wait_long, "waiting", "warning", "queue 'default': a job has been ready for 60 min; no worker", "--queue"),
    (be_overdue, "waiting", "warning", "no worker serves it", "leaseway work MODULE:APP --queue default"),
    (fail, "failed", "warning", "1 dead letter", "leaseway jobs list --state failed"),
    (leave_the_log, "journal", "warning", "mode delete", "leaseway migrate"),
]


@pytest.mark.parametrize(("spoil", "check", "level", "text", "advice"), SICKNESSES, ids=lambda value: str(value)[:20])
def test_a_sickness_is_found_and_told_apart(
    place: Place, spoil: Callable[[Place], None], check: str, level: str, text: str, advice: str
) -> None:
    """A doctor that reports the wrong cause is worse than none."""
    place.submit("add", "x=1")
    spoil(place)
    told = findings(place)
    assert (told[check]["level"], text in told[check]["text"], advice in told[check]["advice"]) == (level, True, True)
    others = {name for name, each in told.items() if each["level"] != "ok"} - {check, "disk"}
    assert others == set(), "one sickness, one finding"
    answer = place.run("doctor")
    assert answer.code == (1 if level == "problem" else 0)
    assert told[check]["advice"] in answer.out


def test_a_file_that_is_missing_is_not_created(place: Place) -> None:
    """An examination must not leave a new store behind that hides a typing error."""
    answer = place.run("doctor")
    assert answer.code == 1
    assert "does not exist" in answer.out
    assert not place.database.exists()


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (lambda path: path.write_text("Dear diary, " * 100), "is not an SQLite database"),
        (lambda path: path.mkdir(), "is not a file"),
        (lambda path: path.touch(), "the file is empty"),
        (lambda path: sqlite3.connect(path).execute("CREATE TABLE theirs (x)").connection.close(), "another program"),
    ],
)
def test_a_file_that_is_no_store_is_a_problem_and_no_crash(
    place: Place, spoil: Callable[[Path], Any], text: str
) -> None:
    """The wrong file is a likely mistake, and a traceback does not explain it."""
    spoil(place.database)
    answer = place.run("doctor")
    assert answer.code == 1
    assert text in answer.out


def test_a_newer_schema_is_a_problem_with_advice(place: Place) -> None:
    """After a rollback of the code the operator must learn that the store is newer."""
    place.ok("migrate")
    place.sql("PRAGMA user_version = 99")
    told = findings(place)["schema"]
    assert (told["level"], told["advice"]) == ("problem", "Install a newer leaseway")


def test_a_damaged_file_is_a_problem_and_no_crash(place: Place) -> None:
    """A damaged file is when a diagnosis is needed most."""
    for _ in range(3):
        place.submit("greet", f"name={'x' * 20_000}")
    place.sql("PRAGMA wal_checkpoint(TRUNCATE)")
    size = place.database.stat().st_size
    with place.database.open("r+b") as file:
        file.seek(size // 2)
        file.write(b"\xa5" * (size // 2 - 4096))
    answer = place.run("doctor")
    assert answer.code == 1
    assert "damaged" in answer.out


def test_a_writer_who_never_lets_go_is_found(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that was stopped inside a transaction blocks every other writer."""
    monkeypatch.setattr(health, "LOCK_SECONDS", 0.05)
    place.ok("migrate")
    with place.locked():
        told = findings(place)["lock"]
    assert told["level"] == "problem"
    assert "fuser" in told["advice"]


def test_a_look_at_everything_ends_in_time_unless_it_shall_be_deep(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check must not overload a store with ten million jobs."""
    monkeypatch.setattr(health, "BOUND_SECONDS", -1.0)
    (place.folder / "many.jsonl").write_text('{"x": 1}\n' * 3_000)
    place.ok("submit", "tasks", "add", "--many", "many.jsonl")
    told = findings(place)
    assert "not finished" in told["integrity"]["text"]
    assert "--deep" in told["counters"]["advice"]
    assert "nothing wrong" in findings(place, "--deep")["integrity"]["text"]


def test_memory_cannot_be_examined_from_outside(place: Place) -> None:
    """A memory store of this process would be empty and look healthy."""
    assert place.run("doctor", "--store", "memory://").code == 2


# -- how facts are judged ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("free", "total", "stored", "level"),
    [
        (50 * GIB, 100 * GIB, GIB, FindingLevel.OK),
        (GIB // 2, 2 * GIB, 0, FindingLevel.WARNING),
        (9 * GIB, 100 * GIB, 0, FindingLevel.WARNING),
        (50 * GIB, 100 * GIB, 51 * GIB, FindingLevel.WARNING),
    ],
)
def test_a_disk_is_short_in_three_ways(free: int, total: int, stored: int, level: FindingLevel) -> None:
    """Too few bytes, too small a share, and too little room for a copy each need a warning before writes fail."""
    assert judge_disk(free, total, stored).level is level


def test_a_log_that_grows_without_end_is_told() -> None:
    """A long-lived reader keeps the write-ahead log growing until the disk is full."""
    assert (judge_log(GIB).level, judge_log(GIB + 1).level) == (FindingLevel.OK, FindingLevel.WARNING)


def test_a_queue_that_is_served_but_late_needs_more_workers() -> None:
    """Advice to start a worker would be wrong where ten of them are busy."""
    now = 100 * HOUR_US
    (served,) = judge_waiting({"q": now - HOUR_US}, {"q": now - SECOND_US}, now)
    (alone,) = judge_waiting({"q": now - HOUR_US}, {"q": now - HOUR_US}, now)
    assert "cannot keep up" in served.text
    assert "no worker serves it" in alone.text


def test_a_queue_that_waits_for_something_else_needs_no_worker() -> None:
    """ "No worker serves it. Start one" beside three idle workers sends an operator to the wrong place at night: the
    queue is paused, or its budget is spent.
    """
    now = 100 * HOUR_US
    open_lane = LaneCount(queue="q", tenant="acme", ready=5, scheduled=0, leased=0, done=0, failed=0, cancelled=0)
    shut = replace(open_lane, tenant="globex", closed_until=now + 1, closed_why="budget maps-spend: is spent")
    idle = StoredWorker(
        beat=Heartbeat(worker=WorkerId("a"), queues=("q",)), since=0, seen_at=now, drain_requested=False, now=now
    )

    def told(lanes: list[LaneCount], *pauses: Pause, worker: StoredWorker = idle) -> Finding:
        causes = find_causes(lanes, pauses, [worker])
        (finding,) = judge_waiting({"q": now - HOUR_US}, {}, now, causes)
        return finding

    assert "it is paused" in told([open_lane, shut], Pause("q")).text
    assert told([open_lane], Pause("q", "acme")).advice == "Resume it: leaseway lanes resume q"
    assert "budget maps-spend: is spent" in told([shut]).text
    assert "budget maps-spend: is spent" in told([shut, open_lane], Pause("q", "acme")).text
    assert "cannot keep up" in told([open_lane, shut]).text
    lost = replace(idle, seen_at=now - HOUR_US)
    assert "no worker serves it" in told([shut], worker=lost).text


MOUNTS = """\
/dev/sda1 / ext4 rw 0 0
server:/x /net nfs4 rw 0 0
//nas/y /net/my\\040share cifs rw 0 0
tmpfs /net/fast tmpfs rw 0 0
server:/z /net/fast nfs rw 0 0
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/work.db", "ext4"),
        ("/net/work.db", "nfs4"),
        ("/net/my share/work.db", "cifs"),
        ("/net/fast/work.db", "nfs"),
        ("/netx/work.db", "ext4"),
    ],
)
def test_the_file_system_of_the_nearest_mount_counts(path: str, kind: str) -> None:
    """SQLite's locks are unreliable over a network, and the path does not show it."""
    assert file_system_type(Path(path), MOUNTS) == kind


def test_a_network_file_system_is_a_problem(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite's locks are unreliable there, so two workers could run one job."""
    monkeypatch.setattr(health, "_mounts", lambda: "server:/x / nfs4 rw 0 0\n")
    place.ok("migrate")
    assert findings(place)["file system"]["level"] == "problem"


@pytest.mark.parametrize(
    ("us", "words"),
    [(0, "0 s"), (119 * SECOND_US, "119 s"), (120 * SECOND_US, "2 min"), (3 * 86_400 * SECOND_US, "3 d")],
)
def test_a_duration_has_one_number_and_one_unit(us: int, words: str) -> None:
    """Findings are read in a hurry; 93784 seconds are not readable."""
    assert render_duration(us) == words


@pytest.mark.parametrize(("size", "words"), [(0, "0 bytes"), (2_048, "2.0 KiB"), (3 * GIB, "3.0 GiB")])
def test_a_size_has_one_number_and_one_unit(size: int, words: str) -> None:
    """Findings are read in a hurry; 1073741824 bytes are not readable."""
    assert render_bytes(size) == words
