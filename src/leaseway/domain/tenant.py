"""What is agreed with a tenant: its weight against others, and how much it may do at once."""

from msgspec import Struct

from leaseway.domain.errors import BadValue
from leaseway.domain.ids import SECOND_US
from leaseway.domain.limits.limit import TENANT_PREFIX, LimitDefinition, Rate
from leaseway.domain.limits.limit import check_limit as check_limit
from leaseway.domain.validators import check_int, check_name

WEIGHT_MAX = 1_000
CLAIM_US = SECOND_US
"""So long may it take from the leave to start a job to its claim."""


class Tenant(Struct, frozen=True, kw_only=True):
    name: str
    weight: int = 1
    """A lane of weight 3 is served three times as often as one of weight 1, as long as both have work."""
    starts: tuple[Rate, ...] = ()
    """How many jobs may start in a window."""
    concurrency: int | None = None
    """How many jobs may run at once."""

    @property
    def is_capped(self) -> bool:
        return bool(self.starts) or self.concurrency is not None

    @property
    def limit(self) -> str:
        """The name under which the limiter keeps its caps."""
        return f"{TENANT_PREFIX}{self.name}"

    def definition(self) -> LimitDefinition:
        """Starts are counted by ourselves, when they are granted: nothing is on its way but the claim."""
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
