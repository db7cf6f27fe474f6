"""The identity of a caller: its tenant, role and scopes. They come from a credential, never from a request body."""

from enum import StrEnum

from msgspec import Struct

from leaseway.domain.ids import Instant


class Scope(StrEnum):
    JOBS_READ = "jobs:read"
    JOBS_WRITE = "jobs:write"
    IMPORTS_READ = "imports:read"
    IMPORTS_WRITE = "imports:write"
    OPERATE = "operate"
    """Read the data of all tenants; change limits, budgets, lanes, schedules and tenants."""
    ADMIN = "admin"
    """Create and revoke API keys."""
    WORK = "work"
    """Claim jobs and settle them."""


class Role(StrEnum):
    TENANT = "tenant"
    OPERATOR = "operator"
    WORKER = "worker"


ROLE_SCOPES: dict[Role, frozenset[Scope]] = {
    Role.TENANT: frozenset({Scope.JOBS_READ, Scope.JOBS_WRITE, Scope.IMPORTS_READ, Scope.IMPORTS_WRITE}),
    Role.OPERATOR: frozenset(Scope) - {Scope.WORK},
    Role.WORKER: frozenset({Scope.WORK}),
}
"""The scopes that a role can have. A key may have fewer."""


class Caller(Struct, frozen=True, kw_only=True):
    name: str
    """The name of the credential, for logs: the id of an API key, or the subject of a JWT."""
    tenant: str
    role: Role
    scopes: frozenset[Scope]
    until: Instant | None = None
    """When the credential expires. A stream that was opened with it ends then."""

    def may(self, scope: Scope) -> bool:
        return scope in self.scopes

    @property
    def sees_all(self) -> bool:
        return self.may(Scope.OPERATE)

    def sees(self, tenant: str) -> bool:
        return self.sees_all or tenant == self.tenant


LOCAL = Caller(name="local", tenant="default", role=Role.OPERATOR, scopes=frozenset(Scope))
"""The caller of every request to a service that was started without authentication on the loopback interface."""
