import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.place import Place


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Place]:
    """An empty folder for a store. The app's module is imported anew for each test, as in a new process."""
    before = set(sys.modules)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("COLUMNS", "100")
    for name in ("LEASEWAY_LIMITS", "LEASEWAY_TRACEBACK", "FORCE_COLOR", "NO_COLOR", "_LEASEWAY_COMPLETE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LEASEWAY_STORE", "sqlite:///work.db")
    yield Place(tmp_path, capsys)
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None)
        if file is not None and file.startswith(str(tmp_path)):
            del sys.modules[name]
