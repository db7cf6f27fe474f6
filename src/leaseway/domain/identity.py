"""Who asks, and what he may: a caller has a tenant, a role and scopes. They come from a credential, never a body."""

from enum import StrEnum

from msgspec import Struct

from leaseway.domain.ids import Instant


class Scope(StrEnum):
    JOBS_READ = "jobs:read"
    JOBS_WRITE = "jobs:write"
    IMPORTS_READ = "imports:read"
    IMPORTS_WRITE = "imports:write"
    OPERATE = "operate"
    """See all tenants; change limits, budgets, lanes, schedules and tenants."""
    ADMIN = "admin"
    """Make and revoke keys."""
    WORK = "work"
    """Lease jobs and settle them."""


class Role(StrEnum):
    TENANT = "tenant"
    OPERATOR = "operator"
    WORKER = "worker"


ROLE_SCOPES: dict[Role, frozenset[Scope]] = {
    Role.TENANT: frozenset({Scope.JOBS_READ, Scope.JOBS_WRITE, Scope.IMPORTS_READ, Scope.IMPORTS_WRITE}),
    Role.OPERATOR: frozenset(Scope) - {Scope.WORK},
    Role.WORKER: frozenset({Scope.WORK}),
}
"""The most that a role can have. A key may have less."""


class Caller(Struct, frozen=True, kw_only=True):
    name: str
    """Of his credential, for logs: the id of a key, or the subject of a token."""
    tenant: str
    role: Role
    scopes: frozenset[Scope]
    until: Instant | None = None
    """When the credential expires: a stream that was opened with it ends then."""

    def may(self, scope: Scope) -> bool:
        return scope in self.scopes

    @property
    def sees_all(self) -> bool:
        return self.may(Scope.OPERATE)

    def sees(self, tenant: str) -> bool:
        return self.sees_all or tenant == self.tenant


LOCAL = Caller(name="local", tenant="default", role=Role.OPERATOR, scopes=frozenset(Scope))
"""Whoever reaches a service on the loopback that was started without authentication."""
