"""leaseway tenants [list|show|set|forget]"""

from collections.abc import Mapping
from typing import Any

import click
from msgspec import to_builtins
from msgspec.structs import replace

from leaseway.api.schemas.operations import quotas_document, tenant_document
from leaseway.cli.lazy_groups import InOrder
from leaseway.cli.open_limiter import limits_url
from leaseway.cli.open_store import ask, change
from leaseway.cli.options import COUNT_OR_NONE, NONE, CliSettings, pass_settings, with_limits, with_store
from leaseway.cli.output.console import note, print_json, say
from leaseway.cli.output.table import Row, TableColumn, show_table
from leaseway.domain.errors import BadValue, NoSuchJob
from leaseway.domain.limits.limit import parse_rate
from leaseway.domain.quota import DEFAULT_QUOTAS, Quota, Quotas, TenantUse, measure_use, parse_quotas, render_limit
from leaseway.domain.tenant import Tenant, check_tenant
from leaseway.ports.store import Store
from leaseway.wiring import limiter_at
from leaseway.worker.definitions import store_tenant

one_name = click.argument("name")
DEFAULTS = "weight 1, no caps and the default quotas"


@click.group("tenants", cls=InOrder, invoke_without_command=True)
@with_limits
@pass_settings
@click.pass_context
def command(ctx: click.Context, settings: CliSettings) -> None:
    """Tenants: weights, caps and quotas. Without a subcommand: list.

    A tenant without settings has weight 1, no caps and the default quotas of the service.
    """
    if ctx.invoked_subcommand is None:
        list_tenants(settings)


@command.command("list")
@with_store
@pass_settings
def list_(settings: CliSettings) -> None:
    """List every tenant that has settings."""
    list_tenants(settings)


@command.command("show")
@one_name
@with_store
@pass_settings
def show(settings: CliSettings, name: str) -> None:
    """Show the quotas of a tenant and what it uses."""
    show_tenant(settings, name)


@command.command("set", short_help="Set a tenant's weight, caps and quotas.")
@one_name
@click.option("--weight", type=int, metavar="N", help="Weight against other tenants when jobs are claimed.")
@click.option(
    "--starts",
    metavar="RATE",
    multiple=True,
    help="Maximum rate of job starts: 100/minute. May be repeated; none: unlimited.",
)
@click.option("--concurrency", type=COUNT_OR_NONE, metavar="N", help="Maximum number of running jobs; none: unlimited.")
@click.option(
    "--quota",
    metavar="NAME=N",
    multiple=True,
    help="Quota for what the tenant keeps in the store: lanes, unfinished (jobs), bytes or keys. May be repeated; "
    "NAME=none: unlimited; NAME=default: the default of the service.",
)
@with_limits
@pass_settings
def set_(settings: CliSettings, /, name: str, **given: Any) -> None:
    """Set a tenant's weight, caps and quotas. Options that you omit keep their value.

    Weight and caps take effect with the next claim, quotas within two seconds.

    \b
      leaseway tenants set acme --weight 3
      leaseway tenants set acme --starts 100/minute --concurrency 5
      leaseway tenants set acme --quota bytes=10GiB --quota lanes=5000
    """
    set_tenant(settings, name, given)


@command.command("forget")
@one_name
@with_store
@pass_settings
def forget(settings: CliSettings, name: str) -> None:
    """Remove a tenant's settings: weight 1, no caps, default quotas."""
    forget_tenant(settings, name)


USE_COLUMNS = (TableColumn("quota"), TableColumn("used", right=True), TableColumn("limit", right=True))
COLUMNS = (
    TableColumn("name"),
    TableColumn("weight", right=True),
    TableColumn("starts"),
    TableColumn("at once", right=True),
    TableColumn("quotas"),
)


def list_tenants(settings: CliSettings) -> None:
    tenants = ask(settings, lambda store: store.tenants.all())
    if settings.json:
        print_json({"tenants": [tenant_document(tenant) for tenant in tenants]})
    elif not tenants:
        note(f"no tenant has settings yet: each has {DEFAULTS}; see: leaseway tenants set --help")
    else:
        show_table(COLUMNS, [tenant_row(tenant) for tenant in tenants])


def tenant_row(tenant: Tenant) -> Row:
    at_once = "" if tenant.concurrency is None else f"{tenant.concurrency:,}"
    return (tenant.name, f"{tenant.weight:,}", ", ".join(map(str, tenant.starts)), at_once, str(tenant.quotas))


def show_tenant(settings: CliSettings, name: str) -> None:
    async def query(store: Store) -> tuple[Quotas, TenantUse]:
        found = next((tenant for tenant in await store.tenants.all() if tenant.name == name), Tenant(name=name))
        now, keys = await store.reads.now(), await store.keys.all(name)
        return found.quotas, measure_use(await store.reads.lanes(name), sum(key.is_live(now) for key in keys))

    quotas, use = ask(settings, query)
    if settings.json:
        print_json(to_builtins(quotas_document(name, quotas.with_defaults(DEFAULT_QUOTAS), use)))
    else:
        show_table(USE_COLUMNS, [use_row(quota, quotas, use) for quota in Quota])


def use_row(quota: Quota, quotas: Quotas, use: TenantUse) -> Row:
    """A default may have been changed with `leaseway serve --quota`, which this command cannot know."""
    used, limit = getattr(use, quota.value), render_limit(quota, quotas.get(quota))
    default = f" ({render_limit(quota, DEFAULT_QUOTAS.get(quota))})" if limit == "default" else ""
    return (quota.value, render_limit(quota, used), limit + default)


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
        print_json({"before": before and tenant_document(before), "after": tenant_document(after)})
    elif before == after:
        say(f"tenant {name}: {in_words(after)}, as before")
    else:
        say(f"tenant {name}: {in_words(after)} (was {in_words(before or Tenant(name=name))})")


def merged(before: Tenant, given: Mapping[str, Any]) -> Tenant:
    """Options of `tenants set`; None keeps the current value."""
    named = {option: value for option, value in given.items() if value not in (None, ())}
    if not named:
        problem = "nothing to change; give --weight, --starts, --concurrency or --quota"
        raise BadValue(f"tenant {before.name}", problem)
    if "starts" in named:
        rates = [] if named["starts"] == (NONE,) else named["starts"]
        named["starts"] = tuple(sorted(parse_rate(f"tenant {before.name}: starts", rate) for rate in rates))
    if named.get("concurrency") == NONE:
        named["concurrency"] = None
    if "quota" in named:
        named["quotas"] = parse_quotas(named.pop("quota"), before.quotas)
    return check_tenant(replace(before, **named))


def in_words(tenant: Tenant) -> str:
    caps = [f"starts {' and '.join(map(str, tenant.starts))}"] if tenant.starts else []
    caps += [f"{tenant.concurrency:,} at once"] if tenant.concurrency is not None else []
    quotas = [f"quotas {tenant.quotas}"] if tenant.quotas.is_set else []
    return ", ".join([f"weight {tenant.weight:,}", *(caps or ["no caps"]), *quotas])


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
        print_json({"name": name, "forgotten": True})
    else:
        say(f"tenant {name}: settings removed; it has {DEFAULTS}")
