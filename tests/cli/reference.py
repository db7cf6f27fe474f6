"""The help text of every command as a page: `python -m tests.cli.reference` writes it below the mark in
docs/reference/command-line.md, and test_reference.py compares the two."""

from collections.abc import Iterator
from pathlib import Path

import click

from leaseway.cli.main import root

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "command-line.md"
MARK = "<!-- Generated from the help texts: python -m tests.cli.reference -->\n"
TERMINAL_WIDTH = 80
"""The width that click assumes for a terminal of 80 columns, whatever the terminal of this process has."""


def render_page() -> str:
    return "".join(
        f"\n## `{path}`\n\n```text\n$ {path} --help\n{text}\n```\n" for path, text in help_texts(root, "leaseway", None)
    )


def help_texts(command: click.Command, name: str, parent: click.Context | None) -> Iterator[tuple[str, str]]:
    """The name and help text of a command and of all commands below it."""
    context = click.Context(
        command, info_name=name, parent=parent, terminal_width=TERMINAL_WIDTH - 2, **command.context_settings
    )
    yield context.command_path, command.get_help(context)
    if isinstance(command, click.Group):
        for below in command.list_commands(context):
            found = command.get_command(context, below)
            assert found is not None
            yield from help_texts(found, below, context)


def main() -> None:
    by_hand, mark, _ = PAGE.read_text("utf-8").partition(MARK)
    PAGE.write_text(by_hand + (mark or MARK) + render_page(), "utf-8")


if __name__ == "__main__":
    main()
