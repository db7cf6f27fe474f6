"""What `from leaseway import …` promises."""

import re
import subprocess
import sys
from pathlib import Path

import leaseway


def test_every_public_name_is_there_and_sorted() -> None:
    """Names are imported late, so a wrong entry would be noticed by the first user only."""
    assert sorted(leaseway.__all__) == leaseway.__all__
    for name in leaseway.__all__:
        assert getattr(leaseway, name).__name__ == name


def test_what_is_not_public_is_not_there() -> None:
    """A typing error must fail as it does in any module."""
    assert not hasattr(leaseway, "Ap")


def test_types_are_the_same_for_a_type_checker(tmp_path: Path) -> None:
    """Late names are invisible to type checkers unless they are told."""
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
    assert "JobHandle[[x: int]" in answer.stdout.replace("def ", ""), answer.stdout


def test_the_reference_describes_every_public_name() -> None:
    """Users look up a name before they read the source; a name that is not on the page does not exist for them."""
    page = (Path(__file__).parents[1] / "docs" / "reference" / "python.md").read_text("utf-8")
    assert [name for name in leaseway.__all__ if not re.search(rf"\b{name}\b", page)] == []
