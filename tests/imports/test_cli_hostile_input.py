"""`leaseway import` without a terminal, with everything in one file, and with parts that cannot be reached."""

import asyncio
import json
from pathlib import Path

import pytest
from tests.imports.test_import_faults import Import, ran, things
from tests.sqlite_files import open_sqlite


def words_of(it: Import, *words: str) -> list[str]:
    return it.command("run", str(it.path), "--workers", "1", *words)


def closed(command: list[str], streams: str) -> list[str]:
    return ["sh", "-c", f'exec "$@" {streams}', "sh", *command]


@pytest.mark.slow
@pytest.mark.parametrize("streams", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_an_import_to_which_nobody_listens_is_done_all_the_same(tmp_path: Path, streams: str) -> None:
    """A service may be started without stdout, and the import must not fail because of it."""
    it = Import(tmp_path, things(3))
    assert ran(closed(words_of(it), streams)).returncode == 0
    assert it.ids() == ["0", "1", "2"]


@pytest.mark.slow
def test_rows_and_jobs_may_lie_in_one_file(tmp_path: Path) -> None:
    """Whichever of the two opens the file first, the other must not take it for the file of another program."""
    it = Import(tmp_path, things(3))
    it.store = f"sqlite:///{tmp_path}/data.db"
    told = ran(words_of(it))
    assert (told.returncode, told.stderr.count("error")) == (0, 0), told.stderr
    assert it.ids() == ["0", "1", "2"]


@pytest.mark.slow
def test_a_run_whose_jobs_nobody_can_keep_is_not_begun(tmp_path: Path) -> None:
    """The run would stay in the sink as running for ever."""
    it = Import(tmp_path, things(3))
    it.store = f"sqlite:///{tmp_path}/nowhere/jobs.db"
    told = ran(words_of(it))
    assert told.returncode == 2
    assert "nowhere" in told.stderr
    assert not (tmp_path / "data.db").exists()


@pytest.mark.slow
async def test_two_who_begin_a_run_of_one_name_at_once_share_it(tmp_path: Path) -> None:
    """One of them may be told that the run exists; neither may fail in another way, and each row is written once."""
    it = Import(tmp_path, things(500))
    both = [asyncio.to_thread(ran, words_of(it, "--run", "nightly")) for _ in range(2)]
    answers = await asyncio.gather(*both)
    codes = sorted(answer.returncode for answer in answers)
    assert codes in ([0, 0], [0, 2])
    assert all("run: nightly exists already" in answer.stderr for answer in answers if answer.returncode)
    assert len(it.ids()) == 500
    with open_sqlite(tmp_path / "data.db") as file:
        assert file.execute("SELECT state, inserted, unchanged FROM leaseway_shards").fetchall() == [("done", 500, 0)]


@pytest.mark.slow
def test_json_is_all_there_is_on_stdout(tmp_path: Path) -> None:
    """One line of progress on stdout would break every program that parses the output."""
    it = Import(tmp_path, [*things(20), "no JSON at all"])
    told = ran([*words_of(it), "--json"])
    assert json.loads(told.stdout)["state"] == "complete"
    assert told.returncode == 0
