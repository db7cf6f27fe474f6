"""leaseway tenants [list|set|forget]"""

from collections.abc import Mapping
from typing import Any

import click
from msgspec.structs import replace

from leaseway.api.schemas.operations import tenant_document
from leaseway.cli.lazy_groups import InOrder
from leaseway.cli.open_limiter import limits_url
from leaseway.cli.open_store import ask, change
from leaseway.cli.options import COUNT_OR_NONE, pass_settings, with_limits, with_store
from leaseway.cli.output.json import document
from leaseway.cli.output.table import Row, TableColumn, show_table
from leaseway.cli.output.text import note, say
from leaseway.cli.settings import NONE, CliSettings
from leaseway.domain.errors import BadValue, NoSuchJob
from leaseway.domain.limits.limit import parse_rate
from leaseway.domain.tenant import Tenant, check_tenant
from leaseway.ports.store import Store
from leaseway.wiring import limiter_at
from leaseway.worker.definitions import store_tenant

one_name = click.argument("name")


@click.group("tenants", cls=InOrder, invoke_without_command=True)
@with_limits
@pass_settings
@click.pass_context
def command(ctx: click.Context, settings: CliSettings) -> None:
    """Tenants: weights and caps. Without a subcommand: list.

    A tenant without settings has weight 1 and no caps.
    """
    if ctx.invoked_subcommand is None:
        list_tenants(settings)


@command.command("list")
@with_store
@pass_settings
def list_(settings: CliSettings) -> None:
    """List every tenant that has settings."""
    list_tenants(settings)


@command.command("set", short_help="Set a tenant's weight and caps.")
@one_name
@click.option("--weight", type=int, metavar="N", help="Weight against other tenants when jobs are claimed.")
@click.option(
    "--starts",
    metavar="RATE",
    multiple=True,
    help="Maximum rate of job starts: 100/minute. May be repeated; none: unlimited.",
)
@click.option("--concurrency", type=COUNT_OR_NONE, metavar="N", help="Maximum number of running jobs; none: unlimited.")
@with_limits
@pass_settings
def set_(settings: CliSettings, /, name: str, **given: Any) -> None:
    """Set a tenant's weight and caps. Takes effect with the next claim. Options that you omit keep their value.

    \b
      leaseway tenants set acme --weight 3
      leaseway tenants set acme --starts 100/minute --concurrency 5
    """
    set_tenant(settings, name, given)


@command.command("forget")
@one_name
@with_store
@pass_settings
def forget(settings: CliSettings, name: str) -> None:
    """Remove a tenant's settings: weight 1, no caps."""
    forget_tenant(settings, name)


COLUMNS = (
    TableColumn("name"),
    TableColumn("weight", right=True),
    TableColumn("starts"),
    TableColumn("at once", right=True),
)


def list_tenants(settings: CliSettings) -> None:
    tenants = ask(settings, lambda store: store.tenants.all())
    if settings.json:
        document({"tenants": [tenant_document(tenant) for tenant in tenants]})
    elif not tenants:
        note("no tenant has settings yet: each has weight 1 and no caps; see: leaseway tenants set --help")
    else:
        show_table(COLUMNS, [tenant_row(tenant) for tenant in tenants])


def tenant_row(tenant: Tenant) -> Row:
    at_once = "" if tenant.concurrency is None else f"{tenant.concurrency:,}"
    return (tenant.name, f"{tenant.weight:,}", ", ".join(map(str, tenant.starts)), at_once)


def set_tenant(settings: CliSettings, name: str, given: Mapping[str, Any]) -> None:
    async def command(store: Store) -> tuple[Tenant | None, Tenant]:
        before = next((tenant for tenant in await store.tenants.all() if tenant.name == name), None)
        after = merged(before or Tenant(name=name), given)
        limiter = limiter_at(limits_url(settings))
        try:
            await store_tenant(store.tenants, limiter, after)
        finally:
            await limiter.close()
        return before, after

    before, after = change(settings, command)
    if settings.json:
        document({"before": before and tenant_document(before), "after": tenant_document(after)})
    elif before == after:
        say(f"tenant {name}: {in_words(after)}, as before")
    else:
        say(f"tenant {name}: {in_words(after)} (was {in_words(before or Tenant(name=name))})")


def merged(before: Tenant, given: Mapping[str, Any]) -> Tenant:
    """Options of `tenants set`; None keeps the current value."""
    named = {option: value for option, value in given.items() if value not in (None, ())}
    if not named:
        raise BadValue(f"tenant {before.name}", "nothing to change; give --weight, --starts or --concurrency")
    if "starts" in named:
        rates = [] if named["starts"] == (NONE,) else named["starts"]
        named["starts"] = tuple(sorted(parse_rate(f"tenant {before.name}: starts", rate) for rate in rates))
    if named.get("concurrency") == NONE:
        named["concurrency"] = None
    return check_tenant(replace(before, **named))


def in_words(tenant: Tenant) -> str:
    caps = [f"starts {' and '.join(map(str, tenant.starts))}"] if tenant.starts else []
    caps += [f"{tenant.concurrency:,} at once"] if tenant.concurrency is not None else []
    return ", ".join([f"weight {tenant.weight:,}", *(caps or ["no caps"])])


def forget_tenant(settings: CliSettings, name: str) -> None:
    """The caps stay in the limiter, where no new job needs them: workers that have cached them for some seconds must
    still find them.
    """

    async def command(store: Store) -> None:
        if not await store.tenants.forget(name):
            known = ", ".join(tenant.name for tenant in await store.tenants.all()) or "none yet"
            raise NoSuchJob(f"tenant {name!r} has no settings; tenants with settings: {known}")

    change(settings, command)
    if settings.json:
        document({"name": name, "forgotten": True})
    else:
        say(f"tenant {name}: settings removed; weight 1, no caps")
