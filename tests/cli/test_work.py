"""leaseway work: how it ends, with which exit code, and what it logs. Real processes throughout."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time

import pytest
from tests.cli.place import Place

ENDS_SECONDS = 25
"""A generous bound for steps that take between one and six seconds."""


def first_line(process: "subprocess.Popen[str]") -> str:
    """What a handler printed when it started."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def ended(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    out, err = process.communicate(timeout=ENDS_SECONDS)
    assert "Traceback" not in err, err
    return process.returncode, out, err


# -- until empty ------------------------------------------------------------------------------------------------------


def test_it_stops_when_nothing_is_left_even_if_jobs_failed(place: Place) -> None:
    """Exit code 0 describes the worker; the report describes the jobs."""
    place.submit("add", "x=1")
    place.submit("shaky")
    answer = place.process("work", "tasks:app", "--until-empty")
    assert answer.code == 0, answer.err
    assert answer.out == "3 leases settled\n2 attempts failed\n"
    assert "1 failed for good in these queues: leaseway jobs list --state failed" in answer.err


def test_log_lines_have_a_time_a_level_an_event_and_facts(place: Place) -> None:
    """Operators search logs by event and by job id."""
    place.submit("hopeless")
    lines = place.process("work", "tasks", "--until-empty").err.splitlines()
    form = r"\d\d:\d\d:\d\d (info|warning|error) +(\w+)  ((\w+=([^\s\"]+|\"[^\"]*\") ?)+)"
    events = [match[2] for line in lines if (match := re.fullmatch(form, line))]
    assert events == ["worker_started", "attempt_failed", "worker_stopped"]


def test_programs_get_json_lines_and_a_report(place: Place) -> None:
    """Log collectors parse the lines, and scripts read the final report."""
    place.submit("add", "x=1")
    id_ = place.submit("hopeless")
    answer = place.process("work", "tasks", "--until-empty", "--json")
    events = [json.loads(line) for line in answer.err.splitlines()]
    failed = next(event for event in events if event["event"] == "attempt_failed")
    assert (failed["level"], failed["job"], failed["attempt"], failed["code"]) == ("warning", id_, 1, "gone")
    assert failed["error"] == "it never will"
    expected = {"event": "report", "settled": 2, "attempts_failed": 1, "released": 0, "lost": 0}
    assert json.loads(answer.out) == expected | {"dead_letters": 1, "is_clean": True}


@pytest.mark.parametrize(("option", "is_told"), [("--quiet", False), ("--verbose", True)])
def test_how_much_is_told_can_be_chosen(place: Place, option: str, is_told: bool) -> None:
    """A busy worker writes thousands of lines per second with --verbose."""
    assert ("worker_started" in place.process("work", "tasks", "--until-empty", option).err) is is_told


def test_the_apps_own_log_lines_come_out_too(place: Place) -> None:
    """A worker that swallows the handler's log lines cannot be debugged."""
    (place.folder / "talking.py").write_text(
        "import logging\nfrom leaseway import App\napp = App()\n"
        "@app.job\nasync def talk():\n    logging.getLogger('mine').warning('so %s', 'it goes')\n"
    )
    place.ok("submit", "talking", "talk")
    assert re.search(r"warning so it goes", place.process("work", "talking", "--until-empty").err)


def test_an_app_with_its_own_events_keeps_them(place: Place) -> None:
    """The command adds its log lines and must not disable the app's own metrics."""
    (place.folder / "counting.py").write_text(
        "from leaseway import App\n\n"
        "class Mine:\n    def emit(self, name, /, **facts):\n        print('mine', name)\n\n"
        "app = App(events=Mine())\n"
    )
    answer = place.process("work", "counting", "--until-empty")
    assert "mine worker_started" in answer.out
    assert "worker_started" in answer.err


def test_only_the_named_queues_are_served(place: Place) -> None:
    """A worker for slow jobs must not take fast ones."""
    served = place.submit("add", "x=1", "--queue", "a")
    left = place.submit("add", "x=1", "--queue", "b")
    place.process("work", "tasks", "--until-empty", "--queue", "a", "--queue", "c")
    states = {id_: place.json("jobs", "show", id_)["state"] for id_ in (served, left)}
    assert states == {served: "done", left: "pending"}


def test_the_store_can_be_another_than_the_apps(place: Place) -> None:
    """The same code runs against a test store and in production."""
    place.ok("submit", "tasks", "add", "x=1", "--store", "sqlite:///other.db")
    place.process("work", "tasks", "--until-empty", "--store", "sqlite:///other.db")
    assert place.json("lanes", "--store", "sqlite:///other.db")["total"]["done"] == 1
    assert not place.database.exists()


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (["--concurrency", "0"], "concurrency: must be between 1"),
        (["--concurrency", "many"], "'many' is not a valid integer"),
        (["--grace", "-1"], "grace: must be between 0"),
        (["--grace", "long"], "'long' is not a duration"),
        (["--queue", ""], "queues: must be 1 to 200 printable characters"),
    ],
)
def test_settings_that_make_no_sense_are_refused(place: Place, argv: list[str], complaint: str) -> None:
    """A concurrency of zero would wait for ever without a message."""
    answer = place.process("work", "tasks", "--until-empty", *argv)
    assert answer.code == 2
    assert complaint in answer.err


