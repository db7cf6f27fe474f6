"""leaseway backup, leaseway restore"""

from pathlib import Path

import click

from leaseway.cli.open_store import store_url
from leaseway.cli.options import CliSettings, pass_settings, with_store
from leaseway.cli.output.console import print_json, say, show_status
from leaseway.domain.errors import StoreRefused
from leaseway.domain.health import render_bytes
from leaseway.domain.redact import redact_url
from leaseway.domain.validators import url_scheme
from leaseway.wiring import sqlite_path

ADVICE = {
    "postgresql": "back up PostgreSQL with pg_dump or continuous archiving",
    "mongodb": "back up MongoDB with mongodump --oplog, snapshots of its files, or the backups of its service",
    "memory": "a store in memory ends with its process",
}


@click.command("backup")
@click.argument("file", type=click.Path(path_type=Path))
@with_store
@pass_settings
def command(settings: CliSettings, file: Path) -> int:
    """Copy a store in an SQLite file while it is in use. FILE is the name of the copy and must not exist.

    The copy contains everything that was committed when the command began, and the definitions of limits in a second
    file, FILE-limits. It is a store itself: look into it with --store.
    """
    from leaseway.stores.sqlite.backup import back_up  # sqlite3 is not needed for the help

    path = file_of_store(settings)
    back_up(path, file, show_progress)
    return report(settings, "backed up", path, file)


@click.command("restore")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--replace", is_flag=True, help="Delete the store if it exists.")
@with_store
@pass_settings
def restore_command(settings: CliSettings, file: Path, replace: bool) -> int:
    """Restore a store from a backup: FILE, which `leaseway backup` has made. Stop all workers and services first.

    Jobs that ended after the backup run again, and spending after the backup is not in the budgets. Permits that were
    granted after the backup count as used.
    """
    from leaseway.stores.sqlite.backup import restore

    path = file_of_store(settings)
    restore(file, path, show_progress, replace=replace)
    return report(settings, "restored", file, path)


def file_of_store(settings: CliSettings) -> Path:
    url = store_url(settings)
    scheme = url_scheme(url)
    if scheme != "sqlite":
        advice = ADVICE.get(scheme, "use the backups of its database")
        raise StoreRefused(f"{redact_url(url)}: this command copies SQLite files only; {advice}")
    return Path(sqlite_path(url))


def show_progress(done: int, total: int) -> None:
    show_status("" if done >= total else f"copied {100 * done // total} % …")


def report(settings: CliSettings, did: str, source: Path, target: Path) -> int:
    from leaseway.stores.sqlite.backup import limits_file

    size = target.stat().st_size
    has_limits = limits_file(target).exists()
    if settings.json:
        print_json({"from": str(source), "to": str(target), "bytes": size, "has_limits": has_limits})
    else:
        limits = f", and the definitions of limits to {limits_file(target)}" if has_limits else ""
        say(f"{did} {source} to {target} ({render_bytes(size)}){limits}")
    return 0
