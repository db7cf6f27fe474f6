"""leaseway keys [list|create|revoke|rotate]"""

import asyncio
from collections.abc import Mapping
from typing import Any, NamedTuple

import click

from leaseway.api.schemas.keys import key_document, key_state
from leaseway.api.schemas.values import as_dict
from leaseway.cli.commands.migrate import look
from leaseway.cli.lazy_groups import InOrder
from leaseway.cli.open_store import ask, change, store_url
from leaseway.cli.options import DURATION, CliSettings, pass_settings, with_store
from leaseway.cli.output.console import facts, moment, note, print_json, relative, say
from leaseway.cli.output.table import Row, TableCell, TableColumn, show_table
from leaseway.domain.errors import NoSuchJob
from leaseway.domain.identity import ROLE_SCOPES, ApiKey, KeyRequest, Role, Scope
from leaseway.domain.ids import Instant
from leaseway.domain.redact import redact_url
from leaseway.domain.validators import parse_duration_us
from leaseway.ports.store import Store
from leaseway.system import random_text
from leaseway.worker import api_keys
from leaseway.worker.api_keys import MadeKey, make

ROLES = ("tenant", "operator", "worker")
SCOPES = ("jobs:read", "jobs:write", "imports:read", "imports:write", "operate", "admin", "work")

one_id = click.argument("id_", metavar="ID")


@click.group("keys", cls=InOrder, invoke_without_command=True)
@with_store
@pass_settings
@click.pass_context
def command(ctx: click.Context, settings: CliSettings) -> None:
    """API keys: list, create, rotate, revoke. Without a subcommand: list."""
    if ctx.invoked_subcommand is None:
        list_keys(settings, None)


@command.command("list")
@click.option("--tenant", metavar="NAME", help="Only keys of this tenant.")
@with_store
@pass_settings
def list_(settings: CliSettings, tenant: str | None) -> None:
    """List every key, when it was last used, and whether it is valid. Secrets are never shown."""
    list_keys(settings, tenant)


@command.command("create", short_help="Create a key; it is shown once.")
@click.option(
    "--tenant",
    metavar="NAME",
    help="The key's tenant. Required for the role tenant; a worker key without it serves all tenants.",
)
@click.option("--role", type=click.Choice(ROLES), default="tenant", show_default=True, help="Role of the key.")
@click.option(
    "--scope",
    "scopes",
    type=click.Choice(SCOPES),
    multiple=True,
    help="Restrict the key to this scope. May be repeated.",
)
@click.option(
    "--expires", type=DURATION, metavar="TIME", help="How long the key is valid: 90d. Default: until it is revoked."
)
@click.option("--name", default="", metavar="TEXT", help="A note: where the key is used.")
@with_store
@pass_settings
def create(settings: CliSettings, /, **given: Any) -> None:
    """Create a key. It is shown once; only a hash of it is stored.

    \b
      leaseway keys create --tenant acme --expires 90d --name "web shop"
      leaseway keys create --tenant acme --scope jobs:read
      leaseway keys create --role operator
      leaseway keys create --role worker
    """
    create_key(settings, given)


@command.command("revoke")
@one_id
@with_store
@pass_settings
def revoke(settings: CliSettings, id_: str) -> None:
    """Revoke a key. Running services notice within half a minute."""
    revoke_key(settings, id_)


@command.command("rotate", short_help="Create a key that replaces another.")
@one_id
@click.option(
    "--grace", type=DURATION, default="24h", show_default=True, metavar="TIME", help="How long the old key stays valid."
)
@click.option(
    "--expires",
    type=DURATION,
    metavar="TIME",
    help="How long the new key is valid. Default: as long as the old one was.",
)
@with_store
@pass_settings
def rotate(settings: CliSettings, id_: str, grace: float, expires: float | None) -> None:
    """Create a key with the rights of an old one, which expires after the grace period.

    The new key is valid for as long as the old one was, unless --expires says otherwise.
    """
    rotate_key(settings, id_, grace, expires)


COLUMNS = (
    TableColumn("id"),
    TableColumn("name", may_shrink=True, leaves=2),
    TableColumn("tenant"),
    TableColumn("role"),
    TableColumn("scopes", may_shrink=True, leaves=1),
    TableColumn("state"),
    TableColumn("expires", leaves=4),
    TableColumn("used", leaves=3),
)


