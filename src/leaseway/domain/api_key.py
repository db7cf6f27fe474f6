"""Keys of the API: lw_<id>_<secret>. The secret has 160 random bits and is shown once; a hash of it is what is kept.

With so much chance in it, one round of SHA-256 is enough: there is nothing to guess. A session is what a browser gets
for a key: a random id in a cookie, good for some hours, and never longer than its key.
"""

import hashlib
import hmac
import re

from msgspec import Struct

from leaseway.domain.errors import BadValue
from leaseway.domain.identity import ROLE_SCOPES, Caller, Role, Scope
from leaseway.domain.ids import SECOND_US, Instant
from leaseway.domain.validators import check_int, check_name

PREFIX = "lw"
ID_ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789"
ID_LENGTH = 12
SECRET_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
SECRET_LENGTH = 27
FORM = re.compile(r"lw_([a-z0-9]{12})_([A-Za-z0-9]{27})")

ANY_TENANT = "*"
"""Of a worker's key: it leases the jobs of all tenants."""
HOUR_US = 3_600 * SECOND_US
LIFE_US_MAX = 10 * 366 * 24 * HOUR_US
SESSION_US = 12 * HOUR_US
GRACE_US = 24 * HOUR_US
"""So long does the old key live on beside the one that replaces it, unless something else was said."""
FORGET_US = 90 * 24 * HOUR_US
"""So long can be seen that there was a key, after it expired or was revoked."""
FORGET_MAX = 100
"""Of old keys and sessions, so many are forgotten whenever a new one is added."""
SESSIONS_MAX = 20
"""Of one key. Who opens one more closes his oldest."""


class ApiKey(Struct, frozen=True, kw_only=True):
    """As it is stored."""

    id: str
    hash: str
    tenant: str
    role: Role
    scopes: tuple[Scope, ...]
    name: str = ""
    """For people."""
    created_at: Instant
    expires_at: Instant | None = None
    revoked_at: Instant | None = None
    used_at: Instant | None = None

    def is_live(self, now: Instant) -> bool:
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)

    def opens_with(self, secret: str) -> bool:
        return hmac.compare_digest(self.hash, hash_secret(secret))

    def caller(self) -> Caller:
        # What a role may have can shrink; a key that was made before does not keep it.
        scopes = ROLE_SCOPES[self.role] & frozenset(self.scopes)
        return Caller(name=self.id, tenant=self.tenant, role=self.role, scopes=scopes, until=self.expires_at)


class Session(Struct, frozen=True, kw_only=True):
    """As it is stored. Like a key, it can be read without being of use to the reader."""

    hash: str
    key: str
    """The id of the key that it stands for."""
    created_at: Instant
    expires_at: Instant


class KeyRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What somebody asks for."""

    role: Role = Role.TENANT
    tenant: str | None = None
    """None: of the default tenant; of all tenants for a worker. A tenant's key must name it."""
    scopes: tuple[Scope, ...] | None = None
    """None: all that the role can have."""
    name: str = ""
    life_us: int | None = None
    """None: until it is revoked."""


def hash_secret(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def parse_key_text(text: str) -> tuple[str, str] | None:
    """Id and secret; None: it is no key."""
    found = FORM.fullmatch(text)
    return None if found is None else (found[1], found[2])


def render_key_text(id_: str, secret: str) -> str:
    """What its owner keeps, and secret scanners find."""
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
            raise BadValue("tenant", "a tenant's key belongs to one tenant; name it")
        return ANY_TENANT if wanted.role is Role.WORKER else "default"
    check_name("tenant", wanted.tenant)
    if wanted.tenant == ANY_TENANT and wanted.role is not Role.WORKER:
        raise BadValue("tenant", f"{ANY_TENANT} is for workers; name one tenant")
    return wanted.tenant


def key_scopes(wanted: KeyRequest) -> tuple[Scope, ...]:
    most = ROLE_SCOPES[wanted.role]
    if wanted.scopes is None:
        return tuple(sorted(most))
    if not wanted.scopes:
        raise BadValue("scopes", "must name at least one scope, or be left out for all that the role can have")
    beyond = sorted(set(wanted.scopes) - most)
    if beyond:
        raise BadValue(
            "scopes", f"role {wanted.role} cannot have {', '.join(beyond)}; it can have {', '.join(sorted(most))}"
        )
    return tuple(sorted(set(wanted.scopes)))


def replacement_for(old: ApiKey) -> KeyRequest:
    """The key that takes the place of an old one: the same rights, and as long a life, counted from now."""
    return KeyRequest(
        role=old.role,
        tenant=old.tenant,
        scopes=old.scopes,
        name=old.name,
        life_us=None if old.expires_at is None else old.expires_at - old.created_at,
    )
