"""The reference page of the command line shows every command and option as the program does."""

import pytest
from tests.cli.reference import MARK, PAGE, render_page

from leaseway.cli.main import main


def test_the_page_is_up_to_date() -> None:
    """Readers look up options here first. `python -m tests.cli.reference` writes the page again."""
    assert PAGE.read_text("utf-8").partition(MARK)[2] == render_page()


@pytest.mark.parametrize("command", ["", "work", "jobs", "jobs list", "import quarantine replay"])
def test_the_page_shows_what_the_program_prints(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The page is rendered without running the program, so a sample of commands is run to compare."""
    monkeypatch.setenv("COLUMNS", "80")
    assert main([*command.split(), "--help"]) == 0
    typed = f"leaseway {command}".strip()
    assert f"\n$ {typed} --help\n{capsys.readouterr().out}```\n" in PAGE.read_text("utf-8")
