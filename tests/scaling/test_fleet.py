"""A fleet's options, and which worker it drains. Real processes are in tests/faults/test_fleet.py."""

import subprocess
import sys
from pathlib import Path

import pytest

from leaseway import App
from leaseway.cli.main import main
from leaseway.domain.errors import BadValue, StoreRefused
from leaseway.domain.scaling.demand import ScalingSettings
from leaseway.scaling.fleet import (
    BACKOFF_SECONDS_MAX,
    Fleet,
    FleetMember,
    FleetSpec,
    backoff_seconds,
    choose_drained,
)
from leaseway.scaling.pools import parse_scaling
from leaseway.telemetry.log import NoEvents
from leaseway.worker.environment import Environment


class Running(FleetMember):
    """A member without a process."""

    def __init__(self, number: int, generation: int = 0, at: float = 0.0, *, is_ready: bool = True) -> None:
        super().__init__(number, generation, at)
        self.ready_at = at if is_ready else None

    @property
    def pid(self) -> int:
        return self.number


def test_a_fleet_reads_its_bounds() -> None:
    """`min=1,max=8` is all that most fleets need."""
    settings = parse_scaling("fleet", "min=0, max=3, wait=5")
    assert (settings.workers_min, settings.workers_max, settings.wait_seconds) == (0, 3, 5.0)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("min=3,max=2", "fleet: min: must not exceed max (is 3, max is 2)"),
        ("max=0", "fleet: max: must be between 1 and 10,000 (is 0)"),
        ("min=-1", "fleet: min: must be between 0 and 10,000 (is -1)"),
        ("max=many", "fleet: max must be a number (is 'many')"),
        ("max=2,max=3", "fleet: max is given twice"),
        ("most=3", "fleet: cannot read 'most=3'; write for example min=1,max=8; known: min, max, "),
        ("", "fleet: cannot read ''"),
        ("wait=nan", "fleet: wait_seconds: must be a number from 0.1 to 86,400 (is nan)"),
    ],
)
def test_a_fleet_that_cannot_run_is_refused(text: str, problem: str) -> None:
    """A typing error must not start the default instead."""
    with pytest.raises(BadValue) as refused:
        parse_scaling("fleet", text)
    assert str(refused.value).startswith(problem)


def test_the_idlest_worker_drains() -> None:
    """Its jobs are the fewest that have to be finished or given back."""
    members = [Running(1), Running(2), Running(3)]
    assert [each.number for each in choose_drained(members, 2, {1: 5, 2: 0, 3: 1}, 0)] == [2, 3]


def test_old_code_drains_first_and_then_workers_that_are_not_ready() -> None:
    """A worker that is still starting has nothing to lose, and old code is to go anyway."""
    members = [Running(1, generation=1), Running(2, generation=1, is_ready=False), Running(3, generation=0)]
    assert [each.number for each in choose_drained(members, 3, {3: 9}, 1)] == [3, 2, 1]


def test_the_wait_after_failures_grows_and_is_bounded() -> None:
    """A worker that was healthy is replaced at once; one that keeps dying must not use up the machine."""
    waits = [backoff_seconds(failures) for failures in range(20)]
    assert waits[0] == 0.0
    assert waits == sorted(waits)
    assert waits[-1] == BACKOFF_SECONDS_MAX


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--concurrency", "0"], "concurrency: must be between 1 and 10,000 (is 0)"),
        (["--until-empty"], "--until-empty cannot be combined with --fleet"),
        (["--store", "memory://"], "memory:// cannot be shared by the processes of a fleet"),
        (["--store", "https://example.com"], "scale workers over HTTP with GET /v1/scale instead"),
    ],
)
def test_what_no_worker_could_do_is_refused_before_one_starts(
    options: list[str],
    problem: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Otherwise the mistake would look like a crash loop."""
    (tmp_path / "fleet_tasks.py").write_text("from leaseway import App\napp = App('sqlite:///work.db')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["work", "fleet_tasks:app", "--fleet", "min=1,max=2", *options]) == 2
    assert problem in " ".join(capsys.readouterr().err.split())


def test_a_module_that_cannot_be_imported_is_refused_before_a_worker_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message is the one that a single worker gives."""
    monkeypatch.chdir(tmp_path)
    assert main(["work", "no_such_tasks:app", "--fleet", "min=1,max=2"]) == 2
    assert "no_such_tasks" in capsys.readouterr().err


async def test_a_store_that_refuses_later_does_not_end_the_fleet() -> None:
    """A file that cannot be opened for a moment is refused like a wrong address. At the start that is a mistake to
    report; later it would end workers that are busy."""
    spec = FleetSpec((sys.executable, "-c", ""), {}, ("default",), 4, 1.0, ScalingSettings(workers_min=2))
    async with App("memory://") as app:

        async def open_world() -> Environment:
            return app.world

        fleet = Fleet(spec, open_world, app.world.clock, NoEvents())
        await fleet.decide()
        assert fleet.desired == 2
        app.world.store.inspection = None  # the store refuses to be observed
        await fleet.decide()
        assert fleet.desired == 2
        with pytest.raises(StoreRefused):
            await Fleet(spec, open_world, app.world.clock, NoEvents()).decide()


FORBIDDEN = """
import asyncio
import os
import resource
import subprocess
import sys

from leaseway import App
from leaseway.domain.errors import TerminalError
from leaseway.domain.scaling.demand import ScalingSettings
from leaseway.scaling.fleet import Fleet, FleetSpec
from leaseway.telemetry.log import NoEvents

program, what, most = sys.argv[1:]


async def main():
    async with App("memory://") as app:

        async def open_world():
            return app.world

        await app.world.limiter.open()
        if what == "NPROC" and os.geteuid() == 0:  # the superuser may always fork
            os.setresuid(65_534, 65_534, 65_534)
        if what:
            resource.setrlimit(getattr(resource, "RLIMIT_" + what), (int(most), int(most)))
        spec = FleetSpec((program,), {}, ("default",), 4, 1.0, ScalingSettings(workers_min=1, step_seconds=0.6))
        try:
            await Fleet(spec, open_world, app.world.clock, NoEvents()).run()
        except TerminalError as error:
            print(error)


asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("what", "most", "problem"),
    [
        ("NPROC", "0", "Resource temporarily unavailable"),
        ("NOFILE", "3", "Too many open files"),
        ("", "", "Permission denied"),
    ],
    ids=["no forks", "no files", "no rights to execute"],
)
def test_a_fleet_that_may_not_start_processes_says_why(what: str, most: str, problem: str, tmp_path: Path) -> None:
    """The system refuses the start itself, so there is no worker that could log a reason. It is tried again, because
    such a bound may be reached for a moment only."""
    program = tmp_path / "worker"
    program.touch(mode=0o600)
    ran = subprocess.run(
        [sys.executable, "-c", FORBIDDEN, str(program) if what == "" else "/bin/true", what, most],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert "5 workers in a row failed to start" in ran.stdout
    assert "the last one cannot be started: " in ran.stdout
    assert problem in ran.stdout
