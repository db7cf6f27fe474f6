"""Groups of commands, imported when they are called and listed in the order in which they are written."""

from collections.abc import Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class InOrder(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


class Lazy(NamedTuple):
    target: str
    """module:attribute"""
    summary: str
    """Repeated here, so that the list of commands imports none of them."""


class LazyGroup(click.Group):
    def __init__(self, *, lazy: Mapping[str, Lazy], **settings: Any) -> None:
        super().__init__(**settings)
        self._lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._lazy:
            return None
        module, _, attribute = self._lazy[cmd_name].target.partition(":")
        try:
            found = getattr(import_module(module), attribute)
        except ModuleNotFoundError as error:
            if error.name is None or not module.startswith(error.name):
                raise
            raise click.UsageError(f"this installation of leaseway has no command '{cmd_name}'") from error
        assert isinstance(found, click.Command)
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        is_a_name = not args[0].startswith("-") and not ctx.resilient_parsing
        if is_a_name and args[0] not in self._lazy and (close := get_close_matches(args[0], self._lazy, n=1)):
            ctx.fail(f"no such command {args[0]!r}. Did you mean {close[0]!r}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, lazy.summary) for name, lazy in self._lazy.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem]":
        from click.shell_completion import CompletionItem

        matching = [(name, lazy) for name, lazy in self._lazy.items() if name.startswith(incomplete)]
        named = [CompletionItem(name, help=lazy.summary) for name, lazy in matching]
        return named + click.Command.shell_complete(self, ctx, incomplete)
