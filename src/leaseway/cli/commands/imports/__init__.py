"""leaseway import [init|plan|run|resume|work|status|report|diff|quarantine]"""

from typing import Any

import click

from leaseway.cli.lazy_groups import InOrder
from leaseway.cli.options import CliSettings, pass_settings, with_limits, with_store

SPEC = click.argument("spec")
RUN = click.option("--run", "run", metavar="ID", help="Id of the run. Default: the last run of this source.")
NEW_RUN = click.option("--run", "run", metavar="ID", help="Id of the new run.")
LEASE = click.option(
    "--lease", "lease_seconds", type=click.FloatRange(1), default=15, show_default=True, metavar="SECONDS",
    help="Seconds after which the shards of a dead worker are taken over.",
)  # fmt: skip
WORKERS = click.option(
    "--workers", type=click.IntRange(1, 64), default=2, show_default=True, help="Number of worker processes."
)
REQUESTS_MAX = click.option(
    "--requests-max", type=click.IntRange(1), metavar="N", help="Maximum number of requests; overrides the spec."
)
OVERWRITE = click.option(
    "--overwrite-stale",
    "overwrites_stale",
    is_flag=True,
    help="Let records replace rows with a newer stamp, after the source was set back.",
)
FULL = click.option("--full", "mode", flag_value="full", help="Full run, even if an incremental one is due.")
INCREMENTAL = click.option(
    "--incremental", "mode", flag_value="incremental", help="Incremental run, even if a full one is due."
)


@click.group("import", cls=InOrder)
@with_store
def command() -> None:
    """Import from an API or a file: plan, run, resume, inspect.

    SPEC is a TOML file, one of several resources in a file (shop.toml#orders), or MODULE:NAME of an importer that
    @app.importer made.
    """


@command.command("init")
@click.argument("place", metavar="URL|OPENAPI")
@click.option("--path", metavar="PATH", help="The path to import, of an OpenAPI document with several.")
@click.option("--name", metavar="NAME", help="Name of the source. Default: the end of the path.")
@click.option("--header", metavar="NAME", help="Header for the key.  [default: X-API-Key]")
@click.option("--env", metavar="VARIABLE", help="Environment variable with the key.")
def init(place: str, **wishes: Any) -> None:
    """Print a first spec, guessed from one reply of an API, or from an OpenAPI document (URL or JSON file).

    Include the API's parameters for paging in the URL, such as '?offset=0&limit=100', so that they are recognized.
    """
    from leaseway.cli.commands.imports.init import InitOptions, make_spec
    from leaseway.cli.output.console import Lines, say

    say(Lines(make_spec(InitOptions(place, **wishes)).rstrip()))


@command.command("plan")
@SPEC
@FULL
@INCREMENTAL
@REQUESTS_MAX
@with_store
@pass_settings
def plan(settings: CliSettings, spec: str, mode: str | None, requests_max: int | None) -> int:
    """Show the shards, the forecast, and the problems that would prevent a run.

    Nothing is imported. Exits with 2 if the import cannot run.
    """
    from leaseway.cli.commands.imports.open_sink import each_resource
    from leaseway.cli.commands.imports.plan import show_plan
    from leaseway.imports.domain.run_state import RunMode

    wanted = None if mode is None else RunMode(mode)
    return max([show_plan(settings, each, wanted, requests_max) for each in each_resource(spec)])


@command.command("run")
@SPEC
@NEW_RUN
@WORKERS
@FULL
@INCREMENTAL
@REQUESTS_MAX
@LEASE
@OVERWRITE
@click.option("--dry-run", is_flag=True, help="Only show the plan.")
@with_limits
@pass_settings
def run(settings: CliSettings, /, spec: str, mode: str | None, dry_run: bool, **wishes: Any) -> int:
    """Import everything, or what has changed. Exits with 0 complete, 1 partial, 2 failed, 3 suspect,
    4 unverified.

    If it is interrupted or killed, `resume` continues after the last page that was written.
    """
    from leaseway.cli.commands.imports.open_sink import each_resource
    from leaseway.imports.domain.run_state import RunMode

    wanted = None if mode is None else RunMode(mode)
    if dry_run:
        from leaseway.cli.commands.imports.plan import show_plan

        return max([show_plan(settings, each, wanted, wishes["requests_max"]) for each in each_resource(spec)])
    from leaseway.cli.commands.imports.run import RunOptions, run_each

    return run_each(settings, each_resource(spec), RunOptions(spec=spec, mode=wanted, **wishes), is_new=True)


