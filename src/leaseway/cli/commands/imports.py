"""leaseway import [plan|run|resume|work|status|report|quarantine]"""

from pathlib import Path

import click

from leaseway.cli.commands.options import pass_settings, with_store
from leaseway.cli.lazy import InOrder
from leaseway.cli.settings import Settings

SPEC = click.argument("spec", type=click.Path(exists=True, dir_okay=False, path_type=Path))
RUN = click.option("--run", "run", metavar="ID", help="The run; without it, the last one of this source.")
NEW_RUN = click.option("--run", "run", metavar="ID", help="A name for the new run.")
LEASE = click.option(
    "--lease", "lease_seconds", type=click.FloatRange(1), default=15, show_default=True, metavar="SECONDS",
    help="How long a worker that died keeps its shards from others.",
)  # fmt: skip
WORKERS = click.option("--workers", type=click.IntRange(1, 64), default=2, show_default=True, help="Worker processes.")


@click.group("import", cls=InOrder)
@with_store
def command() -> None:
    """Import from an API or a file: plan, run, resume, look."""


@command.command("plan")
@SPEC
@with_store
@pass_settings
def plan(settings: Settings, spec: Path) -> None:
    """Show the shards, and what they will take, without importing anything."""
    from leaseway.cli.verbs.imports import show_plan

    show_plan(settings, spec)


@command.command("run")
@SPEC
@NEW_RUN
@WORKERS
@LEASE
@with_store
@pass_settings
def run(settings: Settings, spec: Path, run: str | None, workers: int, lease_seconds: float) -> int:
    """Import everything. Exits with 0 complete, 1 partial, 2 failed, 3 suspect.

    Interrupted or killed, it goes on with `resume`: at the last page that was written.
    """
    from leaseway.cli.verbs.imports import Crew, run_import

    return run_import(settings, spec, run, Crew(workers, lease_seconds), is_new=True)


@command.command("resume")
@SPEC
@RUN
@WORKERS
@LEASE
@with_store
@pass_settings
def resume(settings: Settings, spec: Path, run: str | None, workers: int, lease_seconds: float) -> int:
    """Go on with a run that was interrupted, and try again what failed."""
    from leaseway.cli.verbs.imports import Crew, run_import

    return run_import(settings, spec, run, Crew(workers, lease_seconds), is_new=False)


@command.command("work")
@SPEC
@click.option("--until-empty", is_flag=True, help="Leave when no shard is left.")
@with_store
@pass_settings
def work(settings: Settings, spec: Path, until_empty: bool) -> None:
    """One worker process for the shards of this source; start as many as you like, anywhere."""
    from leaseway.cli.verbs.imports import work_on

    work_on(settings, spec, until_empty)


@command.command("status")
@SPEC
@RUN
@with_store
@pass_settings
def status(settings: Settings, spec: Path, run: str | None) -> None:
    """How far a run has come, shard by shard."""
    from leaseway.cli.verbs.imports import show_status

    show_status(settings, spec, run)


@command.command("quarantine")
@SPEC
@RUN
@with_store
@pass_settings
def quarantine(settings: Settings, spec: Path, run: str | None) -> None:
    """Records that could not become rows, and why."""
    from leaseway.cli.verbs.imports import show_quarantine

    show_quarantine(settings, spec, run)
