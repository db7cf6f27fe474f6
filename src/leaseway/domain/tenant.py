"""A tenant's settings: its weight against other tenants, and caps on how many of its jobs start and run."""

from msgspec import Struct

from leaseway.domain.errors import BadValue
from leaseway.domain.ids import SECOND_US
from leaseway.domain.limits.limit import TENANT_PREFIX, LimitDefinition, Rate
from leaseway.domain.limits.limit import check_limit as check_limit
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
    if tenant.is_capped:
        check_limit(tenant.definition())
    return tenant
