"""leaseway migrate"""

import asyncio

from leaseway.cli.screen.as_json import document
from leaseway.cli.screen.text import say
from leaseway.cli.settings import Settings
from leaseway.cli.verbs.stores import opened, refuse_memory, store_url
from leaseway.stores.sqlite.migrate import Schema, schema_at
from leaseway.wiring import sqlite_path, store_at

DUE = 1


def check_schema(settings: Settings) -> int:
    url, schema = look(settings)
    is_due = schema.present < schema.newest
    if settings.json:
        document({"store": url, "version": schema.present, "newest": schema.newest, "is_due": is_due})
    elif is_due:
        say(f"{url}: schema version {schema.present}, the newest is {schema.newest}; run: leaseway migrate")
    else:
        say(f"{url}: schema version {schema.present}, the newest")
    return DUE if is_due else 0


def migrate(settings: Settings) -> int:
    url, schema = look(settings)
    asyncio.run(open_and_close(url))
    if settings.json:
        document({"store": url, "from": schema.present, "to": schema.newest})
    elif schema.present == schema.newest:
        say(f"{url}: schema version {schema.present}, the newest; nothing to do")
    elif schema.present == 0:
        say(f"{url}: created with schema version {schema.newest}")
    else:
        say(f"{url}: schema brought from version {schema.present} to {schema.newest}")
    return 0


def look(settings: Settings) -> tuple[str, Schema]:
    url = store_url(settings)
    refuse_memory(url)
    store_at(url)  # refuses what is no address at all
    return url, schema_at(sqlite_path(url))


async def open_and_close(url: str) -> None:
    async with opened(url):
        pass