@command.command("resume")
@SPEC
@RUN
@WORKERS
@REQUESTS_MAX
@LEASE
@with_limits
@pass_settings
def resume(settings: CliSettings, /, spec: str, **wishes: Any) -> int:
    """Continue an interrupted run, and retry its failed shards."""
    from leaseway.cli.commands.imports.open_sink import each_resource
    from leaseway.cli.commands.imports.run import RunOptions, run_each

    return run_each(settings, each_resource(spec), RunOptions(spec=spec, **wishes), is_new=False)


@command.command("work")
@SPEC
@click.option("--until-empty", is_flag=True, help="Exit when no shard is left.")
@with_limits
@pass_settings
def work(settings: CliSettings, spec: str, until_empty: bool) -> None:
    """Run one worker process for the shards of this source. Start as many as you need, on any machine."""
    from leaseway.cli.commands.imports.run import work_on

    work_on(settings, spec, until_empty)


@command.command("status")
@SPEC
@RUN
@click.option("--watch", is_flag=True, help="Show progress until the run ends.")
@with_store
@pass_settings
def status(settings: CliSettings, spec: str, run: str | None, watch: bool) -> None:
    """Show the progress of a run, shard by shard. Needs no API key."""
    from leaseway.cli.commands.imports.report import show_status

    show_status(settings, spec, run, watch)


@command.command("report")
@SPEC
@RUN
@with_store
@pass_settings
def report(settings: CliSettings, spec: str, run: str | None) -> None:
    """Show everything known about a run: shards, rows, guards, deletes, drift."""
    from leaseway.cli.commands.imports.report import show_report

    show_report(settings, spec, run)


@command.command("diff")
@SPEC
@click.argument("run_before", required=False)
@click.argument("run_after", required=False)
@with_store
@pass_settings
def diff(settings: CliSettings, spec: str, run_before: str | None, run_after: str | None) -> None:
    """Compare two runs: totals, shards, rows, documents.

    Without arguments: the last two runs. With one: that run and the last one.
    """
    from leaseway.cli.commands.imports.diff import show_diff

    show_diff(settings, spec, run_before, run_after)


class ListsByItself(InOrder):
    """`quarantine SPEC` is short for `quarantine list SPEC`."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        return super().resolve_command(ctx, args if args[0] in self.commands else ["list", *args])


@command.group("quarantine", cls=ListsByItself)
@with_store
def quarantine() -> None:
    """Records that could not become rows: list them, try them again.

    `quarantine SPEC` is short for `quarantine list SPEC`.
    """


@quarantine.command("list")
@SPEC
@click.option("--run", "run", metavar="ID", help="Only records of this run.")
@with_store
@pass_settings
def quarantine_list(settings: CliSettings, spec: str, run: str | None) -> None:
    """List the records, oldest first, with the problem of each."""
    from leaseway.cli.commands.imports.quarantine import show_quarantine

    show_quarantine(settings, spec, run)


@quarantine.command("replay")
@SPEC
@click.option("--run", "run", metavar="ID", help="Only records of this run.")
@click.option(
    "--discard", type=int, multiple=True, metavar="N", help="Discard record number N instead. May be repeated."
)
@with_store
@pass_settings
def quarantine_replay(settings: CliSettings, spec: str, run: str | None, discard: tuple[int, ...]) -> None:
    """Try the records again with the current spec.

    Records that become rows are written and leave quarantine; the others stay.
    """
    from leaseway.cli.commands.imports.quarantine import replay_quarantine

    replay_quarantine(settings, spec, run, discard)
