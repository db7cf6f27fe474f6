"""leaseway tenants"""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from leaseway.api.schemas.serializers import tenant_json
from leaseway.cli.screen.as_json import document
from leaseway.cli.screen.table import Column, Row, show_table
from leaseway.cli.screen.text import note, say
from leaseway.cli.settings import NONE, Settings
from leaseway.cli.verbs.limiters import limits_url
from leaseway.cli.verbs.stores import ask, change
from leaseway.domain.errors import BadValue, NoSuchJob
from leaseway.domain.limits.limit import rate_of
from leaseway.domain.tenant import Tenant, check
from leaseway.ports.store import Store
from leaseway.wiring import limiter_at
from leaseway.worker.set_tenant import agree

COLUMNS = (Column("name"), Column("weight", right=True), Column("starts"), Column("at once", right=True))


def list_tenants(settings: Settings) -> None:
    tenants = ask(settings, lambda store: store.tenants())
    if settings.json:
        document({"tenants": [tenant_json(tenant) for tenant in tenants]})
    elif not tenants:
        note("nothing is agreed with any tenant yet: each weighs 1 and has no caps; see: leaseway tenants set --help")
    else:
        show_table(COLUMNS, [row_of(tenant) for tenant in tenants])


def row_of(tenant: Tenant) -> Row:
    at_once = "" if tenant.concurrency is None else f"{tenant.concurrency:,}"
    return (tenant.name, f"{tenant.weight:,}", ", ".join(map(str, tenant.starts)), at_once)


def set_tenant(settings: Settings, name: str, given: Mapping[str, Any]) -> None:
    async def command(store: Store) -> tuple[Tenant | None, Tenant]:
        before = next((tenant for tenant in await store.tenants() if tenant.name == name), None)
        after = merged(before or Tenant(name=name), given)
        limiter = limiter_at(limits_url(settings))
        try:
            await agree(store, limiter, after)
        finally:
            await limiter.close()
        return before, after

    before, after = change(settings, command)
    if settings.json:
        document({"before": before and tenant_json(before), "after": tenant_json(after)})
    elif before == after:
        say(f"tenant {name}: {in_words(after)}, as before")
    else:
        say(f"tenant {name}: {in_words(after)} (was {in_words(before or Tenant(name=name))})")


def merged(before: Tenant, given: Mapping[str, Any]) -> Tenant:
    """What is not given stays as it is."""
    named = {option: value for option, value in given.items() if value not in (None, ())}
    if not named:
        raise BadValue(f"tenant {before.name}", "nothing to change; give --weight, --starts or --concurrency")
    if "starts" in named:
        rates = [] if named["starts"] == (NONE,) else named["starts"]
        named["starts"] = tuple(sorted(rate_of(f"tenant {before.name}: starts", rate) for rate in rates))
    if named.get("concurrency") == NONE:
        named["concurrency"] = None
    return check(replace(before, **named))


def in_words(tenant: Tenant) -> str:
    caps = [f"starts {' and '.join(map(str, tenant.starts))}"] if tenant.starts else []
    caps += [f"{tenant.concurrency:,} at once"] if tenant.concurrency is not None else []
    return ", ".join([f"weight {tenant.weight:,}", *(caps or ["no caps"])])


def forget_tenant(settings: Settings, name: str) -> None:
    """Its caps stay with the limiter, where nobody asks for them any more: workers that still believe in them for some
    seconds must find them."""

    async def command(store: Store) -> None:
        if not await store.forget_tenant(name):
            known = ", ".join(tenant.name for tenant in await store.tenants()) or "none yet"
            raise NoSuchJob(f"nothing is agreed with a tenant {name!r}; there are: {known}")

    change(settings, command)
    if settings.json:
        document({"name": name, "forgotten": True})
    else:
        say(f"tenant {name}: forgotten; it weighs 1 and has no caps")
