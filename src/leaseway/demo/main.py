"""leaseway demo"""

import click


@click.command("demo")
@click.option("--rows", type=click.IntRange(1_000, 5_000_000), help="Places to import; without it, all there are.")
@click.option("--workers", type=click.IntRange(1, 16), default=4, show_default=True, help="Processes.")
@click.option(
    "--limit", type=click.IntRange(5, 1_000), default=50, show_default=True,
    help="Requests in any second that the provider permits to all of them together.",
)  # fmt: skip
@click.option("--seed", type=int, default=1, show_default=True, help="Decides who is killed and when.")
@click.option("--keep", type=click.Path(file_okay=False), help="Work in this new folder, and leave it there.")
@click.option("--json", "as_json", is_flag=True, help="The report as JSON; progress goes to stderr.")
@click.pass_context
def command(
    context: click.Context, rows: int | None, workers: int, limit: int, seed: int, keep: str | None, as_json: bool
) -> None:
    """Show leaseway at work: some 235,000 places are imported from an API on this machine, by several workers under one
    limit, and one of them is killed on purpose.

    Everything happens on this machine, in a folder that is removed afterwards. The exit code is 0 only if every place
    arrived once, as it is, and the provider never had to say no.
    """
    import json

    from rich.console import Console

    from leaseway.demo.closing import as_dict, print_report
    from leaseway.demo.folder import work_folder
    from leaseway.demo.screen import DemoScreen
    from leaseway.demo.show import DemoSettings, check_installed, show

    check_installed()
    as_json = as_json or getattr(context.obj, "json", False)  # said before the command
    console = Console(stderr=as_json, highlight=False)
    settings = DemoSettings(rows, workers, limit, seed)
    with work_folder(keep) as folder:
        shown = show(settings, folder.path, DemoScreen(console))
        if not shown.is_clean:
            folder.keep()
        if as_json:
            click.echo(json.dumps(as_dict(shown)))
        else:
            print_report(console, shown, folder)
        if not shown.is_clean:
            console.print(f"the evidence is in {folder.path}", style="red", soft_wrap=True)
    context.exit(0 if shown.is_clean else 1)
