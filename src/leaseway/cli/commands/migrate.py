"""leaseway migrate"""

import asyncio

import click

from leaseway.cli.open_store import closing, store_url
from leaseway.cli.options import CliSettings, pass_settings, with_store
from leaseway.cli.output.console import print_json, say
from leaseway.domain.errors import SchemaVersions
from leaseway.domain.redact import redact_url


@click.command("migrate")
@click.option("--check", is_flag=True, help="Change nothing; exit with 1 if the schema is not current.")
@with_store
@pass_settings
def command(settings: CliSettings, check: bool) -> int:
    """Create the store or update its schema. Does nothing if the schema is current.

    Workers and submissions do this by themselves; use it to choose the moment.
    """
    return check_schema(settings) if check else migrate(settings)


DUE = 1


def check_schema(settings: CliSettings) -> int:
    url = store_url(settings)
    versions = asyncio.run(look(url))
    store = redact_url(url)
    if settings.json:
        print_json({"store": store, "version": versions.present, "newest": versions.newest, "is_due": versions.is_due})
    elif versions.is_due:
        say(f"{store}: schema version {versions.present}, the newest is {versions.newest}; run: leaseway migrate")
    else:
        say(f"{store}: schema version {versions.present}, the newest")
    return DUE if versions.is_due else 0


def migrate(settings: CliSettings) -> int:
    url = store_url(settings)
    versions = asyncio.run(bring_up_to_date(url))
    store = redact_url(url)
    if settings.json:
        print_json({"store": store, "from": versions.present, "to": versions.newest})
    elif not versions.is_due:
        say(f"{store}: schema version {versions.present}, the newest; nothing to do")
    elif versions.present == 0:
        say(f"{store}: created with schema version {versions.newest}")
    else:
        say(f"{store}: schema updated from version {versions.present} to {versions.newest}")
    return 0


async def look(url: str) -> SchemaVersions:
    async with closing(url) as store:
        return await store.versions()


async def bring_up_to_date(url: str) -> SchemaVersions:
    """The version before."""
    async with closing(url) as store:
        versions = await store.versions()
        await store.open()
        return versions