# -- signals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_what_runs_within_the_grace_period(place: Place, number: signal.Signals) -> None:
    """Every deployment sends SIGTERM; jobs must neither be lost nor run twice."""
    id_ = place.submit("nap", "seconds=1")
    with place.running("work", "tasks") as process:
        assert first_line(process) == "napping"
        process.send_signal(number)
        code, _, err = ended(process)
    assert code == 0
    assert "draining" in err
    assert place.json("jobs", "show", id_)["state"] == "done"


def test_what_does_not_end_within_the_grace_period_is_handed_back(place: Place) -> None:
    """Another worker claims the job at once: it does not wait for the lease to expire, and no attempt is lost."""
    id_ = place.submit("nap", "seconds=600")
    with place.running("work", "tasks", "--grace", "0.1") as process:
        assert first_line(process) == "napping"
        process.send_signal(signal.SIGTERM)
        code, out, _ = ended(process)
    assert (code, "1 released" in out) == (0, True)
    job = place.json("jobs", "show", id_)
    assert (job["state"], job["attempts"]) == ("pending", 0)


def test_a_second_signal_hurries(place: Place) -> None:
    """An operator who cannot wait must not need kill -9."""
    place.submit("nap", "seconds=600")
    with place.running("work", "tasks", "--grace", "600") as process:
        assert first_line(process) == "napping"
        assert process.stderr is not None
        process.send_signal(signal.SIGINT)
        while "draining" not in process.stderr.readline():
            pass
        process.send_signal(signal.SIGINT)
        assert process.wait(ENDS_SECONDS) == 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["hang", "hang_elsewhere", "stay"])
def test_a_handler_that_never_ends_does_not_keep_the_process_alive(place: Place, kind: str) -> None:
    """A plain function, a thread that the handler started, and a coroutine that ignores its cancellation."""
    id_ = place.submit(kind)
    with place.running("work", "tasks", "--grace", "0") as process:
        first_line(process)
        process.send_signal(signal.SIGTERM)
        code, _, err = ended(process)
    assert code == 0
    assert "never retrieved" not in err
    assert "destroyed" not in err
    assert place.json("jobs", "show", id_)["state"] == "pending"


@pytest.mark.slow
def test_a_third_signal_leaves_at_once_with_the_code_for_leases_left(place: Place) -> None:
    """Also while a handler blocks the event loop, in which no drain can start."""
    (place.folder / "blocking.py").write_text(
        "import time\nfrom leaseway import App\napp = App()\n\n"
        "@app.job\nasync def block():\n    print('blocking', flush=True)\n    time.sleep(600)\n"
    )
    place.ok("submit", "blocking", "block")
    with place.running("work", "blocking") as process:
        assert first_line(process) == "blocking"
        for _ in range(3):
            process.send_signal(signal.SIGTERM)
            time.sleep(0.3)  # signals that arrive together count as one
        assert process.wait(ENDS_SECONDS) == 4


@pytest.mark.slow
def test_a_store_that_does_not_answer_any_more_does_not_keep_the_process_alive(place: Place) -> None:
    """Exit code 4: the leases are still held, and expire by themselves."""
    place.submit("nap", "seconds=600")
    with place.running("work", "tasks", "--grace", "0") as process:
        assert first_line(process) == "napping"
        with place.locked():
            time.sleep(1.5)  # an exchange has begun by now, and waits for the lock
            process.send_signal(signal.SIGTERM)
            code, _, err = ended(process)
    assert code == 4
    assert "could not be released" in err


@pytest.mark.slow
def test_a_store_that_is_locked_from_the_beginning_is_unavailable(place: Place) -> None:
    """The exit code tells a supervisor to try again."""
    place.ok("migrate")
    with place.locked():
        answer = place.process("work", "tasks", "--until-empty")
    assert answer.code == 3
    assert "locked" in answer.err


# -- on a terminal ----------------------------------------------------------------------------------------------------


def test_a_terminal_gets_a_line_of_progress_and_a_clean_screen_afterwards(place: Place) -> None:
    """A progress line that stays on the screen mixes with the shell prompt."""
    place.submit("nap", "seconds=1")
    controller, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "leaseway.cli", "work", "tasks", "--until-empty"],
        cwd=place.folder,
        env=place.environment(TERM="xterm-256color"),
        stdout=terminal,
        stderr=terminal,
    )
    os.close(terminal)
    seen = b""
    try:
        while part := os.read(controller, 65_536):
            seen += part
    except OSError:
        pass  # how Linux reports that the other end is closed
    finally:
        os.close(controller)
        assert process.wait(ENDS_SECONDS) == 0
    text = re.sub(r"\033\[[\d;?]*[a-zA-Z]", "", seen.decode())
    assert re.search(r"0 ready · 1 leased · 0 done · 0 failed · 0/s", text)
    assert text.rstrip().endswith("1 lease settled")
