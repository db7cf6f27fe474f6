"""leaseway jobs: listing, showing and changing jobs."""

import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.cli.place import Place

from leaseway import AesGcm
from leaseway.cli.commands.jobs import change
from leaseway.domain.ids import JobId
from leaseway.domain.inspection import JobFilter
from leaseway.stores.sqlite.operations import SqliteOperations

NO_ID = "01aaaaaaaaaaaaaaaaaaaaaaaa"


# -- list -------------------------------------------------------------------------------------------------------------


def test_an_empty_store_says_so_beside_the_answer(place: Place) -> None:
    """A script that reads the output must not take a note for a job."""
    place.ok("migrate")
    answer = place.ok("jobs", "list")
    assert answer.out == ""
    assert "no jobs" in answer.err
    assert place.json("jobs", "list") == {"jobs": [], "next_before": None}


def test_a_list_shows_whole_ids_in_a_pipe(place: Place) -> None:
    """Users copy ids from the list."""
    ids = [place.submit("add", "x=1") for _ in range(3)]
    place.work_off()
    lines = place.ok("jobs", "list").out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ids[::-1]
    assert lines[0].split() == ["id", "kind", "state", "attempts", "when", "at"]
    assert lines[1].split()[1:4] == ["add", "done", "1/5"]


@pytest.mark.parametrize(
    ("argv", "kinds"),
    [
        (["--state", "failed"], {"shaky", "hopeless"}),
        (["--state", "done", "--state", "failed"], {"add", "shaky", "hopeless"}),
        (["--kind", "add"], {"add"}),
        (["--queue", "elsewhere"], {"nightly"}),
        (["--tenant", "acme"], {"add"}),
        (["--error", "gone"], {"hopeless"}),
        (["--error", "ValueError"], {"shaky"}),
        (["--state", "done", "--error", "gone"], set()),
    ],
)
def test_filters_hold_together(place: Place, argv: list[str], kinds: set[str]) -> None:
    """If one filter were ignored, `--all` would change jobs that the user did not mean."""
    place.submit("add", "x=1", "--tenant", "acme")
    place.submit("shaky")
    place.submit("hopeless")
    place.work_off()
    place.submit("nightly", "--queue", "elsewhere")
    assert {job["kind"] for job in place.json("jobs", "list", *argv)["jobs"]} == kinds


def test_pages_follow_each_other(place: Place) -> None:
    """A job that two pages skip would never be seen."""
    ids = [place.submit("add", "x=1") for _ in range(5)]
    first = place.json("jobs", "list", "--limit", "2")
    second = place.json("jobs", "list", "--limit", "3", "--before", first["next_before"])
    assert [job["id"] for job in first["jobs"] + second["jobs"]] == ids[::-1]
    assert f"--before {first['next_before']}" in place.ok("jobs", "list", "--limit", "2").err


