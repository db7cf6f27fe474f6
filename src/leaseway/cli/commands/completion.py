"""leaseway completion bash|zsh|fish"""

import click

from leaseway.cli.options import everywhere
from leaseway.cli.output.console import Lines, say

INSTALL = {
    "bash": 'Add to ~/.bashrc:  eval "$(leaseway completion bash)"',
    "zsh": 'Add to ~/.zshrc, after compinit:  eval "$(leaseway completion zsh)"',
    "fish": "Run once:  leaseway completion fish > ~/.config/fish/completions/leaseway.fish",
}


@click.command("completion")
@click.argument("shell", type=click.Choice(list(INSTALL)))
@everywhere
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a shell.

    \b
      bash  add to ~/.bashrc:  eval "$(leaseway completion bash)"
      zsh   add to ~/.zshrc, after compinit:  eval "$(leaseway completion zsh)"
      fish  leaseway completion fish > ~/.config/fish/completions/leaseway.fish
    """
    from click.shell_completion import ShellComplete, get_completion_class

    completion = get_completion_class(shell)
    assert completion is not None, "click knows these shells"
    made = completion(ctx.find_root().command, {}, "leaseway", "_LEASEWAY_COMPLETE")
    # Not made.source(): for bash it starts a shell to ask for its version, and the script may be for another machine.
    say(Lines(f"# {INSTALL[shell]}\n{ShellComplete.source(made)}"))
