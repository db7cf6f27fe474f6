"""The names that `from leaseway import …` offers."""

import subprocess
import sys
from pathlib import Path

import leaseway


def test_every_public_name_is_there_and_sorted() -> None:
    """Names are imported lazily, so a wrong entry would fail only when a user first imports it."""
    assert sorted(leaseway.__all__) == leaseway.__all__
    for name in leaseway.__all__:
        assert getattr(leaseway, name).__name__ == name


def test_an_unknown_name_is_an_attribute_error() -> None:
    """A misspelt name must fail as it does in any module."""
    assert not hasattr(leaseway, "Ap")


def test_a_type_checker_sees_the_public_names(tmp_path: Path) -> None:
    """Type checkers cannot follow lazy imports, so the module declares the names for them as well."""
    script = tmp_path / "user.py"
    script.write_text(
        "from leaseway import App\n"
        "app = App('memory://')\n"
        "@app.job\n"
        "async def f(x: int) -> str:\n"
        "    return str(x)\n"
        "reveal_type(f)\n"
    )
    answer = subprocess.run([sys.executable, "-m", "mypy", "--strict", str(script)], capture_output=True, text=True)
    assert "JobWithoutContext[def (x: int) -> typing.Coroutine[Any, Any, str]]" in answer.stdout, answer.stdout
