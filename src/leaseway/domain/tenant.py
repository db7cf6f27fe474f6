"""A tenant's settings: its weight against other tenants, caps on how many of its jobs start and run, and
quotas on what it keeps in the store.

Also which names are a tenant's own. A name with the field `{tenant}`, such as "mail:{tenant}", defines one limit or
budget per tenant; a name without it is shared by all tenants.
"""

import hashlib
from collections.abc import Iterable
from enum import Enum
from functools import lru_cache

from msgspec import Struct

from leaseway.domain.errors import BadValue
from leaseway.domain.ids import SECOND_US
from leaseway.domain.limits.limit import RESERVED_PREFIXES, TENANT_PREFIX, LimitDefinition, Rate
from leaseway.domain.limits.limit import check_limit as check_limit
from leaseway.domain.limits.templates import fills_template, template_fields
from leaseway.domain.quota import NO_QUOTAS, Quotas, check_quotas
from leaseway.domain.validators import check_int, check_name

WEIGHT_MAX = 1_000
CLAIM_US = SECOND_US
"""How long it may take from the permit for a start to the claim of the job."""


class Tenant(Struct, frozen=True, kw_only=True):
    name: str
    weight: int = 1
    """A lane of weight 3 is served three times as often as one of weight 1, while both have work."""
    starts: tuple[Rate, ...] = ()
    """How many jobs may start per window."""
    concurrency: int | None = None
    """How many jobs may run at once."""
    quotas: Quotas = NO_QUOTAS
    """How much it may keep in the store."""

    @property
    def is_capped(self) -> bool:
        return bool(self.starts) or self.concurrency is not None

    @property
    def limit(self) -> str:
        """The name of the limit that enforces the caps."""
        return f"{TENANT_PREFIX}{self.name}"

    def definition(self) -> LimitDefinition:
        """Starts are counted when they are granted, so no delay to a provider has to be allowed for."""
        return LimitDefinition(
            name=self.limit, rates=self.starts, concurrency=self.concurrency, lease_us=CLAIM_US, delay_us=0
        )


def check_tenant(tenant: Tenant) -> Tenant:
    check_name("tenant", tenant.name)
    check_int(f"tenant {tenant.name}: weight", tenant.weight, 1, WEIGHT_MAX)
    if "{" in tenant.name:
        raise BadValue("tenant", f"must not contain braces (is {tenant.name!r})")
    check_quotas(f"tenant {tenant.name}: quotas", tenant.quotas)
    if tenant.is_capped:
        check_limit(tenant.definition())
    return tenant


# -- names that belong to a tenant ----------------------------------------------------------------------------------

SHARED_US_MAX = 600 * SECOND_US
"""How long a worker of one tenant may close or occupy what all tenants share with one call."""
NAMESPACE_LENGTH_MAX = 64
ESCAPES = str.maketrans({"%": "%25", "/": "%2F", "~": "%7E"})


class Ownership(Enum):
    OWN = "own"
    SHARED = "shared"
    FOREIGN = "foreign"


@lru_cache(maxsize=4_096)
def namespace(tenant: str) -> str:
    """The prefix of a tenant's names. No prefix is the beginning of another one."""
    text = tenant.translate(ESCAPES)
    if len(text) > NAMESPACE_LENGTH_MAX:
        text = f"~{hashlib.sha256(tenant.encode()).hexdigest()[:32]}"
    return f"{text}/"


def qualify(tenant: str, name: str) -> str:
    """A name in the tenant's namespace. A name that is in it already stays the same."""
    prefix = namespace(tenant)
    return name if name.startswith(prefix) else f"{prefix}{name}"


def is_usable_by(tenant: str, name: str, template: str) -> bool:
    """Whether jobs of this tenant may need the limit or the budget of this name: it fills its template, with this
    tenant if the template has a field for the tenant, and does not belong to the service itself."""
    return not name.startswith(RESERVED_PREFIXES) and fills_template(name, template, tenant)


class DefinedNames:
    """The names of all limits, or of all budgets, that are defined."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = frozenset(names)
        self._per_tenant = tuple(name for name in sorted(self.names) if "tenant" in template_fields(name))

    def ownership(self, tenant: str, name: str, template: str) -> Ownership:
        """Whose limit or budget this is. `template` is the definition that the caller names.

        A name that fills a template with the field `{tenant}` belongs to that tenant, even if it has a definition of
        its own.
        """
        if name != template and not (template in self.names and fills_template(name, template, tenant)):
            return Ownership.FOREIGN
        if name in self.names and template_fields(name):  # the name of a definition, not of one tenant's limit
            return Ownership.SHARED
        filled = [each for each in self._per_tenant if fills_template(name, each)]
        if not filled:
            return Ownership.SHARED
        return Ownership.OWN if any(fills_template(name, each, tenant) for each in filled) else Ownership.FOREIGN