class KeyListing(NamedTuple):
    keys: list[ApiKey]
    now: Instant


def list_keys(settings: CliSettings, tenant: str | None) -> None:
    async def question(store: Store) -> KeyListing:
        return KeyListing(await store.keys.all(tenant), await store.reads.now())

    keys, now = ask(settings, question)
    if settings.json:
        print_json({"keys": [key_document(key, now) for key in keys]})
    elif not keys:
        note("there are no keys yet; make one with: leaseway keys create --tenant NAME")
    else:
        show_table(COLUMNS, [key_row(key, now) for key in keys])


def key_row(key: ApiKey, now: Instant) -> Row:
    state = key_state(key, now)
    expires = "" if key.expires_at is None or state == "revoked" else relative(key.expires_at, now)
    used = "never" if key.used_at is None else relative(key.used_at, now)
    return (
        key.id,
        key.name,
        key.tenant,
        key.role.value,
        scopes_text(key),
        TableCell(state, STYLES[state]),
        expires,
        used,
    )


STYLES = {"live": "", "expired": "dim", "revoked": "dim"}


def scopes_text(key: ApiKey) -> str:
    return "all scopes of its role" if set(key.scopes) == ROLE_SCOPES[key.role] else ", ".join(key.scopes)


def create_key(settings: CliSettings, given: Mapping[str, Any]) -> None:
    wanted = KeyRequest(
        role=Role(given["role"]),
        tenant=given["tenant"],
        scopes=tuple(map(Scope, given["scopes"])) or None,
        name=given["name"],
        life_us=life_us(given["expires"]),
    )
    url = store_url(settings)
    is_new = not asyncio.run(look(url)).present
    # A first key may be created before the first job: like `serve`, this creates the store.
    show_once(settings, change(settings, lambda store: make(store, wanted, random_text), must_exist=False))
    if is_new:
        note(f"{redact_url(url)} was created with this key.")


def life_us(expires: float | None) -> int | None:
    return None if expires is None else parse_duration_us("--expires", expires, 1)


def show_once(settings: CliSettings, made: MadeKey, ends: tuple[str, Instant] | None = None) -> None:
    key = made.key
    if settings.json:
        print_json({**as_dict(key_document(key, key.created_at)), "key": made.text})
        return
    say(made.text, "bold")
    facts(
        [
            ("tenant", key.tenant),
            ("role", key.role.value),
            ("scopes", ", ".join(key.scopes)),
            ("expires", moment(key.expires_at, key.created_at)),
            ("the old key", "" if ends is None else f"{ends[0]} ends {moment(ends[1], key.created_at)}"),
        ]
    )
    note("Save it now: it is not shown again. Clients send it as: Authorization: Bearer lw_…")


def revoke_key(settings: CliSettings, id_: str) -> None:
    async def command(store: Store) -> tuple[bool, ApiKey, Instant]:
        await known(store, id_)
        is_new = await store.keys.revoke(id_)
        return is_new, await known(store, id_), await store.reads.now()

    is_new, key, now = change(settings, command)
    if settings.json:
        print_json(key_document(key, now))
    elif is_new:
        say(f"key {id_}: revoked; running services notice within half a minute")
    else:
        say(f"key {id_}: had already been revoked {moment(key.revoked_at, now)}")


def rotate_key(settings: CliSettings, id_: str, grace: float, expires: float | None) -> None:
    async def command(store: Store) -> tuple[MadeKey, ApiKey]:
        old = await known(store, id_)
        made = await api_keys.rotate(store, old, parse_duration_us("--grace", grace), random_text, life_us(expires))
        return made, await known(store, id_)

    made, old = change(settings, command)
    assert old.expires_at is not None
    show_once(settings, made, (old.id, old.expires_at))


async def known(store: Store, id_: str) -> ApiKey:
    key = await store.keys.find(id_)
    if key is None:
        hint = "; the id is the part after lw_" if id_.startswith("lw_") else ""
        raise NoSuchJob(f"there is no key {id_[:40]!r} (leaseway keys list){hint}")
    return key
