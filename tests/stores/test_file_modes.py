"""A store contains arguments and results of all tenants, and a sink everything that was imported. Files that any user
of the machine can read would disclose them, whatever the service checks."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.imports.apps import import_app

from leaseway import App, Limit
from leaseway.domain.health import FindingLevel
from leaseway.imports.run.assembly import load_import
from leaseway.imports.run.plan import plan_with_history
from leaseway.imports.run.start import start_planned
from leaseway.stores.sqlite.backup import back_up, restore
from leaseway.stores.sqlite.health import run_checks
from leaseway.system import wall_clock_us

pytestmark = pytest.mark.skipif(os.name != "posix", reason="files have no modes")

SPEC = """
version = 1
[source]
name = "things"
file = "things.jsonl"
[resource]
key = "id"
page = {{ cursor = "none", limit = 100 }}
[sink]
url = "{url}"
table = "things"
"""


@pytest.fixture(params=[0o000, 0o022, 0o277], ids=["open", "usual", "odd"])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    """Most machines use 022, with which files are readable by everyone."""
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def modes(folder: Path) -> dict[str, str]:
    return {path.name: oct(stat.S_IMODE(path.stat().st_mode)) for path in sorted(folder.rglob("*")) if path.is_file()}


async def worked(folder: Path) -> dict[str, str]:
    """The modes of all files of a store while it is used."""
    async with App(f"sqlite:///{folder}/work.db") as app:

        @app.job(limits=[Limit("maps", "10/second")])
        async def noop() -> None: ...

        await noop.submit()
        await app.run_worker(until_empty=True)
        return modes(folder)


async def test_the_files_of_a_store_are_private(tmp_path: Path, umask: int) -> None:
    """This includes the write-ahead log, which contains the same rows, and the limits."""
    found = await worked(tmp_path)
    assert {"work.db", "work.db-wal", "work.db-shm", "work.db-limits"} <= found.keys()
    assert set(found.values()) == {"0o600"}


async def test_a_backup_is_private(tmp_path: Path, umask: int) -> None:
    """A backup is a store, and often lies in a folder that others can read."""
    await worked(tmp_path)
    back_up(tmp_path / "work.db", tmp_path / "copy.db", lambda *_: None)
    restore(tmp_path / "copy.db", tmp_path / "again.db", lambda *_: None)
    assert set(modes(tmp_path).values()) == {"0o600"}


async def test_a_file_that_exists_keeps_its_mode(tmp_path: Path) -> None:
    """An operator may have shared it with a group on purpose, and SQLite gives its log the same mode."""
    (tmp_path / "work.db").touch()
    (tmp_path / "work.db").chmod(0o640)
    found = await worked(tmp_path)
    assert (found["work.db"], found["work.db-wal"]) == ("0o640", "0o640")


@pytest.mark.parametrize("url", ["sqlite:///{}/data.db", "parquet:///{}/rows"])
async def test_the_state_of_a_sink_is_private(tmp_path: Path, url: str) -> None:
    """Run tables contain bad rows and errors. Parquet files are made for other programs and follow the umask."""
    before = os.umask(0o022)
    try:
        (tmp_path / "things.toml").write_text(SPEC.format(url=url.format(tmp_path)))
        (tmp_path / "things.jsonl").write_text('{"id": 1}\n')
        parts = load_import(tmp_path / "things.toml")
        await parts.sink.open()
        app, handle = import_app(parts, f"sqlite:///{tmp_path}/jobs.db")
        async with app:
            await start_planned(parts, handle, "run", await plan_with_history(parts), wall_clock_us())
            await app.run_worker(queues=[parts.queue], until_empty=True)
        found = modes(tmp_path)
        await parts.sink.close()
    finally:
        os.umask(before)
    shared = {name for name, mode in found.items() if mode != "0o600"}
    assert {name for name in shared if not name.endswith((".parquet", ".toml", ".jsonl"))} == set()
    assert any(name.endswith((".db", ".sqlite")) for name in found)


async def test_doctor_warns_about_files_that_others_can_read(tmp_path: Path) -> None:
    """Stores of an earlier time, or ones that were copied, may be readable by everyone."""
    await worked(tmp_path)
    path = tmp_path / "work.db"

    def finding() -> tuple[FindingLevel, str, str | None]:
        (found,) = [each for each in run_checks(str(path), wall_clock_us(), False) if each.check == "permissions"]
        return found.level, found.text, found.advice

    assert finding()[0] is FindingLevel.OK
    (tmp_path / "work.db-limits").chmod(0o644)
    level, text, advice = finding()
    assert level is FindingLevel.WARNING
    assert "work.db-limits" in text
    assert advice == f"Unless that is intended, run: chmod 600 {path}-limits"
