"""The programs that tests may start: Python, what the lock installs, and Debian's minimal system.

`./dev test` must pass on a machine without git, curl, ps, a compiler or node. So the suite runs with a PATH that
contains nothing else, here and in every process that it starts: a test that needs another program fails on every
machine, not only on a bare one.
"""

import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path

SHELL_PROGRAMS = """
awk base64 basename bash cat chmod cmp cp cut date dirname echo env expr false find grep gzip head id kill ln ls md5sum
mkdir mkfifo mktemp mv nohup od paste printf pwd readlink rm rmdir sed seq setsid sh sha256sum sleep sort tail tar tee
test timeout touch tr true uname uniq wc xargs
"""
ALLOWED = frozenset(SHELL_PROGRAMS.split())
"""Programs of Debian's essential packages that scripts and documents may use."""

OPTIONAL = frozenset({"chattr", "ldconfig", "locale", "mount", "umount"})
"""Programs that a test or a server uses if they exist; it must skip or continue without them."""

USER_PATH = "LEASEWAY_TESTS_USER_PATH"
"""The variable that keeps the PATH of the user who started the suite."""


def restrict_path() -> None:
    """Replace PATH for this process and all that it starts; workers of pytest-xdist inherit it."""
    if USER_PATH in os.environ:
        return
    os.environ[USER_PATH] = os.environ.get("PATH", os.defpath)
    folder = Path(tempfile.mkdtemp(prefix="leaseway-programs-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for name in sorted(ALLOWED | OPTIONAL):
        if found := find_installed(name):
            (folder / name).symlink_to(found)
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), str(folder)])


def find_installed(name: str) -> str | None:
    """The program that the user of this machine would start, for tests that can use it but do not need it."""
    return shutil.which(name, path=os.pathsep.join([os.environ[USER_PATH], "/usr/sbin", "/sbin"]))


def use_known_terminal() -> None:
    """Make colours and widths independent of the terminal, or of the lack of one, in which the suite runs."""
    for name in ("NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "COLUMNS", "LINES"):
        os.environ.pop(name, None)
    os.environ["TERM"] = "xterm-256color"