def test_a_terminal_gets_colours_and_a_narrow_one_fewer_columns(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half an id is useless."""
    id_ = place.submit("hopeless", "--tenant", "somebody-with-a-long-name")
    place.work_off()
    monkeypatch.setenv("FORCE_COLOR", "1")
    wide = place.ok("jobs", "list").out
    assert "\033[31mfailed" in wide
    assert "gone" in wide
    monkeypatch.setenv("COLUMNS", "70")
    narrow = re.sub(r"\033\[[\d;]*m", "", place.ok("jobs", "list").out)
    assert id_ in narrow
    assert "attempts" in narrow
    assert max(map(len, narrow.splitlines())) <= 70


# -- show -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["show", "why"])
@pytest.mark.parametrize(
    ("id_", "complaint"), [(NO_ID, "it may have been pruned"), ("01k", "ids have 26 characters"), ("' OR 1", "no job")]
)
def test_an_id_that_names_nothing_is_explained(place: Place, verb: str, id_: str, complaint: str) -> None:
    """A shortened or pruned id needs different remedies."""
    place.ok("migrate")
    answer = place.run("jobs", verb, id_)
    assert answer.code == 2
    assert complaint in answer.err


def test_a_finished_job_is_shown_with_its_result(place: Place) -> None:
    """The result is what the user wants to see."""
    id_ = place.submit("add", "x=41")
    place.work_off()
    job = place.json("jobs", "show", id_)
    assert (job["state"], job["result"], job["payload"], job["errors"]) == ("done", 42, {"x": 41}, [])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", job["finished_at"])
    shown = place.ok("jobs", "show", id_).out
    assert re.search(r"result\n  42\n", shown)
    assert re.search(r"finished   \S+( \w+)*( ago)? \(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\)", shown)


def test_a_failed_job_is_shown_with_its_last_traceback_or_all(place: Place) -> None:
    """Users look for the last error; the others are shown on request."""
    id_ = place.submit("shaky")
    place.work_off()
    shown = place.ok("jobs", "show", id_).out
    assert shown.count("ValueError: no luck for joe") == 3, "two errors and one traceback"
    assert shown.count("Traceback (most recent call last)") == 1
    assert place.ok("jobs", "show", id_, "--traceback").out.count("Traceback (most recent call last)") == 2
    errors = place.json("jobs", "show", id_)["errors"]
    assert [error["attempt"] for error in errors] == [1, 2]
    assert errors[0]["code"] == "ValueError"


def test_text_from_elsewhere_cannot_command_the_terminal(place: Place) -> None:
    """An error message may contain text from outside, with control characters."""
    id_ = place.submit("shaky", 'name="\\u001b[2J\\u009b31m"')
    place.work_off()
    for argv in (["jobs", "show", id_, "--traceback"], ["jobs", "list"]):
        assert "\x1b" not in place.ok(*argv).out
        assert "\x9b" not in place.ok(*argv).out


def test_a_running_job_is_shown_with_its_lease_and_progress(place: Place) -> None:
    """The owner of the lease is the worker whose log to read."""
    id_ = place.submit("nap", "seconds=60")
    with place.running("work", "tasks") as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "napping\n"
        until_told(place, id_)
        job = place.json("jobs", "show", id_)
        shown = place.ok("jobs", "show", id_).out
    assert job["state"] == "leased"
    assert job["progress"] == {"done": 1, "total": 4, "message": "halfway"}
    assert "1 of 4 (25%), halfway" in shown
    assert f"of {job['lease_owner']}, ends in" in shown


def until_told(place: Place, id_: str) -> None:
    for _ in range(1_000):
        if place.json("jobs", "show", id_)["progress"] is not None:
            return
    raise AssertionError("the worker never said how far it is")


# -- why --------------------------------------------------------------------------------------------------------------


def test_a_waiting_job_says_for_what(place: Place) -> None:
    """ "pending" alone does not say whether anything has to be done."""
    id_ = place.submit("add", "x=1", "--queue", "mail")
    answer = place.ok("jobs", "why", id_).out
    assert "waits for a worker that serves queue 'mail'" in answer
    assert "leaseway work MODULE:APP --queue mail" in answer
    assert place.json("jobs", "why", id_)["code"] == "ready"


def test_a_scheduled_job_says_until_when(place: Place) -> None:
    """Without the time, a job for tomorrow looks stuck."""
    id_ = place.submit("add", "x=1", "--run-at", "2099-01-02T03:04:05Z")
    told = place.json("jobs", "why", id_)
    assert (told["code"], told["until"]) == ("scheduled", "2099-01-02T03:04:05.000000Z")
    assert re.search(r"It runs in [\d,]+ d \(2099-01-0\d ", place.ok("jobs", "why", id_).out)


# -- retry and discard ------------------------------------------------------------------------------------------------


def failed_jobs(place: Place, count: int, *more: str) -> list[str]:
    ids = [place.submit("hopeless", *more) for _ in range(count)]
    place.work_off()
    return ids


def state_of(place: Place, id_: str) -> Any:
    return place.json("jobs", "show", id_)["state"]


@pytest.mark.parametrize("verb", ["retry", "discard"])
@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        ([], "name the ids of the jobs, or give --all"),
        (["--kind", "hopeless"], "or give --all"),
        ([NO_ID, "--all"], "not both"),
        ([NO_ID, "--kind", "x"], "not both"),
        (["--all", "--state", "leased"], "leased"),
        (["--all"], "pass --yes"),
        (["--all", "--json"], "pass --yes"),
    ],
)
def test_nothing_is_changed_by_half_a_command(place: Place, verb: str, argv: list[str], complaint: str) -> None:
    """Deleting everything must require more than a forgotten argument."""
    (id_,) = failed_jobs(place, 1)
    answer = place.run("jobs", verb, *argv)
    assert answer.code == 2
    assert complaint in answer.err
    assert state_of(place, id_) == "failed"


def test_named_jobs_are_retried_and_the_others_are_explained(place: Place) -> None:
    """One wrong id must not keep the others from being retried, nor be ignored."""
    (failed,) = failed_jobs(place, 1)
    waiting = place.submit("add", "x=1")
    answer = place.run("jobs", "retry", failed, waiting, NO_ID)
    assert answer.code == 2
    assert answer.out == "retried 1 job\n"
    assert f"job {waiting} is pending; only failed or cancelled jobs can be retried" in answer.err
    assert f"there is no job {NO_ID}" in answer.err
    assert state_of(place, failed) == "pending"


def test_all_that_match_are_retried_once_in_steps(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that fails again while the command runs would otherwise be retried for ever."""
    monkeypatch.setattr(change, "STEP", 3)
    mine = failed_jobs(place, 8, "--tenant", "acme")
    (other,) = failed_jobs(place, 1)
    assert place.json("jobs", "retry", "--all", "--tenant", "acme", "--error", "gone", "--yes")["retried"] == 8
    assert {state_of(place, id_) for id_ in mine} == {"pending"}
    assert state_of(place, other) == "failed"


def test_a_job_that_fails_again_meanwhile_is_not_retried_for_ever(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers run while an operator retries everything."""
    monkeypatch.setattr(change, "STEP", 2)
    ids = failed_jobs(place, 5)
    tried: list[str] = []

    async def retry(self: SqliteOperations, which: JobFilter, limit: int) -> list[JobId]:
        assert which.ids is not None
        tried.extend(which.ids)
        assert len(tried) <= len(ids)
        return list(which.ids)

    monkeypatch.setattr(SqliteOperations, "retry", retry)
    assert place.json("jobs", "retry", "--all", "--yes")["retried"] == 5
    assert sorted(tried) == ids


def test_a_job_that_changes_meanwhile_is_judged_by_what_it_is_now(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the listing and the deletion the job may have been retried and done."""
    (failed,) = failed_jobs(place, 1)
    done = place.submit("add", "x=1")
    place.work_off()

    async def pages(*_: object) -> AsyncIterator[tuple[JobId, ...]]:
        yield (JobId(failed), JobId(done))

    monkeypatch.setattr(change, "pages", pages)
    assert place.json("jobs", "discard", "--all", "--state", "failed", "--yes")["discarded"] == 1
    assert state_of(place, done) == "done"


def test_cancelled_jobs_are_retried_only_if_somebody_says_so(place: Place) -> None:
    """A cancelled job must not run again unless the user asks for it."""
    id_ = place.submit("add", "x=1")
    place.ok("jobs", "cancel", id_)
    assert place.json("jobs", "retry", "--all", "--yes")["retried"] == 0
    assert place.json("jobs", "retry", "--all", "--yes", "--state", "cancelled")["retried"] == 1


def test_discarding_all_done_jobs_leaves_the_others(place: Place) -> None:
    """Discarding is final; it must not reach unfinished jobs."""
    done = place.submit("add", "x=1")
    (failed,) = failed_jobs(place, 1)
    waiting = place.submit("add", "x=2")
    assert place.ok("jobs", "discard", "--all", "--state", "done", "--yes").out == "discarded 1 job\n"
    assert place.run("jobs", "show", done).code == 2
    assert {state_of(place, failed), state_of(place, waiting)} == {"failed", "pending"}
    assert place.run("jobs", "discard", waiting).code == 2
    assert place.ok("jobs", "discard", "--all", "--yes").out == "discarded 1 job\n"
    assert state_of(place, waiting) == "pending"


@pytest.mark.parametrize(("typed", "code", "state"), [("n\n", 130, "failed"), ("y\n", 0, None)])
def test_a_person_is_asked_before_everything_is_deleted(
    place: Place, monkeypatch: pytest.MonkeyPatch, typed: str, code: int, state: str | None
) -> None:
    """One command can delete every finished job."""
    import io

    class Keyboard(io.StringIO):
        def isatty(self) -> bool:
            return True

    (id_,) = failed_jobs(place, 1)
    monkeypatch.setattr("sys.stdin", Keyboard(typed))
    answer = place.run("jobs", "discard", "--all", "--kind", "hopeless", "--state", "failed")
    assert answer.code == code
    assert "Discard all failed jobs of kind 'hopeless'?" in answer.err
    assert (state_of(place, id_) if state else place.run("jobs", "show", id_).code) == (state or 2)


# -- cancel and prune -------------------------------------------------------------------------------------------------


def test_each_job_gets_its_answer_when_cancelling(place: Place) -> None:
    """A job that had already finished must not be reported as cancelled."""
    waiting = place.submit("add", "x=1")
    (finished,) = failed_jobs(place, 1) if place.ok("jobs", "cancel", waiting) else ()
    later = place.submit("add", "x=1")
    answer = place.run("jobs", "cancel", later, finished, NO_ID)
    assert answer.code == 2
    assert f"job {later}: cancelled\njob {finished}: had already finished\n" == answer.out
    assert f"there is no job {NO_ID}" in answer.err
    assert {state_of(place, waiting), state_of(place, later)} == {"cancelled"}


def test_a_running_job_is_cancelled_through_its_worker(place: Place) -> None:
    """Only the worker can stop the handler."""
    id_ = place.submit("nap", "seconds=60")
    with place.running("work", "tasks", "--until-empty") as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "napping\n"
        assert "the worker is told to stop" in place.ok("jobs", "cancel", id_).out
        assert worker.wait(20) == 0
    assert state_of(place, id_) == "cancelled"


def test_only_what_is_old_enough_is_pruned(place: Place) -> None:
    """Pruning deletes for good."""
    old = place.submit("add", "x=1")
    place.work_off()
    place.sql("UPDATE jobs SET finished_at = finished_at - 2 * 86400 * 1000000")
    young = place.submit("add", "x=2")
    place.work_off()
    assert place.ok("jobs", "prune", "--older-than", "1d").out == "pruned 1 job\n"
    assert place.run("jobs", "show", old).code == 2
    assert state_of(place, young) == "done"


@pytest.mark.parametrize("time", ["-1d", "long", "1w", ""])
def test_an_age_that_is_none_prunes_nothing(place: Place, time: str) -> None:
    """A wrong age must not be read as zero, which would delete everything."""
    place.submit("add", "x=1")
    place.work_off()
    answer = place.run("jobs", "prune", "--older-than", time)
    assert answer.code == 2
    assert len(place.json("jobs", "list")["jobs"]) == 1


# -- encryption -------------------------------------------------------------------------------------------------------

SEALED = """
from leaseway import AesGcm, App, Fail

app = App("sqlite:///work.db", codec=AesGcm({"2026-05": "%s"}))


@app.job(attempts=1)
async def treat(ctx, name: str) -> None:
    ctx.progress(1, 2, name)
    raise Fail(f"{name} is not in")
"""


def test_an_encrypted_job_is_shown_with_a_key_only(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator without the key must see which key it needs, and nothing of the contents."""
    key = AesGcm.new_key()
    (place.folder / "sealed.py").write_text(SEALED % key)
    id_ = place.json("submit", "sealed:app", "treat", "name=anna")["id"]
    assert place.process("work", "sealed:app", "--until-empty").code == 0
    for argv in (["jobs", "show", id_], ["jobs", "list"], ["jobs", "why", id_]):
        for more in ([], ["--json"], ["--traceback"]):
            answer = place.ok(*argv, *more)
            assert "anna" not in answer.out + answer.err
    shown = place.ok("jobs", "show", id_).out
    assert "payload\n  encrypted (key 2026-05)" in shown
    assert "failed: encrypted (key 2026-05)" in shown
    assert "1 of 2 (50%), encrypted (key 2026-05)" in shown
    opened = place.ok("jobs", "show", id_, "--app", "sealed:app").out
    assert '"name": "anna"' in opened
    assert "failed: anna is not in" in opened
    assert "1 of 2 (50%), anna" in opened
    monkeypatch.setenv("LEASEWAY_ENCRYPTION_KEYS", f"2026-05={key}")
    assert place.json("jobs", "show", id_)["payload"] == {"name": "anna"}
    monkeypatch.setenv("LEASEWAY_ENCRYPTION_KEYS", "2026-05=short")
    refused = place.run("jobs", "show", id_)
    assert refused.code == 2
    assert "LEASEWAY_ENCRYPTION_KEYS: keys.2026-05: must be 32 bytes" in refused.err


# -- run now ----------------------------------------------------------------------------------------------------------


def test_a_job_that_waits_for_its_time_is_brought_forward(place: Place) -> None:
    """An operator who has removed the reason for a wait must not have to wait for the end of it."""
    id_, ready = place.submit("add", "x=1", "--delay", "2h"), place.submit("add", "x=2")
    answer = place.run("jobs", "run-now", id_, ready)
    assert (answer.code, answer.out) == (2, "brought forward 1 job\n")
    assert f"job {ready} is pending; only pending jobs that wait for their time" in answer.err
    place.work_off()
    assert place.json("jobs", "show", id_)["result"] == 2
    assert place.json("jobs", "run-now", place.submit("add", "x=1", "--delay", "2h"))["brought_forward"] == 1
