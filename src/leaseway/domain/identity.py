"""The identity of a caller: its tenant, role and scopes; and its credentials: API keys and browser sessions.

Tenant, role and scopes come from a credential, never from a request body. A key reads lw_<id>_<secret>. The secret has
160 random bits and is shown once; only its hash is stored. A random secret of this length cannot be guessed, so one
round of SHA-256 is enough. A browser exchanges a key for a session: a random id in a cookie that is valid for some
hours, and never longer than the key.
"""

import hashlib
import hmac
import re
from enum import StrEnum

from msgspec import Struct

from leaseway.domain.errors import BadValue
from leaseway.domain.ids import SECOND_US, Instant
from leaseway.domain.validators import check_int, check_name


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


OPERATOR_TENANT = "default"
"""The tenant of the operator: of imports, and of jobs and keys that name none."""
LOCAL = Caller(name="local", tenant=OPERATOR_TENANT, role=Role.OPERATOR, scopes=frozenset(Scope))
"""The caller of every request to a service that was started without authentication on the loopback interface."""


PREFIX = "lw"
ID_ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789"
ID_LENGTH = 12
SECRET_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
SECRET_LENGTH = 27
FORM = re.compile(r"lw_([a-z0-9]{12})_([A-Za-z0-9]{27})")

ANY_TENANT = "*"
"""The tenant of a worker's key that may claim the jobs of all tenants."""
HOUR_US = 3_600 * SECOND_US
LIFE_US_MAX = 10 * 366 * 24 * HOUR_US
SESSION_US = 12 * HOUR_US
GRACE_US = 24 * HOUR_US
"""So long does the old key live on beside the one that replaces it, unless something else was said."""
FORGET_US = 90 * 24 * HOUR_US
"""How long an expired or revoked key stays visible."""
FORGET_MAX = 100
"""How many old keys and sessions are deleted whenever a new one is added."""
SESSIONS_MAX = 20
"""The sessions of one key. Opening another one ends the oldest."""


class ApiKey(Struct, frozen=True, kw_only=True):
    """An API key as it is stored."""

    id: str
    hash: str
    tenant: str
    role: Role
    scopes: tuple[Scope, ...]
    name: str = ""
    """A label for display."""
    created_at: Instant
    expires_at: Instant | None = None
    revoked_at: Instant | None = None
    used_at: Instant | None = None

    def is_live(self, now: Instant) -> bool:
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)

    def opens_with(self, secret: str) -> bool:
        return hmac.compare_digest(self.hash, hash_secret(secret))

    def caller(self) -> Caller:
        # The scopes of a role may have been reduced after the key was created.
        scopes = ROLE_SCOPES[self.role] & frozenset(self.scopes)
        return Caller(name=self.id, tenant=self.tenant, role=self.role, scopes=scopes, until=self.expires_at)


class Session(Struct, frozen=True, kw_only=True):
    """A session as it is stored. It contains only a hash, so a copy of the database does not give access."""

    hash: str
    key: str
    """The id of the key that opened it."""
    created_at: Instant
    expires_at: Instant


class KeyRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a new key shall be."""

    role: Role = Role.TENANT
    tenant: str | None = None
    """None: the default tenant, or all tenants for a worker's key. Required for a tenant's key."""
    scopes: tuple[Scope, ...] | None = None
    """None: all scopes that the role can have."""
    name: str = ""
    life_us: int | None = None
    """None: valid until it is revoked."""


def hash_secret(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def parse_key_text(text: str) -> tuple[str, str] | None:
    """Id and secret; None if the text is not a key."""
    found = FORM.fullmatch(text)
    return None if found is None else (found[1], found[2])


def render_key_text(id_: str, secret: str) -> str:
    """The text of a key. The prefix lets secret scanners recognize it."""
    return f"{PREFIX}_{id_}_{secret}"


def make_key(wanted: KeyRequest, id_: str, secret: str, now: Instant) -> ApiKey:
    if wanted.name:
        check_name("name", wanted.name)
    if wanted.life_us is not None:
        check_int("expires", wanted.life_us, 1, LIFE_US_MAX)
    return ApiKey(
        id=id_,
        hash=hash_secret(secret),
        tenant=key_tenant(wanted),
        role=wanted.role,
        scopes=key_scopes(wanted),
        name=wanted.name,
        created_at=now,
        expires_at=None if wanted.life_us is None else now + wanted.life_us,
    )


def key_tenant(wanted: KeyRequest) -> str:
    if wanted.tenant is None:
        if wanted.role is Role.TENANT:
            raise BadValue("tenant", "a tenant's key belongs to one tenant; give its name")
        return ANY_TENANT if wanted.role is Role.WORKER else OPERATOR_TENANT
    check_name("tenant", wanted.tenant)
    if wanted.tenant == ANY_TENANT and wanted.role is not Role.WORKER:
        raise BadValue("tenant", f"{ANY_TENANT} is for workers; name one tenant")
    return wanted.tenant


def key_scopes(wanted: KeyRequest) -> tuple[Scope, ...]:
    most = ROLE_SCOPES[wanted.role]
    if wanted.scopes is None:
        return tuple(sorted(most))
    if not wanted.scopes:
        raise BadValue("scopes", "must name at least one scope; leave it out for all scopes of the role")
    beyond = sorted(set(wanted.scopes) - most)
    if beyond:
        raise BadValue(
            "scopes", f"role {wanted.role} cannot have {', '.join(beyond)}; it can have {', '.join(sorted(most))}"
        )
    return tuple(sorted(set(wanted.scopes)))


def replacement_for(old: ApiKey) -> KeyRequest:
    """The key that replaces an old one: the same rights and the same lifetime, counted from now."""
    return KeyRequest(
        role=old.role,
        tenant=old.tenant,
        scopes=old.scopes,
        name=old.name,
        life_us=None if old.expires_at is None else old.expires_at - old.created_at,
    )
