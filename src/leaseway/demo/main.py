"""leaseway demo"""

import click


@click.command("demo")
@click.option("--jobs", type=click.IntRange(100, 1_000_000), default=20_000, show_default=True, help="To submit.")
@click.option("--workers", type=click.IntRange(1, 16), default=3, show_default=True, help="Processes.")
@click.option("--seed", type=int, default=1, show_default=True, help="Decides who is killed and when.")
@click.option("--keep", type=click.Path(file_okay=False), help="Work in this new folder, and leave it there.")
@click.option("--json", "as_json", is_flag=True, help="The report as JSON; progress goes to stderr.")
@click.pass_context
def command(context: click.Context, jobs: int, workers: int, seed: int, keep: str | None, as_json: bool) -> None:
    """Show leaseway at work: a provider, some workers, and one of them killed on purpose.

    Everything happens on this machine, in a folder that is removed afterwards. The exit code is 0 only if nothing was
    lost and nothing was done twice.
    """
    import json

    from rich.console import Console

    from leaseway.demo.closing import as_dict, as_table
    from leaseway.demo.folder import work_folder
    from leaseway.demo.screen import Screen
    from leaseway.demo.show import Settings, show

    as_json = as_json or getattr(context.obj, "json", False)  # said before the command
    console = Console(stderr=as_json)
    with work_folder(keep) as folder:
        shown = show(Settings(jobs, workers, seed), folder.path, Screen(console, jobs))
        if not shown.verdict.is_clean:
            folder.keep()
            console.print(f"the evidence is in {folder.path}", highlight=False)
    if as_json:
        click.echo(json.dumps(as_dict(shown)))
    else:
        console.print("", as_table(shown))
    context.exit(0 if shown.verdict.is_clean else 1)
