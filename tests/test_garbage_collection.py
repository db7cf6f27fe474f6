"""The garbage collector in processes that leaseway owns."""

import gc
import subprocess
import sys
from pathlib import Path

from tests.garbage import unfreeze

from leaseway.system import freeze_late_import, garbage_collected_rarely

PROGRAM = """
import gc, sys
from leaseway import App

app = App(sys.argv[1])
seen = []

@app.job
async def look() -> None:
    seen.append((gc.get_freeze_count(), gc.get_threshold()[0]))

look.submit_sync()
before = gc.get_freeze_count(), gc.get_threshold()[0]
app.work(until_empty=True)
print(*before, *seen[0], gc.get_freeze_count(), gc.get_threshold()[0], len(sys.modules))
"""


def test_a_worker_process_does_not_scan_its_modules_again(tmp_path: Path) -> None:
    """It took a sixth of the CPU of a job with one call. A program that goes on after `app.work` gets its collector
    back as it was."""
    command = [sys.executable, "-c", PROGRAM, f"sqlite:///{tmp_path / 'work.db'}"]
    printed = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=120).stdout
    frozen_before, young_before, frozen, young, frozen_after, young_after, modules = map(int, printed.split())
    assert frozen_before == 0
    assert frozen > 10 * modules > 1_000
    assert young > young_before > 0
    assert (frozen_after, young_after) == (0, young_before)


def test_a_collector_that_is_off_stays_off() -> None:
    """The program decides: a threshold would switch it on."""
    before = gc.get_threshold()
    try:
        gc.set_threshold(0, 10, 10)
        with garbage_collected_rarely():
            assert gc.get_threshold()[0] == 0
        assert gc.get_threshold()[0] == 0
    finally:
        gc.set_threshold(*before)


def test_late_imports_are_frozen_only_where_others_are() -> None:
    """A program that runs a worker beside other things keeps its collector."""
    unfreeze()  # what the suite has frozen
    freeze_late_import()
    assert gc.get_freeze_count() == 0
    with garbage_collected_rarely():
        count = gc.get_freeze_count()
        late = [[number] for number in range(1_000)]
        freeze_late_import()
        assert gc.get_freeze_count() >= count + len(late)
