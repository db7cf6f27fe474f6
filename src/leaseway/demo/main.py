"""leaseway demo"""

import click

from leaseway.demo.work_folder import work_folder


@click.command("demo")
@click.option("--rows", type=click.IntRange(1_000, 5_000_000), help="Number of places to import. Default: all.")
@click.option(
    "--workers", type=click.IntRange(1, 16), default=8, show_default=True, help="The most that the fleet may start."
)
@click.option(
    "--limit", type=click.IntRange(5, 1_000), default=50, show_default=True,
    help="The provider's limit: requests in any second, for all workers together.",
)  # fmt: skip
@click.option(
    "--seed", type=int, default=1, show_default=True, help="Seed that decides which worker is killed, and when."
)
@click.option(
    "--store", metavar="URL",
    help="Keep jobs and rows in this empty database, postgresql:// or mongodb://. Default: SQLite files.",
)  # fmt: skip
@click.option("--keep", type=click.Path(file_okay=False), help="Use this new folder, and keep it.")
@click.option("--json", "as_json", is_flag=True, help="The report as JSON; progress goes to stderr.")
@click.pass_context
def command(
    context: click.Context,
    rows: int | None,
    workers: int,
    limit: int,
    seed: int,
    store: str | None,
    keep: str | None,
    as_json: bool,
) -> None:
    """Show leaseway at work: import about 235,000 places from an API on this machine, with a fleet that grows from one
    worker, under one limit. One worker is killed on purpose.

    Everything happens on this machine, in a folder that is removed afterwards. With --store, jobs and rows are in that
    database, and stay there. The exit code is 0 only if every place
    was imported once and unchanged, and the provider never answered 429.
    """
    import json

    from rich.console import Console

    from leaseway.demo.report import as_dict, print_report
    from leaseway.demo.runner import DemoScreen, DemoSettings, check_installed, show
    from leaseway.demo.verify import check_url

    check_installed()
    as_json = as_json or getattr(context.obj, "json", False)  # given before the command
    console = Console(stderr=as_json, highlight=False)
    settings = DemoSettings(rows, workers, limit, seed, None if store is None else check_url(store))
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
