"""Tests that check for orphaned processes are only as good as the functions that find processes."""

import os
import signal
import subprocess
import sys

import pytest
from tests.processes import PROC, child_processes, is_alive, kill_session

pytestmark = pytest.mark.skipif(not (PROC / "self" / "stat").exists(), reason="needs /proc")

PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
child.wait()
"""


def test_children_are_found_and_end_with_their_session() -> None:
    """If no child were found, a test for orphans would pass whatever the program does."""
    command = [sys.executable, "-c", PARENT]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as parent:
        assert parent.stdout
        child = int(parent.stdout.readline())
        try:
            assert parent.pid in child_processes(os.getpid())
            assert child_processes(parent.pid) == [child]
        finally:
            kill_session(parent)
    assert not is_alive(parent.pid)


@pytest.mark.timeout(20)
def test_a_failed_block_does_not_wait_for_its_process() -> None:
    """A failed test must not hang because the process that it started never ends."""
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    with pytest.raises(AssertionError), subprocess.Popen(command) as process:
        raise AssertionError
    assert process.returncode == -signal.SIGKILL
